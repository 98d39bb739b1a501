"""GET /docs: every endpoint, the WebSocket included, in words for a person with only the server."""

import re

from fake_engine import FakeEngine
from live_server import serving


def test_the_page_of_endpoints_lists_all_and_loads_nothing():
    with serving(FakeEngine()) as server:
        page = server.client.get("/docs").text
        paths = server.client.get("/openapi.json").json()["paths"]
    assert all(f" {path}</code>" in page for path in paths)
    assert "WS /v1/audio/speech/stream" in page
    assert "`" not in page and "docs/serving.md" not in page
    assert set(re.findall(r"(?:href|src)=([^>]+)>", page)) == {"openapi.json", "."}
