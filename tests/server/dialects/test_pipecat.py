"""Pipecat's own services for the hosted voices, in a pipeline, with this server's URL."""

import asyncio
from typing import Any

import pytest
from fake_engine import ExactTimes, FakeEngine
from live_server import LiveServer, serving

pytest.importorskip("pipecat")
import aiohttp
from pipecat.frames.frames import (
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.services.cartesia.tts import CartesiaHttpTTSService, CartesiaTTSService
from pipecat.services.deepgram.tts import DeepgramHttpTTSService, DeepgramTTSService
from pipecat.services.elevenlabs.tts import ElevenLabsHttpTTSService, ElevenLabsTTSService
from pipelines import SENTENCE, SPEECH, TOKEN, Run
from spies import results_of
from tolerances import ROUNDED_STEP_S
from waiting import wait_until

SAID = "Hello there my friend. It is a fine day, is it not?"
SOCKETS = {  # class, the argument that takes the URL, and the path of its WebSocket
    "elevenlabs": (ElevenLabsTTSService, "url", ""),
    "cartesia": (CartesiaTTSService, "url", "/tts/websocket"),
    "deepgram": (DeepgramTTSService, "base_url", ""),
}
TIMED = ("elevenlabs", "cartesia")  # their services report words; Deepgram's API has no times


def make(name: str, live: LiveServer, voice: str = "vivian", **options: Any) -> Any:
    """Return an unmodified service that talks to the server over a WebSocket."""
    kind, argument, path = SOCKETS[name]
    options |= {argument: live.url.replace("http", "ws") + path}
    return kind(api_key="k", settings=kind.Settings(voice=voice), **options)


def spoken(engine: FakeEngine) -> str:
    """Return all text that the engine has got, with single spaces."""
    return " ".join(" ".join(stream.text.spoken for stream in engine.streams).split())


@pytest.mark.parametrize("name", SOCKETS)
@pytest.mark.parametrize("mode", [SENTENCE, TOKEN], ids=str)
async def test_an_answer_is_spoken_whole(live, engine, name, mode):
    async with Run(make(name, live, text_aggregation_mode=mode)) as run:
        await run.turn(*(f"{word} " for word in SAID.split()), stops=1)
        assert spoken(engine) == SAID
        assert run.pcm == b"".join(stream.sent for stream in engine.streams)
    assert run.order(*SPEECH) == list(SPEECH) and run.errors == []


@pytest.mark.parametrize("name", TIMED)
@pytest.mark.parametrize("mode", [SENTENCE, TOKEN], ids=str)
async def test_every_word_is_pushed_once_in_order_at_its_time(name, mode, monkeypatch):
    taken = results_of(monkeypatch, ExactTimes, "take")
    with serving(FakeEngine(rtf=0.001, letter_s=0.09)) as live:
        async with Run(make(name, live, text_aggregation_mode=mode)) as run:
            await run.turn(*(f"{word} " for word in SAID.split()), ends=1)
        words = run.frames(TTSTextFrame)
        assert [word.text.strip() for word in words] == SAID.split()
    own = [word for found, *_ in taken for word in found]
    times = [word.pts / 1e9 for word in words]
    assert times == sorted(times)
    begin = times[0] - own[0].start
    for time, word in zip(times, own, strict=True):
        assert time - begin == pytest.approx(word.start, abs=ROUNDED_STEP_S)


@pytest.mark.parametrize("name", SOCKETS)
async def test_an_interruption_stops_the_speech_and_frees_its_slot(name):
    with serving(FakeEngine(rtf=0.5, num_slots=1)) as live:
        async with Run(make(name, live)) as run:
            await run.turn(*([SAID + " "] * 6))
            await run.until(TTSAudioRawFrame)
            await run.interrupt()
            await asyncio.to_thread(wait_until, lambda: not live.engine.speaking)
            frames = sum(stream.num_frames for stream in live.engine.streams)
            assert frames < 40
            live.engine.rtf = 0.001
            num_before = len(run.frames(TTSAudioRawFrame))
            await run.turn("What is it?", stops=1)
            heard = b"".join(frame.audio for frame in run.frames(TTSAudioRawFrame)[num_before:])
            assert heard == live.engine.streams[-1].sent
        assert run.errors == []


@pytest.mark.parametrize("name", SOCKETS)
async def test_an_interruption_of_an_answer_that_goes_on_stops_it(name):
    """The model still writes: the service has neither flushed nor ended its text."""
    with serving(FakeEngine(rtf=0.5, num_slots=1)) as live:
        async with Run(make(name, live, text_aggregation_mode=TOKEN)) as run:
            await run.send(LLMFullResponseStartFrame(), LLMTextFrame(SAID * 3))
            await run.until(TTSAudioRawFrame)
            await run.interrupt()
            await asyncio.to_thread(wait_until, lambda: not live.engine.speaking)
            live.engine.rtf = 0.001
            await run.turn("What is it?", stops=1)
            assert live.engine.streams[-1].text.spoken.strip() == "What is it?"


@pytest.mark.parametrize("name", SOCKETS)
async def test_answers_follow_each_other_on_one_connection(live, engine, name):
    async with Run(make(name, live)) as run:
        for count in (1, 2, 3):
            await run.turn(f"This is number {count}.", stops=count)
        assert run.pcm == b"".join(stream.sent for stream in engine.streams)
    assert len(engine.streams) == 3
    assert len(run.frames(TTSStartedFrame)) == len(run.frames(TTSStoppedFrame)) == 3


@pytest.mark.parametrize("name", SOCKETS)
async def test_settings_change_between_answers(live, engine, name):
    kind = type(make(name, live))
    async with Run(make(name, live)) as run:
        await run.turn("One of them.", stops=1)
        await run.send(TTSUpdateSettingsFrame(delta=kind.Settings(voice="aiden")))
        await run.turn("Another one.", stops=2)
    assert [stream.request.voice for stream in engine.streams] == ["vivian", "aiden"]
    assert run.errors == []


async def test_a_voice_changes_between_sentences_of_an_answer(live, engine):
    """Only Cartesia's service lets the sentence before be spoken to its end."""
    async with Run(make("cartesia", live)) as run:
        await run.send(LLMFullResponseStartFrame(), LLMTextFrame("One of them. It is"))
        await run.until(TTSAudioRawFrame)
        delta = CartesiaTTSService.Settings(voice="aiden")
        await run.send(TTSUpdateSettingsFrame(delta=delta))
        await run.send(LLMTextFrame(" another one."), LLMFullResponseEndFrame(), stops=2)
        assert run.pcm == b"".join(stream.sent for stream in engine.streams)
    assert [stream.request.voice for stream in engine.streams] == ["vivian", "aiden"]
    assert spoken(engine) == "One of them. It is another one."


async def test_a_speed_changes_between_answers(live, engine):
    kind = ElevenLabsTTSService
    async with Run(make("elevenlabs", live)) as run:
        await run.turn("One of them.", stops=1)
        await run.send(TTSUpdateSettingsFrame(delta=kind.Settings(speed=1.2, stability=0.3)))
        await run.turn("Another one.", stops=2)
    assert [stream.request.sound.speed for stream in engine.streams] == [1.0, 1.2]


# ---- HTTP ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [ElevenLabsHttpTTSService, CartesiaHttpTTSService, DeepgramHttpTTSService]
)
async def test_a_service_over_http_speaks(live, engine, kind: Any):
    async with aiohttp.ClientSession() as session:
        how = {"aiohttp_session": session, "settings": kind.Settings(voice="vivian")}
        async with Run(kind(api_key="k", base_url=live.url, **how)) as run:
            await run.turn(*(f"{word} " for word in SAID.split()), stops=1)
            assert spoken(engine) == SAID
            assert run.pcm == b"".join(stream.sent for stream in engine.streams)
            if kind is ElevenLabsHttpTTSService:
                words = run.frames(TTSTextFrame)
                assert " ".join(word.text.strip() for word in words) == SAID
    assert run.errors == []
