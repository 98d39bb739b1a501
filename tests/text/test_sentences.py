"""Long text cut into parts: at sentences, then clauses, then words; nothing lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_samples import TRICKY, any_texts

from qwen_megakernel.text import sentences
from qwen_megakernel.text.cleaning import clean
from qwen_megakernel.text.parts import MAX_PART_CHARS, MIN_PART_CHARS
from qwen_megakernel.text.sentences import pack_sentences, unspeakable

SENTENCE = "The quick brown fox jumps over the lazy dog, again and again."  # 61 characters


def split(text: str) -> list[str]:
    return pack_sentences(clean(text), MIN_PART_CHARS, MAX_PART_CHARS)


def test_short_text_is_one_part():
    assert split(" " + SENTENCE + " ") == [SENTENCE]
    assert split("...") == ["..."]


def test_sentences_are_packed_into_parts_of_the_right_length():
    parts = split(" ".join([SENTENCE] * 12))
    assert parts == [" ".join([SENTENCE] * 4)] * 3


def test_no_small_rest_is_left_where_sentences_can_be_shared_out():
    parts = split(" ".join([SENTENCE] * 5))  # a full first part would leave 61 characters
    assert sorted(part.count(".") for part in parts) == [2, 3]


@pytest.mark.parametrize(
    "text",
    [
        "Dr. Smith met Mr. J. Doe at 3.30 p.m. on the 4th. " * 10,
        'He said: "Stop!" Then he left. (Really.) Was it so? Yes! ' * 10,
        "First paragraph\n\nsecond paragraph, without a full stop\n\n" * 10,
    ],
)
def test_parts_end_where_sentences_end(text):
    parts = split(text)
    assert len(parts) > 1
    for part in parts:
        assert part.endswith((".", "!", "?", ")", '"', "paragraph", "stop"))
        assert not part.endswith(("Dr.", "Mr.", "J.", "3."))


def test_a_long_sentence_is_cut_at_clauses_then_at_words():
    clauses = ", ".join(["seven words are in every single clause"] * 30) + "."
    parts = split(clauses)
    assert all(part.endswith((",", ".")) for part in parts)
    parts = split(" ".join(["lengthy"] * 200))
    assert set(" ".join(parts).split()) == {"lengthy"}
    assert all(len(part) <= 300 for part in parts)


def test_wide_characters_count_by_their_duration():
    sentence = "我叫通义千问，是阿里云的开源大模型。"  # 16 ideographs and two marks: 50
    parts = split(sentence * 20)
    assert all(part.endswith("。") for part in parts)
    assert len(parts) == 4  # 20 * 50 / 300
    assert [len(part) for part in split("字" * 250)] == [100, 100, 50]


@pytest.mark.parametrize("offset", range(7))
def test_a_word_without_end_is_cut_between_characters(offset):
    text = "x" * offset + "e\u0301" * 400
    parts = split(text)
    assert "".join(parts) == text
    assert not any(part.startswith("\u0301") for part in parts)
    parts = split("x" * offset + "👨\u200d👩\u200d👧y" * 100)
    assert not any(part.startswith("\u200d") or part.endswith("\u200d") for part in parts)


@pytest.mark.parametrize("mark", ["\u0301", "\u200d"])
def test_a_character_of_thousands_of_marks_is_looked_at_a_few_times(monkeypatch, mark):
    text, looks = "a" + mark * 20_000, []
    inside = sentences._is_inside_character

    def counted(text, place):
        looks.append(place)
        return inside(text, place)

    monkeypatch.setattr(sentences, "_is_inside_character", counted)
    assert "".join(split(text)) == text
    assert len(looks) < 2 * len(text)


def test_a_run_of_punctuation_is_no_part_of_its_own():
    dashes = "-" * 310
    assert split(f"{SENTENCE} {dashes}") == [f"{SENTENCE} {dashes}"]
    assert split(f"{dashes} {SENTENCE}") == [f"{dashes} {SENTENCE}"]


def test_markdown_asterisks_survive():
    text = "*Note.* **Bold words** are kept. * A list. " * 20
    assert "".join("".join(split(text)).split()) == "".join(text.split())


@settings(max_examples=300, deadline=None)
@given(text=any_texts | st.lists(st.sampled_from([SENTENCE, *TRICKY]), max_size=40).map(" ".join))
def test_parts_lose_nothing_but_white_space_and_all_can_be_spoken(text):
    text = clean(text)
    parts = pack_sentences(text, 20, 30)
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(part == part.strip() for part in parts)
    if not unspeakable(text):
        assert not any(map(unspeakable, parts))
