"""docs/dialects.md: its fields and formats are those of the code, and LiveKit's lines run."""

import json
import re

import pytest
from commands import ROOT, captured
from live_server import serving
from tolerances import ROUNDED_S

from qwen_megakernel import TTSEngine
from qwen_megakernel.server import app
from qwen_megakernel.server.dialects import cartesia, deepgram, elevenlabs

PAGE = (ROOT / "docs" / "dialects.md").read_text("utf-8")
LIVEKIT = ROOT / ".venv-livekit" / "bin" / "python"
TEXT = "Your table is ready. Please follow me."

# Speaks TEXT with each of the page's plugins, word by word, and shows the audio and the words.
CLIENT = """
import asyncio, json, sys
from livekit.agents import utils

async def speak(code):
    async with utils.http_context.open():
        names = {}
        exec(code, names)
        tts = names["tts"]
        speech, words = tts.stream(), []
        for word in TEXT.split():
            speech.push_text(word + " ")
        speech.end_input()
        seconds = 0.0
        async for event in speech:
            frame = event.frame
            seconds += frame.samples_per_channel / frame.sample_rate
            words += frame.userdata.get("lk.timed_transcripts", [])
        await speech.aclose()
        whole = 0.0
        async for event in tts.synthesize(TEXT):
            whole += event.frame.samples_per_channel / event.frame.sample_rate
        voices = await tts.list_voices() if hasattr(tts, "list_voices") else []
        await tts.aclose()
        times = [[each.start_time, each.end_time] for each in words]
        facts = {"name": type(tts).__module__, "seconds": seconds, "whole": whole}
        facts["voices"] = [each.id for each in voices]
        print(json.dumps(facts | {"text": "".join(words), "times": times}))

imports, *plugins = sys.stdin.read().strip().splitlines()
for plugin in filter(None, plugins):
    asyncio.run(speak(imports + chr(10) + plugin))
"""


def section(title: str) -> str:
    return re.split(r"^## ", PAGE.split(f"## {title}\n")[1], flags=re.MULTILINE)[0]


@pytest.mark.parametrize(
    ("title", "module", "models"),
    [
        ("ElevenLabs", elevenlabs, [elevenlabs.ElevenLabsBody, elevenlabs.VoiceSettings]),
        ("Cartesia", cartesia, [cartesia.CartesiaBody, cartesia.GenerationConfig]),
        ("Deepgram", deepgram, [deepgram.DeepgramBody, deepgram.DeepgramQuery]),
    ],
)
def test_the_page_has_every_field(title, module, models):
    text = section(title)
    names = {name for model in models for name in model.model_fields}
    names |= {*getattr(module, title).harmless} - {"xi_api_key"}
    missing = [name for name in sorted(names) if not re.search(rf"[`.]{name}[`.]", text)]
    assert missing == []


def test_the_page_has_every_path():
    paths = {
        route.path.replace("/v1/text-to-speech/{voice}/", "/")
        for route in app.create_app(lambda: None).routes
        if "dialects" in getattr(route, "endpoint", app.create_app).__module__
    }
    assert len(paths) == 12
    assert not [path for path in sorted(paths) if f"{path}`" not in PAGE]


def test_the_page_has_every_format():
    kinds = {name.partition("_")[0] for name in elevenlabs._FORMATS}
    assert all(f"`{kind}_" in section("ElevenLabs") for kind in kinds)
    assert all(f"`{name}`" in section("Cartesia") for name in cartesia._ENCODINGS)
    assert all(f"`{name}`" in section("Deepgram") for name in deepgram._ENCODINGS)


@pytest.mark.ci
@pytest.mark.skipif(not LIVEKIT.exists(), reason=".ci/run makes .venv-livekit; there is none")
def test_livekits_plugins_speak_with_this_server():
    (code,) = re.findall(r"^```text\n(from livekit.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert code.count("HOST:8090") == 3
    engine = TTSEngine.from_pretrained("demo-voice", num_slots=2)
    with engine, serving(engine, api_key="KEY") as live:
        done = captured(
            [LIVEKIT, "-c", f"TEXT = {TEXT!r}\n{CLIENT}"],
            input=code.replace("HOST:8090", live.url.removeprefix("http://")),
            timeout=240,
        )
        refused = live.client.get("/metrics", headers={"Authorization": "Bearer KEY"}).text
    assert done.returncode == 0, done.stderr
    # No plugin calls a path that this server lacks.
    assert "refused_total" in refused and "refused_total{" not in refused
    spoken = [json.loads(line) for line in done.stdout.splitlines()]
    names = [f"livekit.plugins.{name}.tts" for name in ("elevenlabs", "cartesia", "deepgram")]
    assert [each["name"] for each in spoken] == names
    assert spoken[0]["voices"] == ["demo"]
    for each in spoken:
        assert each["seconds"] > 1 and each["whole"] > 1
    for each in spoken[:2]:  # Deepgram's API has no times
        assert " ".join(each["text"].split()) == TEXT
        times = [time for pair in each["times"] for time in pair]
        assert times == sorted(times) and times[0] >= 0 and times[-1] <= each["seconds"] + ROUNDED_S
