"""The whole loop in real time: recogniser, turns, barge-in, speech, loudspeaker and context."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
from commands import script
from fake_engine import FakeEngine
from fixtures import module_value
from pipecat.services.tts_service import TextAggregationMode
from waiting import lateness

from benchmarks.playback import playback_gaps
from qwen_megakernel import TTSEngine
from qwen_megakernel.pipecat.service import MegakernelTTSService

agent = module_value(lambda: script("examples/offline_agent.py"))


def check(agent: SimpleNamespace, said: object, late_s: float) -> None:
    """Check a conversation of the script on a machine that is late by `late_s`."""
    roles = [message["role"] for message in said.messages]
    texts = [message["content"] for message in said.messages]
    assert roles == ["user", "assistant", "user", "assistant"]
    assert (texts[0], texts[2]) == agent.QUESTIONS
    assert agent.ANSWERS[0].startswith(texts[1]) and 3 < len(texts[1]) < len(agent.ANSWERS[0])
    assert texts[3] == agent.ANSWERS[1]
    assert said.talked_over_s(1) < 0.3 + late_s
    for begin, until in said.spoken:  # the bot is silent once it hears the user
        assert not any(begin + 0.3 + late_s < at < until for at, _ in said.played)
    for question in range(2):
        assert 0 < said.answer_after_s(question) < 2 + 5 * late_s


def last_answer(said: object) -> list[tuple[float, np.ndarray]]:
    """Return each chunk of the last answer, and when it was played."""
    return [entry for entry in said.played if entry[0] > said.spoken[1][1]]


def gaps_of_last(agent: SimpleNamespace, said: object, buffer_ms: float) -> list[float]:
    """Milliseconds of silence that a listener with this buffer hears inside the last answer."""
    last = last_answer(said)
    begins_ms = [1000 * (at - last[0][0]) for at, _ in last]
    durations_ms = [1000 * len(pcm) / agent.OUT_RATE for _, pcm in last]
    return playback_gaps(begins_ms, durations_ms, buffer_ms)


async def test_the_agent_answers_and_lets_itself_be_interrupted(agent):
    async with asyncio.TaskGroup() as group:
        for mode in TextAggregationMode:
            group.create_task(_converse(agent, mode))


async def _converse(agent: SimpleNamespace, mode: TextAggregationMode) -> None:
    engine = FakeEngine(rtf=0.3)
    tts = MegakernelTTSService(engine=engine, text_aggregation_mode=mode)
    async with lateness() as late_s:
        said = await asyncio.wait_for(agent.converse(tts, patience_s=1.0), 20)
    check(agent, said, late_s())
    assert not engine.speaking
    gaps_ms = gaps_of_last(agent, said, 0)
    assert [gap for gap in gaps_ms if gap > 80 + 1000 * late_s()] == []  # a lost frame is 80 ms
    spoken = np.concatenate([pcm for _, pcm in last_answer(said)]).tobytes()
    assert spoken.startswith(engine.streams[-1].sent)  # the whole second answer, then padding
    timeline = said.timeline()
    assert len(timeline) / agent.OUT_RATE > 2 and timeline.any()


@pytest.mark.ci
@pytest.mark.parametrize("backend", ["cpu", "torch"])
async def test_the_agent_speaks_with_the_demo_voice(agent, backend):
    with TTSEngine.from_pretrained("demo-voice", backend=backend, num_slots=1) as engine:
        tts = MegakernelTTSService(
            engine=engine, settings=MegakernelTTSService.Settings(seed=3, max_frames=60)
        )
        async with lateness() as late_s:
            said = await asyncio.wait_for(agent.converse(tts, patience_s=1.2), 40)
        check(agent, said, late_s())
        if backend == "cpu":
            assert [gap for gap in gaps_of_last(agent, said, 100) if gap > 1000 * late_s()] == []
        assert engine.num_active == 0
