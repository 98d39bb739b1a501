"""SSML, whole and in pieces: its effects, its errors with their places, and its cost."""

from itertools import pairwise
from xml.etree import ElementTree

import markup_items
import pytest
from cpu_time import cpu_seconds
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen_megakernel.records import Manner
from qwen_megakernel.text.markup.items import Item, Pause, Replaced, SayAs, SentenceEnd, Words
from qwen_megakernel.text.markup.ssml import MAX_DEPTH, MAX_TAG_CHARS, SsmlParser

DOCUMENT = """<?xml version="1.0" encoding="UTF-8"?>
<speak version="1.1" xmlns="http://www.w3.org/2001/10/synthesis" xml:lang="en-US">
  <p><s>Hello &amp; welcome</s><s>It is <say-as interpret-as="time">3:05</say-as>.</s></p>
  <!-- a "comment" > with marks --><break time="500ms"/>
  <prosody rate="slow" volume="+6dB">This is <sub alias="a word">W</sub> \U0001f600 élan</prosody>
  <lang xml:lang="fr">bon<![CDATA[<jour>]]></lang>
  <phoneme alphabet="ipa" ph="təˈmɑːtoʊ">tomato</phoneme>
</speak>"""


def items_of(*pieces: str) -> tuple[list[Item], str | None]:
    return markup_items.items_of(SsmlParser(), *pieces)


def items(text: str) -> list[Item]:
    found, error = items_of(text)
    assert error is None
    return found


def words(text: str) -> str:
    return "".join(item.text for item in items(text) if isinstance(item, Words))


def test_a_document_becomes_words_pauses_and_manners():
    english, slow = Manner("en-US"), Manner("en-US", 0.75, 6)
    assert items(DOCUMENT) == [
        english,
        Words("Hello & welcome"),
        SentenceEnd(),
        Words(" It is "),
        SayAs("3:05", "time"),
        Words("."),
        SentenceEnd(),
        Words(" "),
        SentenceEnd(),
        Pause(0.5),
        slow,
        Words("This is "),
        Replaced("W", "a word"),
        Words(" \U0001f600 élan "),
        Manner("fr"),
        Words("bon<jour> "),
        english,
        Replaced("tomato", "təˈmɑːtoʊ", is_phonemes=True),
        Words(" "),
    ]


def test_a_document_cut_at_any_position_has_the_items_of_the_whole():
    whole = items_of(DOCUMENT)
    for cut in range(len(DOCUMENT) + 1):
        assert items_of(DOCUMENT[:cut], DOCUMENT[cut:]) == whole, cut
    assert items_of(*DOCUMENT) == whole


@pytest.mark.parametrize(
    "text",
    [
        "One<prosody rate='slow'> two</prosody> three",
        "a <<!DOCTYPE x>",
        "a </p> <!DOCTYPE x>",
        "a </p><!DOCTYPE x>",
    ],
)
def test_spaces_at_a_turn_and_hints_are_the_same_in_pieces(text: str):
    assert items_of(*text) == items_of(text)


def test_a_surrogate_pair_is_one_character_wherever_it_is_cut():
    text = 'a <break time="1s"/>\ud83d\ude00 b'
    whole = items_of(text)
    assert whole[0][-1] == Words("\U0001f600 b")
    for cut in range(len(text) + 1):
        assert items_of(text[:cut], text[cut:]) == whole, cut
    assert words("a \ud83d b \ude00") == "a b "


def test_a_fragment_and_several_documents_are_ssml_too():
    assert items('Hi<break time="1s"/>you') == [Words("Hi "), Pause(1), Words("you")]
    assert words("<speak>One.</speak> <speak>Two.</speak>") == "One. Two."


def test_words_have_the_text_that_an_xml_library_finds():
    text = "<speak>Tom &amp; <b>Jerry</b> &lt;3 &#233; <i>x</i>y</speak>"
    assert words(text) == " ".join("".join(ElementTree.fromstring(text).itertext()).split())


@pytest.mark.parametrize(
    ("attributes", "seconds"),
    [
        ('time="1.5s"', 1.5),
        ('time="250ms"', 0.25),
        ('time="+.5s"', 0.5),
        ('time="10s"', 10),
        ('strength="weak" time="2s"', 2),
        ('strength="x-strong"', 1.25),
        ("", 0.75),
    ],
)
def test_a_break_is_a_pause_of_its_time_or_strength(attributes: str, seconds: float):
    assert items(f"a<break {attributes}/>b")[1] == Pause(seconds)


