"""GET /docs: every endpoint, the WebSocket included, in words for a person with only the server."""

import re

from fake_engine import FakeEngine
from live_server import serving


def test_the_page_of_endpoints_lists_all_and_loads_nothing_from_elsewhere():
    with serving(FakeEngine()) as server:
        page = server.client.get("/docs").text
        description = server.client.get("/openapi.json")
        assert (
            "url: '/openapi.json'" in page
            and "WebSocket" in description.json()["info"]["description"]
        )
        assert "docs/" not in description.text  # which only a clone has
        loaded = re.findall(r'(?:href|src)="([^"]+)"', page)
        assert len(loaded) == 3
        for path in loaded:
            assert path.startswith("/") and server.client.get(path).status_code == 200
