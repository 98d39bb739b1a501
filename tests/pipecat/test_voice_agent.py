"""The browser example with everything but the browser, the recogniser and the LLM."""

import asyncio
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_engine import FakeEngine
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.transports.base_transport import BaseTransport
from pipecat.workers.runner import WorkerRunner
from pipelines import Recorder, WavOutput

EXAMPLES = Path(__file__).parents[2] / "examples"


class Browser(BaseTransport):
    """A client that connects and says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._output = WavOutput(speed=20)
        self._register_event_handler("on_client_connected")
        self._register_event_handler("on_client_disconnected")

    def input(self) -> FrameProcessor:
        return Recorder()

    def output(self) -> WavOutput:
        return self._output


@pytest.fixture(scope="module")
def example() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(EXAMPLES / "voice_agent.py")))


@pytest.fixture(scope="module")
def offline() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(EXAMPLES / "offline_agent.py")))


@pytest.mark.parametrize("mode", ["sentence", "token"])
async def test_the_agent_greets_whoever_connects(example, offline, mode, monkeypatch):
    monkeypatch.setenv("TTS_MODE", mode)
    engine, browser = FakeEngine(), Browser()
    llm, stt = offline.ScriptedLLM(["Hello, who is there?"]), offline.ScriptedSTT([])
    worker = example.make_worker(browser, stt, llm, example.make_tts(engine))
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    running = asyncio.create_task(runner.run())
    await asyncio.sleep(0.1)
    await browser._call_event_handler("on_client_connected", None)
    async with asyncio.timeout(20):
        while not (engine.streams and engine.streams[0].finish_reason and browser.output().heard):
            await asyncio.sleep(0.01)
    assert engine.streams[0].text == "Hello, who is there?"
    assert engine.streams[0].request.voice == "aiden"
    await browser._call_event_handler("on_client_disconnected", None)
    await asyncio.wait_for(running, 20)


def test_help_loads_no_model_and_a_model_that_is_not_there_is_told(run_here, monkeypatch):
    agent = EXAMPLES / "voice_agent.py"
    said = " ".join(run_here(agent, "--help").stdout.split())
    assert "--model MODEL the voice: hub id" in said and "(default: demo-voice)" in said
    done = run_here(agent, "--model", "/no/such/folder")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "error: There is no folder /no/such/folder" in done.stderr


def test_any_openai_compatible_server_can_answer(example, monkeypatch):
    monkeypatch.setenv("LLM_BASE_URL", "http://localhost:11434/v1")
    monkeypatch.setenv("LLM_MODEL", "qwen3:4b")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    llm = example.make_llm()
    assert llm.settings.model == "qwen3:4b"
    assert str(llm._client.base_url) == "http://localhost:11434/v1/"
