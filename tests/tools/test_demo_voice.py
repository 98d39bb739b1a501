"""The demonstration voice speaks its text: words, end and length, on every backend."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from fixtures import module_fixture, module_value
from pipecat.services.tts_service import TextAggregationMode
from pipelines import Run
from tiny_speech import feed_and_end, tiny_engine
from tolerances import (
    ANOTHER_SENTENCE,
    LOGITS_F32,
    PCM16,
    PCM16_STEP,
    SENTENCE_DISTANCE,
    WORD_ERROR_RATE,
    WORD_ERROR_RATE_OF_FEW,
)

from qwen_megakernel.checkpoint.loading import DEMO_VOICE, DEMO_VOICE_FOLDER
from qwen_megakernel.pipecat.service import MegakernelTTSService
from qwen_megakernel.speech_options import Sampling
from tools.demo_voice import samples, shards
from tools.demo_voice.evaluate import REFERENCES, Reader, recognised, summary
from tools.demo_voice.package import MAX_BYTES
from tools.demo_voice.shards import FEEDS
from tools.validation import official

# Bars somewhat under the measured figures (benchmarks/results/demo_voice.json); the few sentences
# of the default run scatter more. A voice that rambles or stops short is broken whatever its words.
MIN_MELODY, MIN_RISING = 0.75, 0.8  # correlation with the reference's; share of questions
MIN_ENDED = 0.99
MIN_LENGTH_RIGHT = 0.98
MIN_TOLD_APART = 0.98
HEARD = 60  # sentences that the recogniser hears here; evaluate.py lets it hear all

ROOT = Path(__file__).parents[2]
TEXT = "Your table for two is ready."

reader = module_value(lambda: Reader(DEMO_VOICE))
engine = module_fixture(lambda: tiny_engine(DEMO_VOICE, device="cpu", num_slots=2))
references = module_value(lambda: shards.read(REFERENCES))


def check(reader: Reader, references: list[shards.Utterance], feed: str, every: int) -> dict:
    some = references[::every]
    found = summary([reader.read(u, feed, seed=i) for i, u in enumerate(some)])
    assert found["ended"] >= MIN_ENDED, found
    assert found["length_right"] >= min(MIN_LENGTH_RIGHT, 1 - 1 / len(some)), found
    assert found["distance"] <= SENTENCE_DISTANCE, found
    assert found["melody"]["correlation"] >= MIN_MELODY, found
    return found


@pytest.mark.ci
@pytest.mark.parametrize("feed", FEEDS)
def test_unseen_sentences_end_in_time_with_their_melody(reader, references, feed):
    check(reader, references, feed, 25)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("feed", FEEDS)
def test_all_unseen_sentences_end_in_time_with_their_melody(reader, references, feed):
    found = check(reader, references, feed, 1)
    assert found["sentences"] == 300 and found["questions_rise"] >= MIN_RISING, found


@pytest.fixture(scope="module")
def written(references) -> list[tuple[int, shards.Utterance]]:
    """Return the sentences written by hand, with the seeds of evaluate.py."""
    return [(i, u) for i, u in enumerate(references) if u.kind == "written"]


@pytest.mark.parametrize(
    ("feed", "every", "bar"),
    [
        pytest.param("stepwise", 15, WORD_ERROR_RATE_OF_FEW, marks=pytest.mark.ci),
        pytest.param("stepwise", 1, WORD_ERROR_RATE, marks=pytest.mark.slow),
        pytest.param("full", 1, WORD_ERROR_RATE, marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(1200)
def test_a_recogniser_hears_the_words_of_unseen_sentences(reader, written, feed, every, bar):
    pytest.importorskip("tools.demo_voice.recogniser")
    some = written[:HEARD:every]
    found = recognised(reader, [reader.read(u, feed, seed=i) for i, u in some])
    assert found["sentences"] == len(some)
    assert found["word_error_rate"] <= bar, found
    assert found["sentence_told_apart"] >= MIN_TOLD_APART, found


@pytest.mark.ci
def test_the_recogniser_fails_a_voice_that_says_something_else(reader, written):
    pytest.importorskip("tools.demo_voice.recogniser")
    some = [utterance for _, utterance in written[:HEARD:15]]
    mute = [replace(u, codes=np.zeros_like(u.codes)) for u in some]
    wrong = [replace(u, codes=v.codes) for u, v in zip(some, some[1:] + some[:1], strict=True)]
    for voice in (mute, wrong):
        found = recognised(reader, voice)
        assert found["word_error_rate"] > 0.8 and found["sentence_told_apart"] == 0, found


def test_the_committed_figures_of_the_recogniser_meet_the_bar():
    result = json.loads((ROOT / "benchmarks" / "results" / "demo_voice.json").read_text())
    for feed in FEEDS:
        found = result["recogniser"][feed]
        assert found["sentences"] >= HEARD
        assert found["word_error_rate"] <= WORD_ERROR_RATE
        assert found["sentence_told_apart"] >= MIN_TOLD_APART


def test_another_sentence_is_recognised_as_another(reader, references):
    """The measure on which the bars rest recognises a sentence that was not requested."""
    right, wrong = references[0], references[2]
    codes, _ = reader.codes(wrong.text, 200)
    swapped = replace(right, text=wrong.text)
    assert reader.read(swapped, "full", seed=0).distance > ANOTHER_SENTENCE
    assert reader.read(wrong, "full", seed=0).codes.shape == codes.shape


@pytest.mark.ci
def test_the_emulated_kernel_draws_the_same_codes(reader):
    emulated = Reader(DEMO_VOICE, backend="emulation", max_frames=100)
    for sampling in (Sampling.greedy(), reader.checkpoint.sampling):
        request = {"sampling": sampling, "seed": 4}
        expected, ended = reader.codes("Good morning.", 60, **request)
        codes, _ = emulated.codes("Good morning.", len(expected) + 1, **request)
        assert ended and len(expected) > 5
        np.testing.assert_array_equal(codes, expected)


def test_an_instruction_is_ignored_not_read_aloud(engine, caplog):
    plain = engine.synthesize(TEXT, seed=3)
    instructed = engine.synthesize(TEXT, seed=3, instruct="Speak slowly and sadly, please.")
    np.testing.assert_array_equal(instructed.codes, plain.codes)
    assert "instruct is ignored" in caplog.text


@pytest.mark.parametrize("feed", ["stepwise", pytest.param("full", marks=pytest.mark.ci)])
def test_the_official_classes_say_the_same(engine, official_model, feed):
    model = official_model(DEMO_VOICE)
    options = {"language": "english", "do_sample": False}
    theirs = options | {"subtalker_dosample": False, "non_streaming_mode": feed == "full"}
    wavs, rate = model.generate_custom_voice(TEXT, speaker="demo", **theirs)
    ours = options | {"subtalker_do_sample": False, "text_feed": feed}
    ours = engine.synthesize(TEXT, voice="demo", **ours)
    assert rate == engine.sample_rate and ours.finish_reason == "eos"
    made = engine.decode(ours.codes)  # of which less silence and no offset are heard
    assert len(wavs[0]) == len(made)
    assert np.abs(wavs[0] - made).max() <= PCM16


def test_the_official_logits_are_ours(reader, official_model, monkeypatch):
    """Along a whole sentence, the stored bf16 weights give both implementations the same logits."""
    decoder, taps = reader._decoder, {}
    step = decoder.step
    sampling = Sampling.greedy().override(repetition_penalty=1.0)
    with monkeypatch.context() as patch:
        patch.setattr(decoder, "step", lambda slots, count: step(slots, count, taps=taps))
        codes, _ = reader.codes(TEXT, 80, sampling=sampling)
    model = official_model(DEMO_VOICE)
    template = f"<|im_start|>assistant\n{TEXT}<|im_end|>\n<|im_start|>assistant\n"
    prompt = {"input_ids": model._tokenize_texts([template]), "languages": ["Auto"]}
    prompt |= {"speakers": [None], "non_streaming_mode": True}
    run = official.generate(model, sampling, 80, **prompt)
    np.testing.assert_array_equal(run.codes, codes)
    theirs = np.array(run.talker_logits)
    assert len(theirs) == len(codes) + 1  # and those from which EOS was drawn
    ours = taps["talker"][0, : len(theirs)].numpy()
    assert np.abs(ours - theirs).max() <= np.abs(ours).max() * LOGITS_F32


def test_streamed_in_any_chunks_it_is_the_whole(engine):
    whole = engine.synthesize(TEXT, seed=5)
    for first, most in ((1, 1), (1, 7), (3, 10)):
        stream = engine.stream(TEXT, seed=5, first_chunk_frames=first, chunk_frames=most)
        pieces = np.concatenate([chunk.samples for chunk in stream])
        np.testing.assert_array_equal(stream.codes, whole.codes)
        assert np.abs(pieces / 32768 - whole.audio).max() <= PCM16


def test_fed_by_the_word_it_is_the_whole_text_stepwise(engine):
    whole = engine.synthesize(TEXT, seed=6, text_feed="stepwise")
    first, *rest = TEXT.split(" ")
    stream = engine.stream(text_open=True, seed=6)
    feed_and_end(stream, first, *(f" {word}" for word in rest))
    np.testing.assert_array_equal(stream.codes, whole.codes)
    assert stream.finish_reason == "eos"


@pytest.mark.parametrize("mode", list(TextAggregationMode))
async def test_a_pipeline_speaks_the_sentence_it_is_given(engine, references, mode):
    recogniser = pytest.importorskip("tools.demo_voice.recogniser").Recogniser()
    sentences = [u.text for u in references if u.kind == "written" and recogniser.knows(u.text)]
    wanted = sentences.index(TEXT)
    tts = MegakernelTTSService(
        engine=engine, text_aggregation_mode=mode, settings=MegakernelTTSService.Settings(seed=7)
    )
    async with Run(tts) as run:
        await run.turn(*(f"{word} " for word in TEXT.split()), stops=1, timeout_s=60)
    assert run.errors == []
    samples = np.frombuffer(run.pcm, np.int16) / 32768
    assert recogniser.choose(samples, engine.sample_rate, sentences) == wanted


@pytest.mark.parametrize(
    "index",
    [
        pytest.param(i, marks=[pytest.mark.slow] if i > 1 else [])
        for i in range(len(samples.SENTENCES))
    ],
)
def test_the_committed_sample_is_what_it_says(engine, index):
    committed, rate = soundfile.read(samples.FOLDER / samples.file_name(index), dtype="int16")
    spoken = samples.speak(engine, index)
    assert rate == engine.sample_rate and len(committed) == len(spoken)
    assert np.abs(committed.astype(int) - spoken).max() <= PCM16_STEP  # roundings of another CPU


def test_the_page_of_samples_is_written_by_its_script():
    assert (samples.FOLDER / "README.md").read_text(encoding="utf-8") == samples.page()
    assert (samples.FOLDER / samples.PICTURE).read_bytes().startswith(b"\x89PNG")


def test_it_is_small():
    size = sum(path.stat().st_size for path in DEMO_VOICE_FOLDER.rglob("*") if path.is_file())
    assert size <= MAX_BYTES
