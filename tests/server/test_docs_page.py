"""GET /docs: every endpoint, the WebSocket included, in words for a person with only the server."""

import re

import pytest
from fake_engine import FakeEngine
from live_server import serving

from qwen_megakernel.server import app
from qwen_megakernel.server.settings import ServerSettings

OWN = {"Speech", "Voices", "Marks", "Server"}


@pytest.fixture(scope="module")
def described(tmp_path_factory) -> dict:
    settings = ServerSettings(allow_upload=True, voices=tmp_path_factory.mktemp("voices"))
    return app.create_app(FakeEngine(), settings).openapi()


def test_every_endpoint_has_a_sentence_and_a_tag(described):
    operations = [each for path in described["paths"].values() for each in path.values()]
    assert len(operations) == 21
    for operation in operations:
        assert len(operation["summary"].split()) >= 3, operation
        assert not operation["summary"].endswith(".")
        assert operation["summary"] not in operation.get("description", "")
        assert len(operation["tags"]) == 1
    tags = [tag["name"] for tag in described["tags"]]
    assert tags == [*sorted(OWN, key=tags.index), "ElevenLabs", "Cartesia", "Deepgram"]
    assert {operation["tags"][0] for operation in operations} == set(tags)
    sockets = {tag["name"]: tag.get("description", "").count("`/") for tag in described["tags"]}
    sockets = {name: count for name, count in sockets.items() if count}
    assert sockets == {"Speech": 1, "ElevenLabs": 2, "Cartesia": 1, "Deepgram": 1}


def test_the_parameters_of_deepgrams_url_are_described(described):
    parameters = described["paths"]["/v1/speak"]["post"]["parameters"]
    assert {each["in"] for each in parameters} == {"query"}
    names = {each["name"] for each in parameters}
    assert {"model", "encoding", "container", "sample_rate"} <= names


def test_the_page_asks_for_the_key_that_the_server_requires(described):
    with_key = app.create_app(FakeEngine(), ServerSettings(api_key="secret")).openapi()
    schemes = with_key["components"]["securitySchemes"]
    assert schemes == {"key": {"type": "http", "scheme": "bearer"}}
    assert with_key["security"] == [{"key": []}]
    free = [path for path, each in with_key["paths"].items() if each.get("get", {}).get("security")]
    assert free == [] and with_key["paths"]["/health"]["get"]["security"] == []
    assert with_key["paths"]["/ready"]["get"]["security"] == []
    assert "security" not in with_key["paths"]["/v1/models"]["get"]
    assert "security" not in described and "securitySchemes" not in described["components"]


def test_a_dialect_that_is_off_is_not_described():
    described = app.create_app(FakeEngine(), ServerSettings(dialects=("cartesia",))).openapi()
    assert {tag["name"] for tag in described["tags"]} == {*OWN, "Cartesia"}


def test_every_field_of_our_own_requests_is_described(described):
    for name in (
        "SpeechBody",
        "Body_upload_v1_audio_voices_post",
        "Body_detect_v1_audio_detect_post",
    ):
        fields = described["components"]["schemas"][name]["properties"]
        assert [field for field, facts in fields.items() if not facts.get("description")] == []


def test_the_page_of_endpoints_lists_all_and_loads_nothing_from_elsewhere():
    with serving(FakeEngine()) as server:
        page = server.client.get("/docs").text
        description = server.client.get("/openapi.json")
        assert "url: '/openapi.json'" in page
        assert "WebSocket" in description.json()["info"]["description"]
        assert "docs/" not in description.text  # which only a clone has
        loaded = re.findall(r'(?:href|src)="([^"]+)"', page)
        assert len(loaded) == 3
        for path in loaded:
            assert path.startswith("/") and server.client.get(path).status_code == 200
