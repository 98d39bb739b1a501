"""LiveKit's plugins as docs/serving.md sets them up, against a server on loopback.

LiveKit's packages need other versions of this package's requirements, so `.ci/run` installs them
into a separate environment.
"""

import re
from typing import Any

import pytest
from commands import ROOT, captured
from live_server import serving

from qwen_megakernel import SpeechStream, TTSEngine

PYTHON = ROOT / ".venv-livekit" / "bin" / "python"
PAGE = (ROOT / "docs" / "serving.md").read_text("utf-8")
TEXT = "Your table is ready. Please follow me."

# Speaks TEXT with each of the page's plugins, word by word if the plugin accepts pieces.
CLIENT = """
import asyncio, sys
from livekit.agents import utils

async def speak(code):
    async with utils.http_context.open():
        names = {}
        exec(code, names)
        tts = names["tts"]
        if tts.capabilities.streaming:
            speech = tts.stream()
            for word in TEXT.split():
                speech.push_text(word + " ")
            speech.end_input()
        else:
            speech = tts.synthesize(TEXT)
        seconds = 0.0
        async for event in speech:
            seconds += event.frame.samples_per_channel / event.frame.sample_rate
        await speech.aclose()
        await tts.aclose()
        print(type(tts).__module__, tts.capabilities.streaming, seconds)

imports, *plugins = sys.stdin.read().strip().splitlines()
for plugin in plugins:
    if plugin:
        asyncio.run(speak(imports + chr(10) + plugin))
"""

pytestmark = [
    pytest.mark.ci,  # starts two of LiveKit's processes
    pytest.mark.skipif(not PYTHON.exists(), reason=".ci/run makes .venv-livekit; there is none"),
]


def test_the_plugins_of_the_page_speak_with_this_server(monkeypatch: pytest.MonkeyPatch):
    (code,) = re.findall(r"^```text\n(from livekit.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert code.count("HOST:8090") == 2
    engine = TTSEngine.from_pretrained("demo-voice", num_slots=2)
    streams, stream_of = [], engine.stream

    def noted(text: str | None = None, **options: Any) -> SpeechStream:
        streams.append((text, stream_of(text, **options)))
        return streams[-1][1]

    monkeypatch.setattr(engine, "stream", noted)
    with engine, serving(engine) as live:
        address = live.url.removeprefix("http://")
        done = captured(
            [PYTHON, "-c", f"TEXT = {TEXT!r}\n{CLIENT}"],
            input=code.replace("HOST:8090", address),
            timeout=240,
        )
        texts = [(text, " ".join(stream.text.written.split())) for text, stream in streams]
    assert done.returncode == 0, done.stderr
    spoken = [line.split() for line in done.stdout.splitlines()]
    assert [words[:2] for words in spoken] == [
        ["livekit.plugins.baseten.tts", "True"],
        ["livekit.plugins.openai.tts", "False"],
    ]
    assert all(float(seconds) > 1 for *_, seconds in spoken)
    # The page says that the first sends pieces of a text, and the second whole ones.
    assert texts == [(None, TEXT), (TEXT, TEXT)]
