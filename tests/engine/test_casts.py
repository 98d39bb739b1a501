"""Texts with several speakers: each part has the voice of its own, however the text arrives."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tiny_speech import fed, tiny_engine

from qwen_megakernel import TTSEngine, Voice
from qwen_megakernel.errors import MarkupError

WIDTH, GROUPS = 128, 16
GREEDY = {"seed": 3, "do_sample": False, "subtalker_do_sample": False}
CHUNKS = {"first_chunk_frames": 4, "chunk_frames": 4}  # the vocoder rounds by chunk
SCRIPT = "anna: Hello there.\nHow are you?\nben: At 10:30 I am well.\n\nanna: Good."
SSML = (
    '<voice name="anna">Hello there. How are you?</voice>'
    '<voice name="ben">At ten <voice name="anna">I</voice> am well.</voice>'
)


@pytest.fixture(scope="module")
def tts(tmp_path_factory: pytest.TempPathFactory, cache_folder: Path) -> Iterator[TTSEngine]:
    folder, rng = tmp_path_factory.mktemp("voices"), np.random.default_rng(0)
    codes = rng.integers(0, 64, (6, GROUPS), dtype=np.int32)
    for voice in (  # one by its x-vector, which speaks as text comes, and one in context
        Voice("anna", rng.standard_normal(WIDTH).astype(np.float32)),
        Voice("ben", rng.standard_normal(WIDTH).astype(np.float32), codes, "What a day it is!"),
    ):
        voice.save(folder / f"{voice.name}.voice.safetensors")
    with tiny_engine("tiny-random-base", dtype="float32", max_frames=24, voices=folder) as engine:
        yield engine


def spoken(tts: TTSEngine, *pieces: str, **options: object) -> tuple[list, bytes]:
    stream = fed(tts, *pieces, **options)
    samples = b"".join(chunk.pcm16 for chunk in stream)
    return stream.codes.tolist(), samples


@pytest.mark.ci
def test_a_dialogue_of_200_turns_equals_200_requests(tts):
    """With greedy draws: at random, the draws of a part depend on its number, too."""
    turns = [(("anna", "ben")[k % 2], ("Yes.", "No, I see.", "Why?")[k % 3]) for k in range(200)]
    script = "\n".join(f"{who}: {said}" for who, said in turns)
    spoken = tts.synthesize(script, text_format="script", **CHUNKS, **GREEDY)
    alone = {t: tts.synthesize(t[1], voice=t[0], **CHUNKS, **GREEDY) for t in set(turns)}
    assert spoken.codes.tolist() == [row for t in turns for row in alone[t].codes.tolist()]
    assert spoken.audio.tobytes() == b"".join(alone[turn].audio.tobytes() for turn in turns)
    assert alone["anna", "Yes."].codes.tolist() != alone["ben", "Yes."].codes.tolist()


@pytest.mark.parametrize(("text_format", "text"), [("script", SCRIPT), ("ssml", SSML)])
def test_a_cast_speaks_alike_however_its_text_is_cut(tts, text_format, text):
    options = {"text_format": text_format, "seed": 5}
    whole = spoken(tts, text, **options)
    cuts = [[text[:at], text[at:]] for at in range(3, len(text), 17)]
    for pieces in (list(text), *cuts):
        assert spoken(tts, *pieces, **options) == whole


def test_a_warning_of_a_missing_voice_needs_words_without_one(tts, caplog):
    for text_format, text in (("script", SCRIPT), ("ssml", SSML)):
        tts.synthesize(text, text_format=text_format)
    assert not caplog.records
    tts.synthesize(f"Now.\n{SCRIPT}", text_format="script")
    [record] = caplog.records
    assert "names no voice" in record.message


def test_words_and_sentences_name_their_speaker(tts):
    with tts.stream(f"Now.\n{SCRIPT}", text_format="script", **GREEDY) as stream:
        for _ in stream:
            pass
        words = [(word.word, word.speaker) for word in stream.times.words]
        segments = [(each.text, each.speaker) for each in stream.times.segments]
    assert words[:3] == [("Now.", None), ("Hello", "anna"), ("there.", "anna")]
    assert words[-1] == ("Good.", "anna") and ("10:30", "ben") in words
    assert segments == [
        ("Now.", None),
        ("Hello there.", "anna"),
        ("How are you?", "anna"),
        ("At 10:30 I am well.", "ben"),
        ("Good.", "anna"),
    ]


@pytest.mark.parametrize(
    ("text_format", "text", "place"),
    [
        ("script", "anna: Hello.\nNote: this", "Script, line 2, column 1"),
        ("script", "anna: Hello.\n ben (sad): No.", "Script, line 2, column 1"),
        ("script", "anna: Hello.\n/x.voice.safetensors: No.", "Script, line 2, column 1"),
        ("script", "anna: Hello [pause 99s].", "[pause], line 1, column 13"),
        ("ssml", 'Hello.\n<voice name="carl">No.</voice>', "SSML, line 2, column 1"),
        ("ssml", "Hello.\n <voice>No.</voice>", "SSML, line 2, column 2"),
        ("ssml", '<voice name="/x.voice.safetensors">No.</voice>', "SSML, line 1, column 1"),
    ],
)
def test_a_broken_cast_is_refused_by_line_and_column(tts, text_format, text, place):
    with pytest.raises(MarkupError) as caught:
        tts.stream(text, text_format=text_format)
    assert caught.value.what.startswith(f"{place}: ")
    if "Note" in text or "carl" in text:
        assert "anna, ben" in caught.value.what
    with pytest.raises(MarkupError, match="line"):
        list(fed(tts, *text, text_format=text_format))


def test_the_speakers_of_a_model_speak_a_script(cache_folder):
    with tiny_engine("tiny-random", dtype="float32", max_frames=24) as engine:
        first, second = engine.voices[:2]
        spoken = engine.synthesize(
            f"{first}: Hello.\n{second}: Hello.", text_format="script", **GREEDY
        )
        alone = [engine.synthesize("Hello.", voice=who, **GREEDY) for who in (first, second)]
    assert spoken.codes.tolist() == [row for each in alone for row in each.codes.tolist()]
