"""The Pipecat service on the real engine with random weights: it speaks the engine's noise, bit for
bit.
"""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from fixtures import module_fixture
from pipecat.frames.frames import (
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
    TTSTextFrame,
    TTSUpdateSettingsFrame,
)
from pipelines import SENTENCE, TOKEN, Mode, Run
from tiny_speech import fed, tiny_engine
from tolerances import PCM_STEPS
from waiting import wait_until

from qwen_megakernel import TTSEngine
from qwen_megakernel.engine.conversation import Conversation
from qwen_megakernel.engine.stream_state import StreamState
from qwen_megakernel.errors import EngineClosed, TaskError, UsageError
from qwen_megakernel.pipecat.service import MegakernelTTSService
from qwen_megakernel.voice import Voice

OPTIONS = {"voice": "aiden", "seed": 11, "max_frames": 8}

engine = module_fixture(lambda backend: tiny_engine(backend=backend, num_slots=4))
base_engine = module_fixture(
    lambda backend: tiny_engine("tiny-random-base", backend=backend, num_slots=1)
)


def service(
    engine: TTSEngine,
    mode: Mode = SENTENCE,
    voices: dict[str, Voice] | None = None,
    **settings: object,
) -> MegakernelTTSService:
    settings = MegakernelTTSService.Settings(**OPTIONS | settings)
    return MegakernelTTSService(
        engine=engine, text_aggregation_mode=mode, voices=voices, settings=settings
    )


def hold_back(engine: TTSEngine, patch: pytest.MonkeyPatch, is_over: Callable[[], bool]) -> None:
    """Let the engine draw no frames after its first ones until `is_over`."""
    launch, steps = engine._loop.stages.decoder.launch, []

    def held_back(slots: list[int], num_frames: int) -> Any:
        if steps:
            wait_until(is_over)
        steps.append(num_frames)
        return launch(slots, num_frames)

    patch.setattr(engine._loop.stages.decoder, "launch", held_back)


def pcm_of(engine: TTSEngine, text: str, **options: object) -> bytes:
    """The engine's own speech, without Pipecat."""
    return b"".join(chunk.pcm16 for chunk in engine.stream(text, **OPTIONS | options))


async def test_sentences_are_what_the_engine_says(engine):
    async with Run(service(engine)) as run:
        await run.turn("Hello there. ", "How are ", "you?", stops=1)
    expected = pcm_of(engine, "Hello there.") + pcm_of(engine, "How are you?")
    assert run.pcm == expected and run.errors == []


@pytest.mark.usefixtures("whole_texts")
@pytest.mark.parametrize("mode", [SENTENCE, TOKEN])
async def test_twenty_sentences_of_a_turn_keep_one_context(base_engine, mode, monkeypatch):
    # A part that drifts is drawn again only while its reader has something to play.
    monkeypatch.setattr(StreamState, "buffered_s", lambda state: 60.0)
    ada = Voice("ada", np.ones(base_engine.config.talker.stack.hidden_size, np.float32))
    options = {"voice": "ada", "max_frames": None, "continuity": "context"}
    sentences = [f"This is sentence {number}. " for number in range(20)]
    async with Run(service(base_engine, mode, {"ada": ada}, **options)) as run:
        await run.turn(*sentences, stops=1, timeout_s=60)
        pcm = run.pcm
        await run.turn(sentences[0])  # begins anew
        await run.until(TTSStoppedFrame, 2)
    options |= OPTIONS | {"voice": ada, "max_frames": None}
    if mode is SENTENCE:
        talk = Conversation()
        streams = [
            base_engine.stream(sentence.strip(), conversation=talk, **options)
            for sentence in sentences
        ]
    else:
        streams = [fed(base_engine, "".join(sentences), **options)]
    expected = b"".join(chunk.pcm16 for stream in streams for chunk in stream)
    assert pcm == expected and run.errors == []
    alone = base_engine.stream(sentences[0].strip(), **options)
    assert run.pcm[len(pcm) :] == b"".join(chunk.pcm16 for chunk in alone)
    parts = sum(stream.text.num_parts for stream in streams)
    assert parts == 20 if mode is SENTENCE else parts > 3
    assert expected != b"".join(
        pcm_of(base_engine, sentence.strip(), voice=ada, max_frames=None) for sentence in sentences
    )


