"""The OpenAPI description is true: requests drawn from it get responses that it describes."""

import pytest
from fixtures import module_fixture

pytest.importorskip("schemathesis")
import schemathesis
from fake_engine import FakeEngine
from hypothesis import HealthCheck, Phase, settings
from live_server import serving
from schemathesis.specs.openapi.checks import positive_data_acceptance
from waiting import wait_until

from qwen_megakernel.server import app

pytestmark = pytest.mark.ci

schema = schemathesis.openapi.from_dict(app.create_app(FakeEngine()).openapi())

live = module_fixture(lambda: serving(FakeEngine(rtf=0.0001, num_slots=64), max_queue=64))


@schema.parametrize()
@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
def test_every_operation_answers_as_described(case, live):
    # A schema cannot describe these conditions: known voices, known languages, text with a word.
    case.call_and_validate(base_url=live.url, excluded_checks=[positive_data_acceptance])


def test_nothing_is_left_of_it(live):
    live.settle()
    wait_until(lambda: not live.running.server_state.tasks)
    assert not live.service.engine.speaking


def test_the_description_names_what_clients_send(live):
    described = live.client.get("/openapi.json").json()
    body = described["components"]["schemas"]["SpeechBody"]["properties"]
    openai = "model input voice instructions response_format speed stream_format"
    ours = (
        "language seed temperature top_k top_p repetition_penalty max_new_tokens ref_audio ref_text"
        " x_vector_only_mode non_streaming_mode first_chunk_frames stream volume sample_rate"
    )
    assert set(f"{openai} {ours}".split()) <= set(body)
    for path in ("/v1/audio/voices", "/v1/audio/models", "/v1/models", "/health", "/ready"):
        assert "get" in described["paths"][path]
    failed = described["paths"]["/health"]["get"]["responses"]["503"]["content"]
    schema = failed["application/json"]["schema"]
    assert (schema["type"], schema["additionalProperties"]) == ("object", {"type": "string"})
    assert "422" not in described["paths"]["/v1/audio/speech"]["post"]["responses"]
