"""The WebSocket: text in by the token, audio out before the text is complete."""

import asyncio
import struct
from dataclasses import replace

import numpy as np
import pytest
import truths
from fake_engine import STORY, FakeEngine
from live_server import serving
from speech_socket import finished_but_unread, hear, hear_until, say, session, speak
from tiny_speech import tiny_engine
from tolerances import PCM16
from waiting import wait_until
from websockets.exceptions import ConnectionClosed

from qwen_megakernel.marking import COMMENT
from qwen_megakernel.server.encoders import wav_header
from qwen_megakernel.server.schemas import SessionConfig

WAV_HEAD = len(wav_header(24000, comment=COMMENT))
DONE = {"type": "session.done", "utterance_index": 0, "finish_reason": "eos"}

# ---- speaking ------------------------------------------------------------------------------------


async def test_an_utterance_is_started_heard_and_done(live, engine):
    async with session(live, {"voice": "vivian", "seed": 5, "task_type": "Base"}) as socket:
        events, audio = await speak(socket, STORY)
    start, done, end = events
    assert start["type"] == "audio.start"
    assert (start["format"], start["sample_rate"], start["channels"]) == ("pcm", 24000, 1)
    assert (start["utterance_index"], start["sentence_index"], start["seed"]) == (0, 0, 5)
    assert done["sentence_text"] == STORY
    assert start["warnings"] == ['ignored: "task_type"']
    assert done["type"] == "audio.done" and done["finish_reason"] == "eos"
    assert done["n_samples"] * 2 == len(audio) and audio == engine.streams[0].sent
    assert done["usage"]["output_tokens"] == done["n_steps"] == engine.streams[0].num_frames
    assert end == DONE | {"total_sentences": 1}


async def test_the_first_audio_leaves_before_the_text_is_complete(live):
    async with session(live) as socket:
        for word in STORY.split(" "):
            await say(socket, "input.text", text=word + " ")
        start = await hear(socket)
        assert start["type"] == "audio.start" and start["sentence_text"] is None
        assert isinstance(await hear(socket), bytes)
        await say(socket, "input.text", text="And there the tale ends.")
        await say(socket, "input.done")
        events, _ = await hear_until(socket)
        assert events[-1]["finish_reason"] == "eos"


async def test_text_by_the_token_gives_the_codes_of_the_whole_text():
    """On the real engine, text that is fed a character at a time has the samples of one request."""
    text = "Once upon a time there was a house."
    with tiny_engine() as tts, serving(tts) as live:
        async with session(live, {"voice": "vivian", "seed": 9, "max_new_tokens": 25}) as socket:
            await say(socket, "input.text", text=text[:20])
            assert (await hear(socket))["type"] == "audio.start"
            first = await hear(socket)
            events, audio = await speak(socket, *text[20:])
        speech = tts.synthesize(
            text, voice="vivian", seed=9, max_frames=24, text_feed="stepwise", first_chunk_frames=1
        )
        assert events[0]["n_steps"] == len(speech.codes)
        heard = np.frombuffer(first + audio, "<i2") / 32768
        assert np.abs(heard - speech.audio).max() <= PCM16


async def test_one_connection_speaks_one_utterance_after_the_other(live, engine):
    async with session(live) as socket:
        for index in range(3):
            await say(socket, "input.text", text=f"This is number {index}.")
            await say(socket, "input.done")
        for index in range(3):
            events, audio = await hear_until(socket)
            assert {event["utterance_index"] for event in events} == {index}
            assert audio == engine.streams[index].sent
        assert engine.streams[2].text.spoken == "This is number 2."


async def test_a_session_is_one_line_of_the_access_log(live, caplog):
    caplog.set_level("INFO", logger="qwen_megakernel.access")
    async with session(live) as socket:
        await speak(socket, "One.")
        await speak(socket, "Two.")
    await asyncio.to_thread(wait_until, lambda: caplog.messages)
    assert len(caplog.messages) == 1
    assert '"WEBSOCKET /v1/audio/speech/stream" 101 ' in caplog.messages[0]


