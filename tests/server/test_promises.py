"""The numbers that docs/operations.md promises under abuse are those of the code."""

import re
from pathlib import Path

import pytest

from qwen_megakernel import printable
from qwen_megakernel.server import error_responses, middleware, responses, schemas, serving
from qwen_megakernel.server.settings import ServerSettings

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
DEFAULTS = ServerSettings()
MB, KB = 2**20, 2**10


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (r"exceeds (\d+) characters", responses.MAX_HEADER_CHARS),
        (r"at most (\d+) MB of it", DEFAULTS.max_body_bytes / MB),
        (r"([\d,]+) JSON values", schemas.MAX_JSON_VALUES),
        (r"(\d+) MB of a recording", DEFAULTS.max_upload_bytes / MB),
        (r"none is needed, (\d+) KB", middleware.SMALL_BODY / KB),
        (r"holds (\d+) MB of all", DEFAULTS.max_buffered_bytes / MB),
        (r"one that is over (\d+) KB", middleware.SMALL_BODY / KB),
        (r"answers with (ten) faults", error_responses._MAX_FAULTS),
        (r"and (\d+) characters of a value", error_responses._MAX_ECHO_CHARS),
        (r"holds (\d+) of them beside", serving._IDLE_CONNECTIONS),
        (r"beside (\d+) requests", DEFAULTS.max_connections),
        (r"connection after (\d+) s \|\n\| text for", DEFAULTS.body_timeout_s),
        (r"after (\d+) s without a word", DEFAULTS.idle_timeout_s),
        (r"connection after (\d+) s \|\n\| a `Host`", DEFAULTS.stall_timeout_s),
        (r"with (\d+) characters of a quote", printable.MAX_QUOTE_CHARS),
        (r"stores (\d+) of them", DEFAULTS.max_uploads),
    ],
)
def test_a_number_of_the_page_is_the_codes(words: str, value: float):
    section = PAGE.read_text("utf-8").partition("## What the server promises")[2]
    found = re.findall(words, section.partition("\n## ")[0])
    assert len(found) == 1, words
    number = {"ten": "10"}.get(found[0], found[0]).replace(",", "")
    assert float(number) == value