async def test_a_text_names_the_voices_of_the_service_and_their_styles(base_engine, mode):
    width = base_engine.config.talker.stack.hidden_size
    glad, plain = (Voice(name, np.full(width, at, np.float32)) for name, at in (("g", 1), ("p", 2)))
    voices = {"ada": Voice.of_styles("ada", [glad, plain]), "ben": Voice("ben", glad.x_vector)}
    text = (
        'One. <voice name="ben">Two.</voice> <mstts:express-as style="g">Three.</mstts:express-as>'
    )
    draws = {"do_sample": False, "subtalker_do_sample": False}  # which do not depend on the part
    settings = {"voice": "ada", "style": "p", "text_format": "ssml", "max_frames": None} | draws
    async with Run(service(base_engine, mode, voices, **settings)) as run:
        await run.turn(text, stops=1)
    options = draws | {"max_frames": None, "text_feed": "stepwise"}
    expected = [
        pcm_of(base_engine, words, voice=voice, **options)
        for words, voice in (("One.", plain), ("Two.", glad), ("Three.", glad))
    ]
    assert run.errors == [] and len(run.pcm) == len(b"".join(expected))
    assert run.pcm.startswith(expected[0]) and expected[0] != expected[1]


async def test_the_emulated_kernel_says_the_same():
    with (
        tiny_engine(backend="emulation", num_slots=4) as emulated,
        tiny_engine(backend="torch", num_slots=4) as plain,
    ):
        async with Run(service(emulated)) as run:
            await run.turn("Hello there.", stops=1)
        assert run.pcm == pcm_of(plain, "Hello there.") and run.errors == []


async def test_a_turn_fed_by_the_word_is_what_the_engine_says_of_its_whole_text(engine):
    text = "Hello there, how are you today? I am well."
    async with Run(service(engine, TOKEN)) as run:
        await run.send(LLMFullResponseStartFrame())
        for start in range(0, len(text), 3):
            await run.send(LLMTextFrame(text[start : start + 3]))
            await asyncio.sleep(0.01)
        await run.turn()  # ends the turn
        await run.until(TTSStoppedFrame)
    assert run.pcm == pcm_of(engine, text, text_feed="stepwise")
    assert " ".join(frame.text for frame in run.frames(TTSTextFrame)) == text


async def test_the_first_audio_leaves_while_the_engine_works(engine, mode, monkeypatch):
    let_go = threading.Event()
    hold_back(engine, monkeypatch, let_go.is_set)
    async with Run(service(engine, mode, max_frames=300, seed=2)) as run:
        await run.turn("This is a sentence that goes on and on, as far as it is known.")
        await run.until(TTSAudioRawFrame)
        assert engine.num_active == 1
        let_go.set()
        await run.until(TTSStoppedFrame)
    assert engine.num_active == 0


async def test_an_interruption_frees_the_slot_before_the_next_step(engine, mode, monkeypatch):
    step = Mock(wraps=engine._loop.stages.decoder.launch)
    monkeypatch.setattr(engine._loop.stages.decoder, "launch", step)
    async with Run(service(engine, mode, max_frames=500, seed=2)) as run:
        await run.turn("This is a sentence that goes on and on, as far as it is known.")
        await run.until(TTSAudioRawFrame, 2)
        await run.interrupt()
        await run.until(InterruptionFrame)
        num_audio, num_steps = len(run.frames(TTSAudioRawFrame)), step.call_count
        await run.until(lambda: engine.num_active == 0)
        assert step.call_count <= num_steps + 1  # a step may just have begun
        await asyncio.sleep(0.1)
        assert len(run.frames(TTSAudioRawFrame)) == num_audio


@pytest.mark.usefixtures("whole_texts")
async def test_four_pipelines_on_one_engine_each_say_their_own(engine, mode):
    texts = [f"This is voice number {i}." for i in range(4)]
    runs = [Run(service(engine, mode, seed=i)) for i in range(4)]

    async def speak(run: Run, text: str) -> None:
        async with run:
            await run.turn(text, stops=1, timeout_s=20)

    async with asyncio.TaskGroup() as group:
        for run, text in zip(runs, texts, strict=True):
            group.create_task(speak(run, text))
    feed = "stepwise" if mode is TOKEN else "auto"
    for i, (run, text) in enumerate(zip(runs, texts, strict=True)):
        said, expected = (
            np.frombuffer(pcm, np.int16).astype(int)
            for pcm in (run.pcm, pcm_of(engine, text, seed=i, text_feed=feed))
        )
        # The vocoder batches streams, and a batch of another size rounds differently.
        np.testing.assert_allclose(said, expected, atol=PCM_STEPS, rtol=0)