async def test_an_empty_flush_is_answered_at_once(live, engine):
    """LiveKit's client keeps its connection alive with it."""
    async with session(live) as socket:
        events, audio = await speak(socket)
        assert events == [DONE | {"total_sentences": 0}]
        events, audio = await speak(socket, "  \n", " ")
        assert [event["type"] for event in events] == ["session.done"] and not audio
        live.settle()


async def test_settings_can_change_between_utterances(live, engine):
    async with session(live, {"voice": "vivian"}) as socket:
        await speak(socket, "One.")
        await say(socket, "session.config", voice="aiden", response_format="wav", seed=3)
        _, audio = await speak(socket, "Two.")
    assert [stream.request.voice for stream in engine.streams] == ["vivian", "aiden"]
    assert audio[:4] == b"RIFF" and audio[WAV_HEAD:] == engine.streams[1].sent


async def test_audio_that_is_not_streamed_comes_as_one_file(live, engine):
    async with session(live, {"response_format": "wav", "stream_audio": False}) as socket:
        await say(socket, "input.text", text=STORY)
        await say(socket, "input.done")
        assert (await hear(socket))["type"] == "audio.start"
        audio = await hear(socket)
        assert struct.unpack("<I", audio[WAV_HEAD - 4 : WAV_HEAD])[0] == len(audio) - WAV_HEAD
        assert audio[WAV_HEAD:] == engine.streams[0].sent
        assert (await hear(socket))["type"] == "audio.done"


async def test_null_is_a_setting_that_is_left_out(live):
    async with session(live, dict.fromkeys(SessionConfig.model_fields)) as socket:
        await say(socket, "input.text", text=STORY)
        assert (await hear(socket))["type"] == "audio.start"
        first = await hear(socket)
        assert first[:4] == b"RIFF" and len(first) < WAV_HEAD + 48000  # not all of the audio


async def test_a_prompt_that_needs_all_of_its_text_waits_for_it(tmp_path):
    """A voice in context, and text in the prompt, have the samples of the whole text."""
    options = {"seed": 9, "max_new_tokens": 6}
    with tiny_engine("tiny-random-base") as tts:
        mario = truths.voice("in context")(tts)
    replace(mario, name="mario").save(tmp_path / "mario.voice.safetensors")
    with tiny_engine("tiny-random-base", voices=tmp_path) as tts, serving(tts) as live:
        for config in ({"voice": "mario"}, {"non_streaming_mode": True}):
            async with session(live, config | options) as socket:
                events, audio = await speak(socket, "One ", "and ", "two.")
            feed = "full" if "non_streaming_mode" in config else "auto"
            how = {"voice": config.get("voice"), "text_feed": feed, "seed": 9, "max_frames": 5}
            spoken = b"".join(chunk.pcm16 for chunk in tts.stream("One and two.", **how))
            assert spoken and len(audio) == len(spoken)
            heard, expected = (np.frombuffer(pcm, "<i2") / 32768 for pcm in (audio, spoken))
            assert np.abs(heard - expected).max() <= PCM16
            assert events[-1]["finish_reason"] in ("eos", "length")


async def test_text_after_the_end_of_its_speech_belongs_to_it_until_it_is_done(live, engine):
    """Clients count one session.done for each input.done."""
    async with session(live, {"max_new_tokens": 4}) as socket:
        await say(socket, "input.text", text=STORY)
        events, _ = await hear_until(socket, "audio.done")
        assert events[-1]["finish_reason"] == "length"
        events, audio = await speak(socket, "And there ", "the tale ends.")
        assert [event["type"] for event in events] == ["session.done"] and not audio
        assert events[0]["finish_reason"] == "length" and events[0]["utterance_index"] == 0
        events, _ = await speak(socket, STORY)
        assert events[-1]["utterance_index"] == 1 and len(engine.streams) == 2


# ---- stopping ------------------------------------------------------------------------------------


