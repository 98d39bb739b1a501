"""Speech from a trained voice, compared with transformers' generate: codes, streams, ends."""

import json
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from fixtures import module_fixture
from sheen_toys import CODEBOOK_SIZE, GREEDY, HELLO, MORNING, needs_espeak, speaker
from spies import results_of, watch
from tiny_speech import feed_and_end
from tolerances import PCM16, SNAC_CHUNKS_F32

from qwen_megakernel import families
from qwen_megakernel.engine.stream_state import StreamState
from qwen_megakernel.errors import (
    EmptyText,
    ModelFilesError,
    SetupError,
    TaskError,
    TextTooLong,
    TokenOrderError,
    UnknownLanguage,
    UnknownVoice,
    UsageError,
)
from qwen_megakernel.sheen import decoder, model_folder
from qwen_megakernel.sheen.engine import SheenEngine
from qwen_megakernel.sheen.tokens import text_ids
from qwen_megakernel.tts_engine import TTSEngine
from qwen_megakernel.voice import Voice

# These options make any allowed token likely.
HOT = {"temperature": 100.0, "subtalker_temperature": 100.0, "top_k": 0, "subtalker_top_k": 0}
WARM = {"temperature": 2.0, "subtalker_temperature": 2.0}

engine = module_fixture(lambda trained: speaker(trained, num_slots=3))
refusing = module_fixture(lambda trained: speaker(trained, order="refuse"))


def test_a_sentence_learned_by_heart_is_reproduced(samples, engine, refusing):
    assert (samples[0].frames != samples[1].frames).mean() > 0.9
    for sample in samples:
        for each in (engine, refusing):
            speech = each.synthesize(sample.text, **GREEDY)
            assert speech.codes.tolist() == sample.frames.tolist()
            assert speech.finish_reason == "eos"
        assert speech.audio.shape == (len(sample.frames) * 2048,)