def test_a_break_of_no_time_separates_words_alone():
    found, _ = items_of('a<break strength="none"/>b<break time="0s"/>c')
    assert found == [Words("a b c")]


@pytest.mark.parametrize(
    ("attributes", "speed", "volume"),
    [
        ('rate="fast"', 1.25, 0),
        ('rate="80%"', 0.8, 0),
        ('rate="+20%"', 1.2, 0),
        ('rate="-20%"', 0.8, 0),
        ('rate="1.5"', 1.5, 0),
        ('volume="loud"', 1, 6),
        ('volume="-6dB"', 1, -6),
        ('volume="silent"', 1, -60),
        ('rate="default" volume="medium"', 1, 0),
    ],
)
def test_prosody_has_rates_and_volumes(attributes: str, speed: float, volume: float):
    found = items(f"<prosody {attributes}>a</prosody>")
    manners = [item for item in found if isinstance(item, Manner)]
    assert manners == ([] if (speed, volume) == (1, 0) else [Manner(None, speed, volume)])


def test_prosody_in_prosody_multiplies_rates_and_adds_volumes_within_the_limits():
    text = (
        '<prosody rate="{0}" volume="-6dB"><prosody rate="{0}" volume="-60dB">a</prosody></prosody>'
    )
    assert items(text.format("50%"))[0] == Manner(None, 0.25, -60)
    assert items(text.format("3"))[0] == Manner(None, 4, -60)


def test_white_space_between_elements_changes_no_manner():
    found = items('a <prosody rate="fast"> <break time="1s"/> </prosody> b')
    assert found == [Words("a "), Pause(1), Words("b")]


@pytest.mark.parametrize(
    "text",
    [
        "<emphasis>a</emphasis>",
        "<amazon:effect name='whispered'>a</amazon:effect>",
        "<prosody pitch='high'>a</prosody>",
        "<say-as interpret-as='expletive'>a</say-as>",
        "<sub alias='a'>x<emphasis>y</emphasis></sub>",
        "<mark name='here'/>a",
        "<audio src='x.mp3'><desc>a cat</desc>a</audio>",
    ],
)
def test_what_is_not_known_is_ignored_with_one_warning(text: str):
    parser = SsmlParser()
    found = [*parser.feed(f"{text} {text}"), *parser.end()]
    said = [item.spoken if isinstance(item, Replaced) else item.text for item in found]
    assert "".join(said).replace("xy", "a").split() == ["a", "a"]
    (warning,) = parser.take_warnings()
    assert "SSML, line 1, column" in warning and not parser.take_warnings()


def test_attributes_that_documents_have_by_custom_bring_no_warning():
    parser = SsmlParser()
    parser.feed(DOCUMENT)
    parser.end()
    assert parser.take_warnings() == []


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("one\n two & three", "line 2, column 7", "not well-formed"),
        ("a < b", "line 1, column 4", "not well-formed"),
        ("<b>\n x</i>", "line 2, column 3", "mismatched tag"),
        ("a</speak>", "line 1, column 2", "mismatched tag"),
        ("ab &copy;", "line 1, column 4", "undefined entity"),
        ("\n <prosody rate='fast'>a", "line 2, column 2", "<prosody> is not closed"),
        ("ab <break tim", "line 1, column 4", "the text ends inside a tag"),
        ('a <break time="-1s"/>', "line 1, column 3", "must be a time"),
        ('a <break time="NaN"/>', "line 1, column 3", "must be a time"),
        ('a <break time="infs"/>', "line 1, column 3", "must be a time"),
        ('a <break time="1e3s"/>', "line 1, column 3", "must be a time"),
        ('a <break time="11s"/>', "line 1, column 3", "maximum is 10 s"),
        (f'a <break time="{"9" * 400}s"/>', "line 1, column 3", "must be a time"),
        ('<break time="10s"/>' * 7, "line 1, column 115", "longer than 60 s in total"),
        ('<break strength="long"/>', "line 1, column 1", "known: none, x-weak"),
        ('<prosody rate="-5">a</prosody>', "line 1, column 1", "must be one of"),
        ('<prosody rate="nan">a</prosody>', "line 1, column 1", "must be one of"),
        ('<prosody rate="9">a</prosody>', "line 1, column 1", "25% .. 400%"),
        ('<prosody volume="99dB">a</prosody>', "line 1, column 1", "-60dB .. 20dB"),
        ('<prosody volume="50">a</prosody>', "line 1, column 1", "must be one of"),
        ("<sub>a</sub>", "line 1, column 1", "no alias"),
        ("<phoneme>a</phoneme>", "line 1, column 1", "no ph"),
        ("<say-as>a</say-as>", "line 1, column 1", "no interpret-as"),
        ("<lang>a</lang>", "line 1, column 1", "no xml:lang"),
        ('<say-as interpret-as="date" format="xyz">1</say-as>', "line 1, column 1", "known: mdy"),
        ("<sub alias='x'>" + "a" * 300 + "</sub>", "line 1, column 16", "more than 256"),
        ("a<?xml version='1.0'?>", "line 1, column 2", "not at start"),
        ("<?xml" + "x" * 3000, "line 1, column 1", "has no end"),
        ("x</megakernel-root>", "line 1, column 2", "no opening tag"),
        ("<a " + "b" * 2 * MAX_TAG_CHARS, "line 1, column 1", "more than 2048 characters"),
        ("<a>" * 1000, f"line 1, column {3 * MAX_DEPTH + 1}", "nested deeper than 64"),
    ],
)
def test_a_fault_is_refused_with_line_and_column(text: str, place: str, reason: str):
    error = items_of(text)[1].split("\n")[0]
    assert error.startswith(f"SSML, {place}: ") and reason in error