async def test_new_settings_are_what_the_engine_gets(engine):
    async with Run(service(engine)) as run:
        delta = MegakernelTTSService.Settings(voice="vivian", language="zh-CN", seed=4)
        await run.send(TTSUpdateSettingsFrame(delta=delta))
        await run.turn("Hello there.", stops=1)
    assert run.pcm == pcm_of(engine, "Hello there.", voice="vivian", language="chinese", seed=4)


async def test_a_turn_without_a_word_leaves_no_request(engine):
    async with Run(service(engine, TOKEN)) as run:
        await run.turn("🎉 ... ", "!", stops=1)
    assert engine.num_active == 0 and run.errors == [] and not any(run.pcm)


async def test_a_voice_that_the_model_cannot_use_is_refused(engine):
    tts = service(engine, voices={"me": Voice("me", np.zeros(8, np.float32))}, voice="me")
    async with Run(tts) as run:
        await run.say("Hello.", stops=1)
        assert not tts.is_usable
    assert [type(frame.exception) for frame in run.errors] == [TaskError]


async def test_a_voice_file_is_a_voice_at_the_start_and_later(base_engine, tmp_path):
    width = base_engine.config.speaker_encoder.enc_dim
    voices = [Voice(name, np.full(width, 0.1 * i, np.float32)) for i, name in enumerate("ab")]
    files = [str(tmp_path / f"{voice.name}.voice.safetensors") for voice in voices]
    for voice, file in zip(voices, files, strict=True):
        voice.save(file)
    options = {"seed": 1, "max_frames": 4}
    tts = service(base_engine, voice=Path(files[0]), **options)
    async with Run(tts) as run:
        await run.say("Hello.")
        delta = MegakernelTTSService.Settings(voice=files[1])
        await run.send(TTSUpdateSettingsFrame(delta=delta))
        await run.say("Hello.", stops=2)
    assert run.errors == []
    assert run.pcm == b"".join(
        pcm_of(base_engine, "Hello.", voice=voice, **options) for voice in voices
    )


@pytest.mark.parametrize("voice", [5, ["aiden"], {"a": 1}])
def test_what_is_no_voice_is_refused_at_the_start(engine, base_engine, voice):
    for each in (engine, base_engine):
        with pytest.raises(UsageError, match=r"^voice is .*; it must be a name or a Voice\."):
            service(each, voice=voice)


async def test_an_in_context_voice_speaks_each_part_of_a_turn_when_it_is_complete(base_engine):
    config = base_engine.config
    voice = Voice(
        "mario",
        np.full(config.speaker_encoder.enc_dim, 0.1, np.float32),
        codes=np.arange(5 * config.talker.num_code_groups).reshape(5, -1) % 64,
        transcript="It is me.",
    )
    options = {"seed": 1, "max_frames": 4}
    tts = service(base_engine, TOKEN, {"mario": voice}, voice="mario", **options)
    async with Run(tts) as run:
        first = "Hello there, and how are you on this fine day?"
        await run.send(LLMFullResponseStartFrame(), LLMTextFrame(first + " Good"))
        await run.until(TTSAudioRawFrame)  # while the LLM is still writing
        await run.send(LLMTextFrame("bye."), LLMFullResponseEndFrame(), stops=1)
    assert run.errors == []
    assert run.pcm == pcm_of(base_engine, first, voice=voice, **options)  # max_frames are spoken


async def test_a_closed_engine_is_a_permanent_error_reported_once(mode, monkeypatch):
    engine = tiny_engine()
    hold_back(engine, monkeypatch, lambda: engine._loop._closing)
    tts = service(engine, mode, max_frames=500, seed=2)
    async with Run(tts) as run:
        await run.turn("This sentence is cut short by the end of its engine.")
        await run.until(TTSAudioRawFrame)
        await asyncio.to_thread(engine.close)
        await run.until(TTSStoppedFrame)
        assert not tts.is_usable
    assert [type(frame.exception) for frame in run.errors] == [EngineClosed]


async def test_the_service_loads_and_closes_a_model_of_its_own():
    tts = MegakernelTTSService(model_path="tiny-random", chunk_frames=10)
    async with Run(tts) as run:
        delta = MegakernelTTSService.Settings(voice="aiden", max_frames=3)
        await run.send(TTSUpdateSettingsFrame(delta=delta))
        await run.say("Hello.", stops=1)
    assert run.pcm and run.errors == []
    with pytest.raises(EngineClosed):
        tts._engine.stream("More.", voice="aiden")