def test_auto_says_why_it_stays_on_torch(trained, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with SheenEngine.from_pretrained(trained, backend="auto", warmup=False) as engine:
        assert engine.backend == "torch"
        assert engine.why == "no GPU is visible; backend cpu runs only Qwen3-TTS"


def test_tokens_are_those_of_transformers(trained, refusing, samples):
    """The whole vocabulary at every place, and a key/value cache, as `generate` has them."""
    model = model_folder.load_language_model(trained)
    tokenizer = model_folder.load_tokenizer(trained)
    audio = model_folder.audio_tokens(trained, tokenizer)
    prompt = [*text_ids(tokenizer, HELLO), audio.start_id]
    with torch.inference_mode():
        made = model.generate(
            torch.tensor([prompt]), do_sample=False, repetition_penalty=1.0, max_new_tokens=200
        )
    ids = made[0, len(prompt) :].tolist()
    assert ids[-1] == audio.end_id
    assert audio.frames_of(ids[:-1]).tolist() == refusing.synthesize(HELLO, **GREEDY).codes.tolist()


def test_audio_is_the_codec_on_the_codes(engine, codec):
    speech = engine.synthesize(HELLO, seed=3, max_frames=12)
    assert np.abs(speech.audio - codec.decode(speech.codes)).max() < PCM16
    assert np.abs(engine.decode(speech.codes) - codec.decode(speech.codes)).max() == 0
    assert (engine.sample_rate, engine.seconds_per_frame) == (24000, 2048 / 24000)


def test_speed_and_sample_rate_are_those_of_every_family(engine):
    plain = engine.synthesize(HELLO, seed=3, max_frames=12)
    heard = engine.synthesize(HELLO, seed=3, max_frames=12, speed=2, sample_rate=16000)
    assert heard.codes.tolist() == plain.codes.tolist()
    assert heard.sample_rate == 16000
    assert len(heard.audio) == round(len(plain.audio) / 2 * 16000 / 24000)


@pytest.mark.parametrize(("first", "size"), [(1, 1), (1, 10), (3, 4)])
def test_chunks_are_one_speech_whatever_their_size(engine, codec, first, size):
    options = {"seed": 3, "max_frames": 12}
    whole = codec.decode(engine.synthesize(HELLO, **options).codes)
    stream = engine.stream(HELLO, first_chunk_frames=first, chunk_frames=size, **options)
    chunks = list(stream)
    sound = np.concatenate([chunk.samples for chunk in chunks]) / 32768
    assert np.abs(sound - whole).max() < PCM16
    # The voice is trained here, and on some CPUs ends before the codec has seen enough to begin.
    num_frames = len(stream.codes)
    is_long = num_frames >= first + codec.lookahead
    assert chunks[0].num_frames == (first if is_long else num_frames)
    assert [chunk.frame_index for chunk in chunks] == np.cumsum(
        [0, *(chunk.num_frames for chunk in chunks[:-1])]
    ).tolist()
    assert all(len(chunk.samples) == 2048 * chunk.num_frames for chunk in chunks)
    assert stream.codes.tolist() == engine.synthesize(HELLO, **options).codes.tolist()


def test_the_first_chunk_leaves_before_the_last_frame_is_drawn(engine, codec, monkeypatch):
    """The first chunk needs one frame and the codec's lookahead, of a speech of many frames."""
    steps, drawn_at_chunk = results_of(monkeypatch, engine._loop.stages.decoder, "_step"), []

    def num_drawn():
        return sum(result.num_frames[0] for result in steps)

    watch(monkeypatch, StreamState, "deliver", lambda *_, **__: drawn_at_chunk.append(num_drawn()))
    engine.synthesize(HELLO, seed=1, max_frames=12, first_chunk_frames=1, **HOT)
    assert num_drawn() == 12
    assert drawn_at_chunk[0] == 1 + codec.lookahead < num_drawn()


def test_a_seed_is_one_speech_and_other_streams_do_not_change_it(engine):
    options = {"max_frames": 8} | WARM
    alone = engine.synthesize(HELLO, seed=5, **options).codes.tolist()
    streams = [engine.stream(text, seed=5, **options) for text in (MORNING, HELLO, MORNING)]
    for stream in streams:
        list(stream)
    assert streams[1].codes.tolist() == alone
    assert streams[0].codes.tolist() == streams[2].codes.tolist() != alone
    assert engine.synthesize(HELLO, seed=6, **options).codes.tolist() != alone


def test_sampled_codes_stay_in_their_layers(engine):
    codes = engine.synthesize(HELLO, seed=1, max_frames=10, **HOT).codes
    assert codes.shape[1] == 7 and codes.min() >= 0 and codes.max() < CODEBOOK_SIZE


def test_a_token_out_of_order_is_refused_by_name(refusing):
    with pytest.raises(TokenOrderError, match=r"Frame \d: .* at place \d of a frame, where layer"):
        refusing.synthesize(HELLO, seed=1, **HOT)
    assert refusing.synthesize(HELLO, **GREEDY).finish_reason == "eos"  # the next speech works


def test_a_limit_ends_with_length(engine):
    speech = engine.synthesize(HELLO, max_frames=2, **GREEDY)
    assert (len(speech.codes), speech.finish_reason) == (2, "length")


def test_long_text_is_spoken_in_parts(engine):
    text = " ".join(["həˈloʊ wɝld ɡʊd ˈmɔɹnɪŋ."] * 8)
    speech = engine.synthesize(text, max_frames=40, **GREEDY)
    assert speech.parts >= 2


def test_text_that_arrives_in_pieces_is_spoken_as_one(engine):
    whole = engine.synthesize(HELLO, **GREEDY).codes.tolist()
    stream = feed_and_end(engine.stream(text_open=True, **GREEDY), HELLO[:3], HELLO[3:])
    assert stream.codes.tolist() == whole and stream.finish_reason == "eos"


def test_text_in_pieces_begins_with_the_first_whole_part(engine):
    """Speech begins before the text ends: a hundred characters and a sentence end are a part."""
    stream = engine.stream(text_open=True, **GREEDY)
    for word in ("həˈloʊ wɝld ɡʊd ˈmɔɹnɪŋ. " * 7).split(" "):
        stream.feed(word + " ")
    assert next(stream).num_frames == 1
    assert feed_and_end(stream).text.num_parts >= 2


def test_closing_a_stream_frees_its_slot(engine):
    streams = [engine.stream(HELLO, seed=1, max_frames=100) for _ in range(6)]
    for stream in streams:
        stream.close()
        list(stream)
        assert stream.finish_reason in ("cancelled", "eos", "length", "repeat")
    assert engine.synthesize(HELLO, **GREEDY).finish_reason == "eos"
    assert engine.num_active == 0


def test_the_engine_lists_one_voice_and_no_language(engine):
    assert engine.voices == ["my-voice"] and engine.languages == ["auto"]
    assert engine.find_voice(None) == engine.find_voice("my-voice") == "my-voice"


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ([HELLO], {"voice": "alloy"}, UnknownVoice, 'Unknown voice "alloy"'),
        ([HELLO], {"voice": Voice("x", np.zeros(4, np.float32))}, TaskError, "'x' cannot be used"),
        ([HELLO], {"instruct": "Whisper."}, TaskError, "no instruct"),
        ([HELLO], {"text_feed": "stepwise"}, TaskError, "stepwise"),
        ([HELLO], {"language": "german"}, UnknownLanguage, "german"),
        (["..."], {}, EmptyText, ""),
        ([HELLO], {"temperature": 0}, UsageError, "temperature is 0"),
        ([], {}, UsageError, "either a text or text_open=True"),
    ],
)
def test_what_one_voice_cannot_do_is_refused(engine, arguments, options, error, words):
    with pytest.raises(error, match=words):
        engine.stream(*arguments, **options)