BOMB = '<!DOCTYPE a [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]><speak>&b;</speak>'


@pytest.mark.parametrize(
    "text", [BOMB, f'<?xml version="1.0"?>\n{BOMB}', f"<speak>{BOMB}</speak>", "a <!ENTITY x 'y'>"]
)
def test_document_types_and_entities_are_refused(text: str):
    found, error = items_of(text)
    assert error and error.endswith("Document types and entities are not allowed.")
    assert "lol" not in str(found)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("a</speak>", "No element is open; remove the closing tag."),
        ("<p>a</s>", "The open element is <p> at line 1, column 1."),
        ("a &#0;", "XML has no character of this number; remove the reference."),
        ("a & b", "Write & as &amp; and < as &lt;."),
    ],
)
def test_the_hint_of_an_error_fits_its_cause(text: str, hint: str):
    _, error = items_of(text)
    assert error and error.endswith(hint)


def test_nothing_behind_a_fault_is_read_and_all_before_it_is():
    for pieces in (["One. <break time='x'/> Two."], [*"One. <break time='x'/> Two."]):
        found, error = items_of(*pieces)
        assert [item.text for item in found if isinstance(item, Words)] == ["One. "]
        assert error and "line 1, column 6" in error


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [*"<>/&;'\" =ab\n\ud83d\ude00\x00", "<break time='1s'/>", "<s>", "</s>", "<!--", "-->"]
        ),
        max_size=30,
    ),
    st.lists(st.integers(0, 100), max_size=6),
)
def test_any_text_in_any_pieces_gives_the_items_and_the_error_of_the_whole(
    pieces: list[str], cuts: list[int]
):
    text = "".join(pieces)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    assert items_of(*(text[a:b] for a, b in pairwise(places))) == items_of(text)


def seconds(text: str, size: int) -> float:
    """Return the CPU seconds that a text takes which arrives in pieces."""

    def parse() -> None:
        parser = SsmlParser()
        for first in range(0, len(text), size):
            parser.feed(text[first : first + size])
        parser.end()

    return cpu_seconds(parse)


@pytest.mark.ci
@pytest.mark.parametrize(
    "unit",
    [
        "a",
        "word ",
        "<s>a</s>",
        "<i/>",
        "<!-- x -->",
        '<prosody rate="fast">a</prosody>',
        f"<a {'b' * 1900}='c'/>",
    ],
)
@pytest.mark.parametrize("size", [3, 4000])
def test_the_time_is_linear_in_the_length(unit: str, size: int):
    short = unit * (20_000 // len(unit))
    ratio = seconds(short * 4, size) / max(seconds(short, size), 1e-3)
    assert ratio < 9  # 4 for linear, 16 for quadratic time


def test_twenty_thousand_tags_are_read_with_one_warning():
    parser = SsmlParser()
    found = [*parser.feed("<i/>a" * 20_000), *parser.end()]
    assert "".join(item.text for item in found if isinstance(item, Words)) == "a" * 20_000
    assert len(parser.take_warnings()) == 1
