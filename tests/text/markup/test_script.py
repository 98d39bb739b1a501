"""The parser of scripts: which colons name a speaker, however the text arrives."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen_megakernel.records import Manner
from qwen_megakernel.text.markup.items import Item, Pause, Words
from qwen_megakernel.text.markup.script import MAX_LABEL_CHARS, ScriptParser


def parsed(*pieces: str) -> list[Item]:
    """The items of a text in pieces; neighbouring words are joined."""
    parser, found = ScriptParser(), []
    items = [item for piece in pieces for item in parser.feed(piece)] + parser.end()
    assert parser.error is None
    for item in items:
        if found and isinstance(item, Words) and isinstance(found[-1], Words):
            item = Words(found.pop().text + item.text)
        found.append(item)
    return found


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("anna: Hi.", [Manner(voice="anna"), Words(" Hi.")]),
        (" anna (very happy) :Hi", [Manner(voice="anna", style="very happy"), Words("Hi")]),
        ("a(2)+b(1): Hi", [Manner(voice="a(2)+b(1)"), Words(" Hi")]),
        ("a+b (.5): Hi", [Manner(voice="a+b (.5)"), Words(" Hi")]),
        ("a(2)+b (calm): Hi", [Manner(voice="a(2)+b", style="calm"), Words(" Hi")]),
        ("a+b(2.) (calm): Hi", [Manner(voice="a+b(2.)", style="calm"), Words(" Hi")]),
        ("李：你好", [Manner(voice="李"), Words("你好")]),
        ("anna:", [Manner(voice="anna")]),
        ("10:30 it is", [Words("10:30 it is")]),
        ("https://a.b", [Words("https://a.b")]),
        (":-)", [Words(":-)")]),
        ("x" * MAX_LABEL_CHARS + "y: z", [Words("x" * MAX_LABEL_CHARS + "y: z")]),
        ("a: b: c\nd", [Manner(voice="a"), Words(" b: c\nd")]),
        ("a: b[pause 1s]c", [Manner(voice="a"), Words(" b"), Pause(1.0), Words("c")]),
    ],
)
def test_a_colon_after_a_name_turns_to_its_voice(text: str, items: list[Item]):
    assert parsed(text) == parsed(*text) == items


@settings(max_examples=200)
@given(st.lists(st.text("ab :：/\n1(+[", max_size=9), max_size=8))
def test_a_script_is_parsed_alike_wherever_it_is_cut(pieces: list[str]):
    assert parsed(*pieces) == parsed("".join(pieces)) == parsed(*"".join(pieces))