def test_a_recording_and_a_part_that_is_too_long_are_refused(engine):
    with pytest.raises(TaskError, match="A recording cannot be used"):
        engine.create_voice("ref.wav")
    with pytest.raises(TextTooLong, match="trained with at most 1024"):
        list(engine.stream("a b " * 700, split="off"))


def test_a_recording_is_encoded_as_the_dataset_was(engine, recordings, samples):
    codes = engine.encode(recordings / "wav" / "0001.wav")
    assert codes.tolist() == samples[0].frames.tolist()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"dtype": "int8"}, UsageError, "dtype is 'int8'"),
        ({"order": "guess"}, UsageError, "order is 'guess'; known: repair, refuse"),
        ({"max_frames": 600}, UsageError, "max_frames is 600, which with the prompt needs 5224"),
        ({"num_slots": 0}, UsageError, "num_slots is 0"),
        ({"max_frames": 0}, UsageError, "max_frames is 0"),
        ({"voices": "."}, TaskError, "A folder of voices cannot be used"),
    ],
)
def test_options_that_cannot_work_are_refused(trained, options, error, words):
    with pytest.raises(error, match=words):
        SheenEngine.from_pretrained(str(trained), **options)


@pytest.mark.parametrize(
    ("capability", "dtype"), [((9, 0), torch.bfloat16), ((7, 5), torch.float32)]
)
def test_it_computes_in_bf16_on_a_gpu_that_has_it(trained, monkeypatch, capability, dtype):
    """It gets as far as the codec, which is on a GPU that is not there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr("qwen_megakernel.sheen.engine.SnacCodec", Mock(side_effect=MemoryError))
    engine = SheenEngine.__new__(SheenEngine)
    with pytest.raises(MemoryError):
        engine.__init__(model_folder.find(str(trained)), backend="torch", device="cuda")
    assert engine.dtype == dtype


def test_a_folder_without_a_voice_is_refused(tmp_path):
    with pytest.raises(ModelFilesError, match=r"has no sheen\.json"):
        speaker(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("sheen.json", "{", "is not valid JSON"),
        ("tokenizer.json", "{", "cannot be loaded"),
        ("model.safetensors", "x", "cannot be loaded"),
        ("generation_config.json", "{", "is not valid JSON"),
        ("snac/pytorch_model.bin", "x", "cannot be loaded"),
        ("snac/config.json", None, "has no config"),
    ],
)
def test_damaged_files_are_named(voice_folder, name, content, words):
    path = voice_folder / name
    path.write_text(content) if content else path.unlink()
    with pytest.raises(ModelFilesError, match=words):
        speaker(voice_folder)


def test_a_model_of_another_training_is_refused(voice_folder, base_folder):
    for name in ("model.safetensors", "config.json"):
        (voice_folder / name).write_bytes((base_folder / name).read_bytes())
    with pytest.raises(ModelFilesError, match="embeddings; the last audio token has id"):
        speaker(voice_folder)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"weights": "int8"}, "A trained voice has no int8 weights.\nOmit the option."),
        ({"keep_packed": True}, "A trained voice has no packed weights.\nOmit --keep-packed."),
        ({"adapter": "anna"}, "A trained voice takes no adapter.\nOmit --adapter."),
    ],
)
def test_options_that_a_trained_voice_lacks_are_refused_before_it_is_loaded(
    trained, monkeypatch, option, message
):
    monkeypatch.setattr(SheenEngine, "__init__", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(UsageError) as refused:
        families.load_engine(str(trained), **option)
    assert str(refused.value) == message


def test_the_families_are_distinguished_by_their_files(trained, model_folder):
    with families.load_engine(str(trained), warmup=False) as engine:
        assert isinstance(engine, SheenEngine)
    tiny = str(model_folder("tiny-random"))
    with families.load_engine(tiny, warmup=False) as engine:
        assert isinstance(engine, TTSEngine)


@pytest.fixture
def english_folder(voice_folder):
    config = json.loads((voice_folder / "sheen.json").read_text())
    (voice_folder / "sheen.json").write_text(json.dumps(config | {"espeak": "en-us"}))
    return voice_folder


@needs_espeak
def test_a_voice_trained_on_text_phonemises_its_text(english_folder, engine):
    with speaker(english_folder) as english:
        assert english.languages == ["auto", "english"]
        said = english.synthesize("Hello, world.", language="en-GB", **GREEDY).codes.tolist()
        assert said == engine.synthesize("həlˈoʊ, wˈɜːld.", **GREEDY).codes.tolist()
    with speaker(english_folder, phonemes=True) as plain:
        said = plain.synthesize("Hello, world.", **GREEDY).codes.tolist()
        assert said == engine.synthesize("Hello, world.", **GREEDY).codes.tolist()
        marked = 'Hello, <phoneme ph="world.">w</phoneme>'
        assert said == plain.synthesize(marked, text_format="ssml", **GREEDY).codes.tolist()


def test_such_a_voice_without_espeak_is_refused_before_its_weights_are_read(
    english_folder, monkeypatch
):
    monkeypatch.setenv("PATH", "")
    (english_folder / "model.safetensors").unlink()
    with pytest.raises(SetupError, match="espeak-ng, which is not installed"):
        SheenEngine.from_pretrained(str(english_folder), backend="torch")


def test_the_warm_up_speaks_greedily_and_at_random_and_is_not_dumped(
    trained, tmp_path, monkeypatch
):
    draws = set()

    def note(logits, how, *, codebook, **address):
        draws.add((how.do_sample, codebook))

    dump = tmp_path / "codes.tsv"
    monkeypatch.setenv("TTS_DUMP_CODES", str(dump))
    watch(monkeypatch, decoder, "draw", note)
    with SheenEngine.from_pretrained(str(trained), backend="torch") as engine:
        assert engine.spent_ms["vocoder"] > 0
        assert not dump.exists()
    assert draws == {(at_random, place) for at_random in (True, False) for place in range(7)}


def test_chunk_tolerance_is_below_what_int16_keeps():
    assert 1.5 * SNAC_CHUNKS_F32 < PCM16
