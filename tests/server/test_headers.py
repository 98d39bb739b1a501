"""Values of headers: what HTTP allows, whatever the client's text is."""

import logging
from urllib.parse import unquote

import pytest
from fake_engine import FakeEngine
from hypothesis import given
from hypothesis import strategies as st
from live_server import assert_error, serving

from qwen_megakernel.server import responses
from qwen_megakernel.server.middleware import check_headers
from qwen_megakernel.server.responses import MAX_HEADER_CHARS, header_value

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=2000)


@given(ANY_TEXT)
def test_a_value_is_legal_and_decodes_to_the_beginning_of_the_text(text: str):
    value = header_value(text)
    check_headers([(b"x-warning", value.encode("ascii"))])
    assert len(value) <= MAX_HEADER_CHARS
    # Half a surrogate pair has no bytes.
    wanted = text.strip().encode(errors="replace").decode()
    assert wanted.startswith(unquote(value, errors="strict"))
    if len(value) < MAX_HEADER_CHARS - 12:  # the bytes of one character, encoded
        assert unquote(value) == wanted


def test_a_cut_value_does_not_end_with_a_space():
    assert header_value("a" * (MAX_HEADER_CHARS - 1) + " b") == "a" * (MAX_HEADER_CHARS - 1)


@pytest.mark.parametrize("value", [b" a", b"a ", b"\ta", b"a\n", b"a\r\nX-A: b", b"a\0b", b"\x7f"])
def test_what_http_does_not_allow_is_refused_by_name(value: bytes):
    with pytest.raises(ValueError, match="header x-warning has the value"):
        check_headers([(b"x-seed", b"7"), (b"x-warning", value)])


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_header_that_cannot_be_sent_is_an_error_with_a_line_in_the_log(loop, monkeypatch, caplog):
    monkeypatch.setattr(responses, "header_value", lambda text: f"{text} ")
    with serving(FakeEngine(), loop=loop) as live, caplog.at_level(logging.ERROR):
        for form in ({}, {"stream": False}, {"stream_format": "sse"}):
            assert_error(live.speak("5", normalize="on", **form), 500, "internal_error")
            assert live.speak("Hello.").status_code == 200
        live.settle()
    assert caplog.text.count("The response header x-spoken-text has the value b'five '") == 3


def test_a_range_of_the_page_that_is_no_range_is_ignored():
    with serving(FakeEngine()) as server:
        for value in ("bytes=x", "bytes=9999999-", "lines=1-2", "bytes=0-3"):
            answer = server.client.get("/", headers={"Range": value})
            assert answer.status_code == 200 and answer.text.startswith("<!doctype html")
