"""A trained voice behind Pipecat, HTTP and the command line."""

import asyncio

import numpy as np
import pytest
import soundfile
from fixtures import module_fixture
from sheen_toys import HELLO, MORNING, speaker
from tolerances import PCM16_STEP

from qwen_megakernel.audio import to_float32, to_int16
from qwen_megakernel.checkpoint import hub
from qwen_megakernel.cli import main
from qwen_megakernel.engine.speech_engine import SpeechEngine
from qwen_megakernel.marking import COMMENT, MarkKey
from qwen_megakernel.records import Files
from qwen_megakernel.sound.watermark import Watermark

OPTIONS = {"seed": 11, "max_frames": 8}

engine = module_fixture(lambda trained: speaker(trained, num_slots=2))


def pcm_of(engine, text):
    """Return the engine's speech without an adapter."""
    return b"".join(chunk.pcm16 for chunk in engine.stream(text, **OPTIONS))


def test_the_engine_has_the_attributes_of_every_family(engine):
    """Demos, server and benchmarks read these of any family."""
    for name in SpeechEngine.__annotations__:
        getattr(engine, name)
    for name in Files.__annotations__:
        getattr(engine.files, name)


# ---- Pipecat -------------------------------------------------------------------------------------


@pytest.fixture
def pipecat_service(engine):
    pytest.importorskip("pipecat")
    from qwen_megakernel.pipecat.service import MegakernelTTSService

    def make(**options):
        settings = MegakernelTTSService.Settings(**OPTIONS | options.pop("settings", {}))
        return MegakernelTTSService(engine=engine, settings=settings, **options)

    return make


async def test_pipecat_speaks_sentences_as_the_engine_does(engine, pipecat_service):
    from pipelines import Run

    async with Run(pipecat_service()) as run:
        await run.turn(f"{HELLO}. ", f"{MORNING}.", stops=1)
    assert run.pcm == pcm_of(engine, f"{HELLO}.") + pcm_of(engine, f"{MORNING}.")
    assert run.errors == []


async def test_pipecat_speaks_a_turn_that_arrives_by_the_word(engine, pipecat_service):
    from pipecat.frames.frames import LLMFullResponseStartFrame, LLMTextFrame
    from pipecat.services.tts_service import TextAggregationMode
    from pipelines import Run

    service = pipecat_service(text_aggregation_mode=TextAggregationMode.TOKEN)
    async with Run(service) as run:
        await run.send(LLMFullResponseStartFrame())
        for start in range(0, len(HELLO), 4):
            await run.send(LLMTextFrame(HELLO[start : start + 4]))
            await asyncio.sleep(0.01)
        await run.turn(stops=1)
    assert run.pcm == pcm_of(engine, HELLO) and run.errors == []


async def test_pipecat_loads_a_voice_by_its_folder(trained):
    pytest.importorskip("pipecat")
    from qwen_megakernel.pipecat.service import MegakernelTTSService

    service = MegakernelTTSService(model_path=str(trained))
    assert service._settings.model == str(trained)
    await service.cleanup()


# ---- HTTP ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def live(engine):
    pytest.importorskip("fastapi")
    from live_server import serving

    with serving(engine) as live:
        yield live


# The names that HTTP clients use for OPTIONS; the official max_new_tokens counts one more.
BODY = {"seed": 11, "max_new_tokens": 9}


def test_http_answers_with_the_engines_audio(engine, live):
    answer = live.speak(HELLO, response_format="pcm", voice="my-voice", **BODY)
    assert answer.status_code == 200, answer.text
    assert answer.content == pcm_of(engine, HELLO)
    assert answer.headers["X-Sample-Rate"] == "24000" and answer.headers["X-Seed"] == "11"
    assert live.speak(HELLO, **BODY).content[:4] == b"RIFF"


def test_http_streams_events(engine, live):
    from live_server import sse

    events = sse(live.speak(HELLO, stream=True, **BODY).text)
    (done,) = [event for event in events if event["type"] == "speech.audio.done"]
    assert done["n_samples"] == 2048 * done["n_steps"] == len(pcm_of(engine, HELLO)) // 2


def test_http_lists_the_only_voice_and_refuses_others(live):
    listed = live.client.get("/v1/audio/voices").json()["voices"]
    assert [voice["id"] for voice in listed] == ["my-voice"]
    answer = live.speak(HELLO, voice="nobody")
    assert answer.status_code == 400 and "my-voice" in answer.json()["error"]["message"]
    answer = live.speak(HELLO, instructions="Whisper.")
    assert answer.status_code == 400 and "no instruct" in answer.json()["error"]["message"]


