"""The spoken text for a text with markup: its words, its cuts, and the user's words behind them."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen_megakernel.errors import MarkupError
from qwen_megakernel.records import Manner
from qwen_megakernel.text.markup.marked_text import MarkedText, new_parser
from qwen_megakernel.text.reading.lexicon import Lexicon
from qwen_megakernel.text.reading.reader import Reading, TextReader
from qwen_megakernel.text.request_text import Cut
from qwen_megakernel.text.sentences import sentence_spans
from qwen_megakernel.timing.words import spoken_spans, word_spans

READING = Reading(True)
NAMES = {"en-US": "english", "fr": "french", "ja": "japanese"}
TEXT = (
    '<speak xml:lang="en-US">Dr. Smith <break time="1s"/>paid $5 on '
    '<say-as interpret-as="date" format="dmy">3/4/2024</say-as> for <sub alias="2 kg">it</sub>. '
    '<lang xml:lang="fr">21 francs</lang> <prosody rate="slow"><s>That is Qwen</s></prosody>'
    '<break time="300ms"/></speak>'
)


def marked(
    text_format: str = "ssml", normalize: str = "on", *, takes_phonemes: bool = False
) -> tuple[MarkedText, TextReader]:
    lexicon = Lexicon.of({"Qwen": "kwen"})
    reader = READING.reader(normalize, "auto", lexicon, has_markup=True)
    assert reader
    made = MarkedText(new_parser(text_format), reader, NAMES.get, takes_phonemes=takes_phonemes)
    return made, reader


class Passage(NamedTuple):
    """Words that are spoken in one manner, and the pause before them."""

    text: str
    manner: Manner
    pause_s: float


def whole(made: MarkedText, text: str) -> list[Passage]:
    """Return the passages of a complete text; raises the error in its markup."""
    found: list[Passage] = []
    words, cut = "", Cut(Manner())
    for step in [*made.feed(text), *made.end(), Cut(Manner())]:
        if isinstance(step, str):
            words += step
            continue
        if words or cut.pause_s:
            found.append(Passage(words, cut.manner, cut.pause_s))
        words, cut = "", step
    if made.error:
        raise made.error
    return found


def passages(text: str, **options: bool | str) -> list[Passage]:
    return whole(marked(**options)[0], text)  # type: ignore[arg-type]


def spoken(text: str, **options: bool | str) -> str:
    return "".join(passage.text for passage in passages(text, **options))


def test_words_are_read_cut_at_pauses_and_manners_each_in_its_language():
    assert passages(TEXT) == [
        Passage("doctor Smith ", Manner("english"), 0),
        Passage(
            "paid five dollars on April third, twenty twenty-four for two kilograms. ",
            Manner("english"),
            1,
        ),
        Passage("vingt et un francs ", Manner("french"), 0),
        Passage("That is kwen. ", Manner("english", 0.75), 0),
        Passage("", Manner("english", 0.75), 0.3),
    ]


def test_each_written_word_knows_what_is_spoken_for_it():
    made, reader = marked()
    whole(made, TEXT)
    assert made.written == "Dr. Smith paid $5 on 3/4/2024 for it. 21 francs That is Qwen\u2029"
    said = reader.spoken
    assert said.text == spoken(TEXT)
    spans = word_spans(made.written)
    words = [
        (made.written[a:b], said.text[c:d].strip())
        for (a, b), (c, d) in zip(spans, spoken_spans(said.pieces, spans), strict=True)
    ]
    assert words == [
        ("Dr.", "doctor"),
        ("Smith", "Smith"),
        ("paid", "paid"),
        ("$5", "five dollars"),
        ("on", "on"),
        ("3/4/2024", "April third, twenty twenty-four"),
        ("for", "for"),
        ("it.", "two kilograms."),
        ("21", "vingt et un"),
        ("francs", "francs"),
        ("That", "That"),
        ("is", "is"),
        ("Qwen", "kwen"),
    ]


def steps(pieces: Sequence[str]) -> tuple[list[Cut | str], str, str, str | None]:
    """Return words and cuts, with neighbouring words joined; the written and the spoken text; the
    error."""
    made, reader = marked()
    found: list[Cut | str] = []
    for step in [*(step for piece in pieces for step in made.feed(piece)), *made.end()]:
        if isinstance(step, str) and found and isinstance(found[-1], str):
            found[-1] += step
        else:
            found.append(step)
    return found, made.written, reader.spoken.text, str(made.error) if made.error else None


def test_a_text_cut_at_any_position_gives_the_words_of_the_whole():
    whole = steps([TEXT])
    for cut in range(len(TEXT) + 1):
        assert steps([TEXT[:cut], TEXT[cut:]]) == whole, cut
    assert steps(TEXT) == whole


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                *["5", "$3.50", "kg ", " ", "Dr. ", "Qwen", ". ", "a", "&", "<", "年", "New "],
                "<break time='1s'/>",
                "<s>",
                "</s>",
                "<prosody rate='fast'>",
                "</prosody>",
                "<sub alias='5 km'>x</sub>",
                "<say-as interpret-as='characters'>A5</say-as>",
            ]
        ),
        max_size=25,
    ),
    st.lists(st.integers(0, 150), max_size=6),
)
def test_any_text_in_any_pieces_gives_the_words_of_the_whole(pieces: list[str], cuts: list[int]):
    text = "".join(pieces)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    assert steps([text[a:b] for a, b in pairwise(places)]) == steps([text])


def test_sentences_get_the_mark_that_they_lack():
    assert spoken("<s>One</s><s>Two!</s><p>“Three”</p><s></s>") == "One. Two! “Three”. "
    assert spoken('<s xml:lang="ja">水</s>').strip() == "水。"


def test_sentences_are_apart_in_the_written_text():
    for text in ("<s>One two</s><s>Three</s> Four", "<p><s>One two</s> <s>Three</s></p>Four"):
        made, _ = marked()
        whole(made, text)
        spans = sentence_spans(made.written)
        assert [made.written[a:b].strip() for a, b in spans] == ["One two", "Three", "Four"]


def test_without_normalize_the_markup_alone_is_read():
    text = 'Pay $5 <say-as interpret-as="cardinal">5</say-as> <sub alias="2 kg">it</sub>'
    assert spoken(text, normalize="off") == "Pay $5 five 2 kg"


def test_plain_text_with_pauses_obeys_no_tag():
    found = passages("Pay $5 <b>now</b> & [pause 2s]go", text_format="pauses")
    assert found[1] == Passage("go", Manner(), 2)
    assert "<b>now</b> &" in spoken("<b>now</b> & x", text_format="pauses", normalize="off")


def test_phonemes_are_for_voices_that_take_them():
    text = 'a <phoneme ph="təˈmɑːtoʊ">tomato</phoneme> b'
    assert spoken(text, takes_phonemes=True) == "a təˈmɑːtoʊ b"
    made, _ = marked()
    assert "".join(passage.text for passage in whole(made, text * 2)) == "a tomato ba tomato b"
    (warning,) = made.take_warnings()
    assert "accepts no phonemes" in warning


def test_a_language_that_the_model_does_not_speak_has_no_effect():
    made, _ = marked()
    assert whole(made, 'a <lang xml:lang="xx">b</lang>') == [Passage("a b", Manner(), 0)]
    (warning,) = made.take_warnings()
    assert "'xx'" in warning and "does not speak this language" in warning


def test_what_is_no_number_is_read_as_it_is_written():
    made, _ = marked()
    text = '<say-as interpret-as="ordinal">some</say-as> day'
    assert whole(made, text) == [Passage("some day", Manner(), 0)]
    assert made.take_warnings() == [
        "<say-as> cannot read 'some' as ordinal, so it is read as it is written"
    ]


def test_broken_markup_of_a_whole_text_is_refused():
    with pytest.raises(MarkupError, match="SSML, line 1, column 4: mismatched tag"):
        passages("One</s>")


@pytest.mark.parametrize(
    ("text_format", "text"),
    [
        ("script", "anna: Hello.\r\nben (glad): Hi!\r\n"),
        ("ssml", "<?xml version='1.0'?><speak>Hello. <voice name='ben'>Hi!</voice></speak>"),
        ("pauses", "[pause 1s] Hello."),
    ],
)
def test_a_byte_order_mark_of_a_file_is_no_text(text_format, text):
    expected = whole(marked(text_format)[0], text)
    made, _ = marked(text_format)
    assert whole(made, f"\ufeff{text}") == expected
    assert "\ufeff" not in made.written
