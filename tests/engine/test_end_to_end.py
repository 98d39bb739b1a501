"""Text to samples through the engine, against the official wrapper.

The same text, voice, language and instruct go into this engine and into the wrapper; codes
must be identical (greedy, float32), and samples equal.
"""

import functools
from itertools import product
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import truths
from prompt_toys import official_item
from tiny_speech import tiny_engine
from tolerances import AUDIO_F32, PCM16

pytestmark = pytest.mark.own_backend

TEXT = "Hello there, how are you today?"
LONG_TEXT = "It is cold today. We will meet you at the hotel, and then we go to the station. " * 2
LONG_TEXT = LONG_TEXT.strip()  # we drop white space at the ends; the official wrapper speaks it
GREEDY = {"do_sample": False, "subtalker_do_sample": False}
OFFICIAL_GREEDY = {"do_sample": False, "subtalker_dosample": False}
NUM_FRAMES = 14  # longer than the text, so padding begins


@pytest.fixture(scope="module")
def engine(cache_folder):
    """engine(name, backend): made once, in float32; by default on the plain decoder."""
    made = {}

    def get(name, backend="torch"):
        if (name, backend) not in made:
            made[name, backend] = tiny_engine(name, backend=backend, dtype="float32")
        return made[name, backend]

    yield get
    for tts in made.values():
        tts.close()


def run_official(model, call):
    """Codes and samples of one call of an official wrapper."""
    codes = []
    inner = model.model.generate

    def recording(*args, **kwargs):
        result = inner(*args, **kwargs)
        codes.extend(result[0])
        return result

    model.model.generate = recording
    try:
        wavs, rate = call(max_new_tokens=NUM_FRAMES + 1, **OFFICIAL_GREEDY)
    finally:
        model.model.generate = inner
    assert rate == 24000
    return codes[0].numpy(), wavs[0]


@pytest.fixture
def compare(engine, official_model):
    """compare(name, method, text, **options): one request to both, its options as ours are named.

    Args:
        method: of the official wrapper.
    """

    def compare(name, method, text=TEXT, **options):
        theirs = {key: options[key] for key in ("language", "instruct") if key in options}
        if isinstance(voice := options.get("voice"), str):
            theirs["speaker"] = voice
        elif voice is not None:
            theirs["voice_clone_prompt"] = [official_item(voice)]
        if "text_feed" in options:
            theirs["non_streaming_mode"] = options["text_feed"] == "full"
        model = official_model(name)
        call = functools.partial(getattr(model, method), text, **theirs)
        codes, wav = run_official(model, call)
        options |= {"max_frames": NUM_FRAMES, "chunk_frames": 5, "split": "off"}
        for backend in ("torch", "cpu"):
            ours = engine(name, backend).synthesize(text, **GREEDY, **options)
            assert np.array_equal(ours.codes, codes)
            assert len(ours.audio) == len(codes) * 1920
            # The official package, which cuts the reference at a float product, may lose a sample.
            missing = len(ours.audio) - len(wav)
            assert 0 <= missing <= 1 and (missing == 0 or voice is not None)
            assert np.abs(ours.audio[missing:] - wav).max() <= PCM16

    return compare


def some(in_every_run, *values):
    """Every combination of `values`; .ci/run has those that are not `in_every_run`."""
    return [
        pytest.param(*each, marks=[] if each in in_every_run else pytest.mark.ci)
        for each in product(*values)
    ]


# Eric speaks a dialect, which replaces Chinese and "auto".
VOICES = (("vivian", "auto", False), ("eric", "chinese", True), ("vivian", "english", True))


@pytest.mark.parametrize(
    ("speaker", "language", "full"),
    some(VOICES, ("vivian", "eric"), ("auto", "chinese", "english"), (False, True)),
)
def test_custom_voice(compare, speaker, language, full):
    feed = "full" if full else "stepwise"
    options = {"voice": speaker, "language": language, "text_feed": feed}
    compare("tiny-random", "generate_custom_voice", **options)


def test_custom_voice_of_the_large_model_follows_instruct(compare):
    options = {"voice": "ryan", "language": "english", "instruct": "Speak slowly."}
    compare("tiny-random-1.7b", "generate_custom_voice", **options)


@pytest.mark.parametrize("instruct", ["A calm old man.", ""])
def test_voice_design(compare, instruct):
    options = {"instruct": instruct, "language": "french"}
    compare("tiny-random-design", "generate_voice_design", **options)


BASE, LARGE_BASE = "tiny-random-base", "tiny-random-base-1.7b"
CLONES = ((BASE, False, True), (BASE, True, False), (LARGE_BASE, True, True))


@pytest.mark.parametrize(
    ("name", "in_context", "full"), some(CLONES, (BASE, LARGE_BASE), (False, True), (False, True))
)
def test_cloned_voice(compare, engine, name, in_context, full):
    voice = truths.voice("in context" if in_context else "x-vector")(engine(name))
    feed = "full" if full else "stepwise"
    compare(name, "generate_voice_clone", voice=voice, language="english", text_feed=feed)


def test_a_long_text_in_one_go(compare):
    options = {"voice": "serena", "language": "english"}
    compare("tiny-random", "generate_custom_voice", LONG_TEXT, **options)


def test_the_vocoder_gives_the_official_samples(engine, official_model):
    name = "tiny-random"
    codes = np.random.default_rng(0).integers(0, 2048, (40, 16))
    decoder = official_model(name).model.speech_tokenizer.model.decoder
    with torch.inference_mode():
        expected = decoder(torch.from_numpy(codes.T[None])).flatten().numpy()
    assert np.abs(engine(name).decode(codes) - expected).max() <= AUDIO_F32


def test_prompts_are_made_before_any_frame_and_constants_once(engine, monkeypatch):
    """The second request embeds only its own text (docs/ledger.md, E10)."""
    tts = engine("tiny-random")
    seen = Mock(wraps=tts._prompts._embeddings)
    monkeypatch.setattr(tts._prompts, "_embeddings", seen)
    body = tts._tokenizer.encode(TEXT).body.tolist()
    for _ in range(2):
        seen.reset_mock()
        tts.synthesize(TEXT, voice="vivian", max_frames=2)
    calls = seen.text.call_args_list + seen.codec.call_args_list
    assert [call.args[0].tolist() for call in calls] == [body]