# ---- command line --------------------------------------------------------------------------------


def run(*words):
    return main.main([*map(str, words)])


def test_speak_and_sheen_infer_say_the_same(trained, tmp_path, capsys):
    words = ("--model", trained, "--seed", 11, "--max-frames", 8, "--output")
    outputs = tmp_path / "speak.wav", tmp_path / "infer.flac"
    assert run("speak", HELLO, *words, outputs[0]) == 0
    dump = ("--stream", "--dump-codes", tmp_path / "codes.tsv")
    assert run("sheen", "infer", HELLO, *words, outputs[1], *dump) == 0
    told = capsys.readouterr().err
    assert "backend torch" in told and "frames 0..0" in told and "seed 11" in told
    first, second = (soundfile.read(path, dtype="int16")[0] for path in outputs)
    assert first.tolist() == second.tolist() and len(first) % 2048 == 0
    rows = (tmp_path / "codes.tsv").read_text().splitlines()
    assert len(rows) == len(first) // 2048 and len(rows[0].split("\t")) == 7


def test_sheen_infer_marks_its_speech_and_says_so(trained, tmp_path):
    key = MarkKey.create(tmp_path / "mark.key", 5)
    heard, comments = [], []
    for mark in (("--mark", "none"), ("--mark-key", tmp_path / "mark.key")):
        words = ("--model", trained, "--seed", 11, "--max-frames", 8, "-o", tmp_path / "a.flac")
        assert run("sheen", "infer", HELLO, *words, *mark) == 0
        with soundfile.SoundFile(tmp_path / "a.flac") as file:
            rate = file.samplerate
            heard.append(file.read(dtype="int16"))
            comments.append(file.comment)
    assert comments == ["", COMMENT]
    by_hand = to_int16(Watermark(key, rate).push(to_float32(heard[0])))
    # A chain's float samples are rounded once with the mark, here also once before it.
    assert np.abs(by_hand.astype(int) - heard[1]).max() <= PCM16_STEP
    assert not np.array_equal(*heard)


def test_errors_have_their_exit_codes(trained, tmp_path, capsys):
    def sheen(*words):
        return run("sheen", *words), capsys.readouterr().err

    assert sheen("infer", HELLO, "--model", tmp_path)[0] == 4
    assert sheen("infer", "...", "--model", trained)[0] == 2
    code, told = sheen("infer", HELLO, "--model", trained, "--stdout", "--output", "x.wav")
    assert code == 2 and "cannot be combined" in told
    (tmp_path / "metadata.csv").write_text("0001|a")
    code, told = sheen("prepare", tmp_path, "--snac", tmp_path, "--output", tmp_path / "x.jsonl")
    assert code == 4 and "has no config.json" in told
    code, told = sheen("verify", "snac", "--snac", "./nothing")
    assert code == 4 and "no folder ./nothing, and it is not a hub id" in told
    words = ("--output", tmp_path, "--precision", "fp32", "--snac", trained / "snac")
    code, told = sheen("train", tmp_path / "none.jsonl", *words, "--model", trained)
    assert code == 2 and "none.jsonl cannot be read" in told


def test_a_missing_dataset_is_reported_before_any_download(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(hub, "fetch", lambda *_, **__: pytest.fail("asked the hub"))
    assert run("sheen", "prepare", tmp_path) == 2
    assert "metadata.csv cannot be read: No such file" in capsys.readouterr().err
    words = ("--output", tmp_path / "voice")
    assert run("sheen", "train", tmp_path / "none.jsonl", *words) == 2
    assert "none.jsonl cannot be read: No such file" in capsys.readouterr().err


def test_a_codec_that_cannot_be_had_names_its_own_option(capsys, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert run("sheen", "verify", "snac", "--snac", "nobody/nothing") == 4
    told = capsys.readouterr().err
    assert "--snac PATH" in told and "--model" not in told


def test_a_model_that_cannot_be_had_is_named(dataset_file, trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = ("--snac", trained / "snac", "--output", tmp_path / "voice", "--local-files-only")
    assert run("sheen", "train", dataset_file, "--model", "nobody/nothing", *words) == 4
    told = capsys.readouterr().err
    assert "nobody/nothing cannot be loaded" in told
    assert "step" not in told  # no empty progress bar before the error
    assert not (tmp_path / "voice").exists()
