"""A bot's speed, volume and sample rate: its frames, its words, and settings that change."""

import numpy as np
import pytest
from fake_engine import FakeEngine
from pipecat.frames.frames import (
    TTSAudioRawFrame,
    TTSStoppedFrame,
    TTSTextFrame,
    TTSUpdateSettingsFrame,
)
from pipelines import SENTENCE, TOKEN, Run, service
from tolerances import PEAK_DB, nearly

from qwen_megakernel.pipecat.service import MegakernelTTSService
from qwen_megakernel.speech_options import SoundOptions

Settings = MegakernelTTSService.Settings
TEXT = "Your table for two is ready by the window."


def seconds(run: Run) -> float:
    frames = run.frames(TTSAudioRawFrame)
    return sum(frame.num_frames / frame.sample_rate for frame in frames)


@pytest.mark.parametrize("mode", [SENTENCE, TOKEN])
async def test_frames_and_words_are_those_of_what_is_heard(mode):
    spans = {}
    for speed in (None, 2.0):
        engine = FakeEngine()
        tts = service(engine, mode, settings=Settings(speed=speed), sample_rate=16000)
        async with Run(tts, sample_rate=16000) as run:
            if mode is SENTENCE:
                await run.say(TEXT, stops=1)
            else:
                await run.turn(*(f"{word} " for word in TEXT.split()), ends=1)
                await run.until(TTSStoppedFrame)
        frames = run.frames(TTSAudioRawFrame)
        assert {frame.sample_rate for frame in frames} == {16000}
        assert run.pcm == run.sent
        words = run.frames(TTSTextFrame)
        spans[speed] = seconds(run), (words[-1].pts - words[0].pts) / 1e9
    assert spans[2.0][0] == nearly(spans[None][0] / 2)
    assert spans[2.0][1] < 0.75 * spans[None][1]


async def test_sound_settings_change_between_sentences_and_bad_ones_are_refused():
    engine = FakeEngine()
    async with Run(service(engine)) as run:
        await run.send(TTSUpdateSettingsFrame(delta=Settings(speed=9.0)))
        await run.until(lambda: run.errors)
        await run.say(TEXT, stops=1)
        await run.send(TTSUpdateSettingsFrame(delta=Settings(speed=0.5, volume=-20)))
        await run.say(TEXT)
        await run.until(lambda: len(run.frames(TTSStoppedFrame)) == 2)
    sounds = [stream.request.sound for stream in engine.streams]
    assert sounds == [
        SoundOptions(sample_rate=24000),
        SoundOptions(speed=0.5, volume=-20, sample_rate=24000),
    ]
    plain, slow = (np.frombuffer(stream.sent, "<i2") for stream in engine.streams)
    assert len(slow) == 2 * len(plain)
    peaks = [20 * np.log10(np.abs(samples).max()) for samples in (plain, slow)]
    assert peaks[0] - peaks[1] == pytest.approx(20, abs=PEAK_DB)


async def test_a_bot_begins_with_a_sound_where_its_settings_say_so():
    engine = FakeEngine(silent_frames=5)
    async with Run(service(engine, settings=Settings(leading_silence=0))) as run:
        await run.say(TEXT, stops=1)
    assert np.abs(np.frombuffer(run.pcm, "<i2")[:240]).max() > 7000
    assert run.pcm == run.sent
