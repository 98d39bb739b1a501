"""The browser example without the browser, the recogniser and the LLM."""

import asyncio
import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch
from commands import script
from fake_engine import FakeEngine
from fixtures import module_value
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.transports.base_transport import BaseTransport
from pipecat.workers.runner import WorkerRunner
from pipelines import Recorder, WavOutput

from qwen_megakernel.cli import options

EXAMPLES = Path(__file__).parents[2] / "examples"


class Browser(BaseTransport):
    """A client that connects and sends nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._output = WavOutput(speed=20)
        self._register_event_handler("on_client_connected")
        self._register_event_handler("on_client_disconnected")

    def input(self) -> FrameProcessor:
        return Recorder()

    def output(self) -> WavOutput:
        return self._output


example = module_value(lambda: script("examples/voice_agent.py"))
offline = module_value(lambda: script("examples/offline_agent.py"))


@pytest.mark.parametrize("mode", ["sentence", "token"])
async def test_the_agent_greets_every_client(example, offline, mode, monkeypatch):
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
    assert engine.streams[0].text.spoken == "Hello, who is there?"
    assert engine.streams[0].request.voice == "aiden"
    await browser._call_event_handler("on_client_disconnected", None)
    await asyncio.wait_for(running, 20)


def test_help_loads_no_model_and_lists_the_runners_options_as_well(run_here):
    said = " ".join(run_here(EXAMPLES / "voice_agent.py", "--help").stdout.split())
    assert "--model MODEL model to speak with: hub id, folder" in said
    assert "(default: demo-voice)" in said
    assert "--backend" in said and "--transport" in said


@pytest.mark.parametrize("agent", ["voice_agent.py", "offline_agent.py"])
@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--model", "/no/such/folder"), 4, "There is no folder /no/such/folder"),
        (("--device", "cuda"), 3, "cuda"),
        (("--backend", "kernel"), 3, "kernel"),
        (("--backend", "cpu", "--dtype", "bfloat16"), 2, "bfloat16"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_errors_have_the_catalogues_exit_codes_and_name_options_that_there_are(
    run_here, monkeypatch, tmp_path, agent, words, code, told
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)  # all is installed
    done = run_here(EXAMPLES / agent, *words)
    assert done.returncode == code and "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("loading ")]
    assert lines[0].startswith("error: ")
    assert told in done.stderr
    options = set(re.findall(r"--[a-z][a-z-]+", run_here(EXAMPLES / agent, "--help").stdout))
    assert set(re.findall(r"--[a-z][a-z-]+", done.stderr)) <= options


def test_what_pipecat_imports_later_is_asked_for_before_a_model_loads(run_here, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name: None if name == "pipecat_ai_prebuilt" else find_spec("json"),
    )
    done = run_here(EXAMPLES / "voice_agent.py")
    assert done.returncode == 3 and "loading" not in done.stderr
    assert "needs pipecat_ai_prebuilt" in done.stderr
    assert "'pipecat-ai[webrtc,runner,whisper]'" in done.stderr


def test_the_engine_is_the_command_lines_beside_the_runners_options(example, monkeypatch):
    loaded = []

    def engine_from_args(args, **engine_options):
        loaded.append((args.model, args.backend, args.device, engine_options))
        return FakeEngine()

    monkeypatch.setattr(options, "engine_from_args", engine_from_args)
    words = ["--port", "7861", "--backend", "torch", "--model", "tiny-random", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["voice_agent.py", *words])
    assert example.load_engine() is example.load_engine()
    assert loaded == [("tiny-random", "torch", "cpu", {"num_slots": 4})]


def test_any_openai_compatible_server_can_answer(example, monkeypatch):
    monkeypatch.setenv("LLM_BASE_URL", "http://localhost:11434/v1")
    monkeypatch.setenv("LLM_MODEL", "qwen3:4b")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    llm = example.make_llm()
    assert llm.settings.model == "qwen3:4b"
    assert str(llm._client.base_url) == "http://localhost:11434/v1/"