async def test_a_cancelled_response_ends_and_the_next_one_is_spoken():
    with serving(FakeEngine(rtf=1.0)) as live:
        async with session(live) as socket:
            await say(socket, "input.text", text=STORY * 3)
            while not isinstance(await hear(socket), bytes):
                pass
            await say(socket, "input.text", text=STORY)
            await say(socket, "response.cancel")
            events, _ = await hear_until(socket)
            assert [event["finish_reason"] for event in events] == ["cancelled"] * 2
            assert not live.engine.speaking
            live.engine.rtf = 0.001
            events, audio = await speak(socket, "And now?")
            assert events[-1]["finish_reason"] == "eos" and events[-1]["utterance_index"] == 1
            assert audio == live.engine.streams[1].sent


async def test_a_cancelled_response_leaves_out_audio_that_waits_for_a_slow_reader():
    async with finished_but_unread() as (live, socket):
        engine = live.engine
        await say(socket, "response.cancel")
        await asyncio.to_thread(wait_until, lambda: engine.streams[0].cancelled)
        events, audio = await hear_until(socket)
        assert len(audio) < len(engine.streams[0].sent) / 4
        assert engine.streams[0].sent.startswith(audio)
        assert [each.get("finish_reason") for each in events[1:]] == ["cancelled"] * 2
        events, audio = await speak(socket, "And now?")
        assert events[-1]["finish_reason"] == "eos" and audio == engine.streams[1].sent


async def test_cancelling_takes_what_waits_along():
    with serving(FakeEngine(stall_after=1)) as live:
        async with session(live) as socket:
            for text in ("One.", "Two.", "Three."):
                await say(socket, "input.text", text=text)
                await say(socket, "input.done")
            wait_until(lambda: live.engine.speaking)
            await say(socket, "response.cancel")
            reasons = [(await hear_until(socket))[0][-1]["finish_reason"] for _ in range(3)]
            assert reasons == ["cancelled"] * 3 and len(live.engine.streams) == 1
            await say(socket, "response.cancel")  # there is nothing left to cancel
            await say(socket, "session.close")
            with pytest.raises(ConnectionClosed):
                await hear(socket)


async def test_an_utterance_that_waits_for_its_whole_text_can_be_cancelled():
    config = {"voice": "vivian", "non_streaming_mode": True, "max_new_tokens": 4, "seed": 1}
    with tiny_engine() as tts, serving(tts) as live:
        async with session(live, config) as socket:
            await say(socket, "input.text", text="One and ")
            await say(socket, "response.cancel")
            events, audio = await speak(socket, "two.")
            assert events[-1]["finish_reason"] == "cancelled" and not audio
            events, audio = await hear_until(socket)
    assert events[-1]["finish_reason"] == "length" and events[-1]["utterance_index"] == 1
    assert events[-2]["sentence_text"] == "two." and audio


@pytest.mark.parametrize("politely", [True, False])
async def test_a_connection_that_goes_away_frees_its_slot(politely):
    with serving(FakeEngine(rtf=1.0)) as live:
        async with session(live) as socket:
            await say(socket, "input.text", text=STORY)
            while not isinstance(await hear(socket), bytes):
                pass
            if politely:
                await say(socket, "session.close")
            else:
                socket.transport.abort()
            await asyncio.to_thread(wait_until, lambda: not live.engine.speaking)
        await asyncio.to_thread(live.settle)


async def test_a_client_that_does_not_read_is_cut():
    with serving(FakeEngine(rtf=0.001), send_buffer=8192, stall_timeout_s=0.5) as live:
        async with session(live, max_queue=1, sock=live.connect_slowly()) as socket:
            await say(socket, "input.text", text=(STORY * 60)[:4096])
            await say(socket, "input.done")
            await asyncio.to_thread(wait_until, lambda: live.engine.streams)
            await asyncio.to_thread(live.settle)
            with pytest.raises(ConnectionClosed):
                await hear_until(socket)
