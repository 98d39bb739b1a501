"""Every mark on every surface, from one list: watermark, metadata, and the signature of files."""

import base64
import functools
import io
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile
import wyoming_client
from certificates import new_certificate
from dialect_clients import (
    CARTESIA,
    DEEPGRAM,
    ELEVENLABS,
    audio_of,
    cartesia,
    dialect,
    listen,
    tell,
)
from live_server import SPEECH, LiveServer, serving, sse
from pipecat.frames.frames import TTSAudioRawFrame
from pipelines import Run, service
from speech_socket import session, speak
from tiny_speech import TEXT, tiny_engine
from websockets.sync.client import connect
from wyoming.audio import AudioStart, AudioStop
from wyoming.info import Describe, Info
from wyoming.tts import Synthesize, SynthesizeVoice

from qwen_megakernel import TTSEngine, families
from qwen_megakernel.cli import main
from qwen_megakernel.content_credentials import Signer, read_credentials
from qwen_megakernel.errors import UsageError
from qwen_megakernel.marking import COMMENT, UNMARKED, Marking, MarkKey
from qwen_megakernel.pipecat_tts import MegakernelTTSService
from qwen_megakernel.server.settings import ServerSettings
from qwen_megakernel.sound.mark_detector import find_marks

KEY = MarkKey(bytes(range(32)), operator=258)
VOICE = "aiden"
NOTHING = {"result": "no mark found", "marks": [], "c2pa": None, "metadata": None}
ASKED = {"input": TEXT, "voice": VOICE}

# Float samples at 24 kHz, and what says that they are marked.
Heard = tuple[np.ndarray, list[object]]


@pytest.fixture(scope="module")
def tts() -> Iterator[TTSEngine]:
    """An engine that always says the same five seconds."""
    signer = Signer.of(*new_certificate())
    with tiny_engine(max_frames=70, mark=Marking(key=KEY, signer=signer)) as engine:
        stream = engine.stream
        engine.stream = lambda *args, **options: stream(*args, **options | {"seed": 1})
        yield engine


def of_pcm(data: bytes) -> np.ndarray:
    return np.frombuffer(data, "<i2") / np.float32(32768)


def of_file(data: bytes, name: str) -> tuple[np.ndarray, bool]:
    """Return samples, and whether comment and signature of the file say that they are synthetic."""
    signed = read_credentials(data, name)
    with soundfile.SoundFile(io.BytesIO(data)) as opened:
        says = opened.comment == COMMENT and signed is not None and signed.says_synthetic
        return opened.read(dtype="float32"), says


async def command(tts: TTSEngine, tmp_path: Path, monkeypatch) -> Heard:
    monkeypatch.setattr(families, "load_engine", lambda *_, **__: tts)
    monkeypatch.setattr(tts, "close", lambda: None)
    path = tmp_path / "out.mp3"
    say = ["speak", TEXT, "--model", "tiny-random", "--voice", VOICE, "-o", str(path), "--quiet"]
    assert main.main(say) == 0
    samples, says = of_file(path.read_bytes(), "mp3")
    return samples, [says]


async def batch(tts: TTSEngine, tmp_path: Path, monkeypatch) -> Heard:
    monkeypatch.setattr(families, "load_engine", lambda *_, **__: tts)
    monkeypatch.setattr(tts, "close", lambda: None)
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": TEXT, "output": "a.flac"}))
    say = ["speak", "--batch", str(tmp_path / "texts.jsonl"), "--output-dir", str(tmp_path)]
    assert main.main([*say, "--model", "tiny-random", "--voice", VOICE, "--quiet"]) == 0
    samples, says = of_file((tmp_path / "a.flac").read_bytes(), "flac")
    return samples, [says]


def answered(live: LiveServer, **body: object) -> httpx.Response:
    answer = live.client.post(SPEECH, json=ASKED | body)
    assert answer.status_code == 200
    return answer


ROUTE = f"/v1/text-to-speech/{VOICE}"
TOLD, SAID = {"text": TEXT}, cartesia("c", TEXT, voice=VOICE)
WAV = {"container": "wav", "encoding": "pcm_s16le", "sample_rate": 24000}
PHASES = {"stream": True, "event_format": "phases"}

# Surface -> path and body of a request, the format of its audio, and the field of JSON that has it.
OVER_HTTP: dict[str, tuple[str, dict, str, str]] = {
    "http_whole": (SPEECH, ASKED | {"stream": False, "response_format": "flac"}, "flac", ""),
    "http_streamed": (SPEECH, ASKED | {"response_format": "pcm"}, "pcm", ""),
    "http_timestamps": (SPEECH, ASKED | {"timestamp_granularities": ["word"]}, "wav", "audio"),
    "events": (SPEECH, ASKED | {"stream_format": "sse", "response_format": "pcm"}, "pcm", "audio"),
    "phases": (SPEECH, ASKED | PHASES, "wav", "audio"),
    "elevenlabs_whole": (f"{ROUTE}?output_format=mp3_24000_48", TOLD, "mp3", ""),
    "elevenlabs_streamed": (f"{ROUTE}/stream?output_format=pcm_24000", TOLD, "pcm", ""),
    "elevenlabs_whole_timestamps": (
        *(f"{ROUTE}/with-timestamps?output_format=wav_24000", TOLD, "wav", "audio_base64"),
    ),
    "elevenlabs_streamed_timestamps": (
        f"{ROUTE}/stream/with-timestamps?output_format=pcm_24000",
        *(TOLD, "pcm", "audio_base64"),
    ),
    "cartesia_whole": ("/tts/bytes", SAID | {"output_format": WAV}, "wav", ""),
    "cartesia_streamed": ("/tts/bytes", SAID, "pcm", ""),
    "cartesia_events": ("/tts/sse", SAID, "pcm", "data"),
}


async def over_http(name: str, tts: TTSEngine, *_: object) -> Heard:
    path, body, kind, field = OVER_HTTP[name]
    with serving(tts) as live:
        answer = live.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    data, says = answer.content, [answer.headers.get("X-AI-Generated") == "true"]
    if field:
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if "{" in line]
        facts = list(map(json.loads, lines))
        data = b"".join(base64.b64decode(each.get(field, "")) for each in facts)
        if path == SPEECH and name != "phases":  # the others' messages have no field of ours
            says += [each["ai_generated"] for each in facts]
    if kind == "pcm":
        return of_pcm(data), says
    samples, file_says = of_file(data, kind)
    return samples, [*says, file_says]


async def websocket(tts: TTSEngine, *_: object) -> Heard:
    with serving(tts) as live:
        async with session(live, {"voice": VOICE}) as socket:
            (start, *_), audio = await speak(socket, TEXT)
    return of_pcm(audio), [start["ai_generated"]]


async def websocket_whole(tts: TTSEngine, *_: object) -> Heard:
    with serving(tts) as live:
        config = {"voice": VOICE, "stream_audio": False, "response_format": "mp3"}
        async with session(live, config) as socket:
            (start, *_), audio = await speak(socket, TEXT)
    samples, says = of_file(audio, "mp3")
    return samples, [says, start["ai_generated"]]


async def library(tts: TTSEngine, tmp_path: Path, *_: object) -> Heard:
    tts.synthesize(TEXT, voice=VOICE).save(tmp_path / "a.wav", encoding="ulaw")
    samples, says = of_file((tmp_path / "a.wav").read_bytes(), "wav")
    return samples, [says]


async def wyoming(tts: TTSEngine, *_: object) -> Heard:
    async with wyoming_client.connected(tts) as client:
        await client.write_event(Describe().event())
        info = (await wyoming_client.events_until(client, Info))[-1]
        await client.write_event(Synthesize(TEXT, SynthesizeVoice(VOICE)).event())
        events = await wyoming_client.events_until(client, AudioStop)
    start = next(event for event in events if AudioStart.is_type(event.type))
    says = [event.data["ai_generated"] for event in (info, start)]
    return of_pcm(wyoming_client.pcm_of(events)), says


async def pipecat(tts: TTSEngine, *_: object) -> Heard:
    async with Run(service(tts, settings=MegakernelTTSService.Settings(voice=VOICE))) as run:
        await run.say(TEXT)
        await run.finish()
        frames = run.frames(TTSAudioRawFrame)
        return of_pcm(run.pcm), [frame.metadata["ai_generated"] for frame in frames]


async def ray(tts: TTSEngine, *_: object) -> Heard:
    pytest.importorskip("ray")
    from qwen_megakernel.server.ray_serve import Replica

    app = Replica(lambda: tts, ServerSettings()).__serve_build_asgi_app__()
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answer = await client.post(SPEECH, json=ASKED | {"response_format": "pcm"})
    return of_pcm(answer.content), [answer.headers["X-AI-Generated"] == "true"]


async def deepgram_file(tts: TTSEngine, *_: object) -> Heard:
    path = f"/v1/speak?model={VOICE}&encoding=mp3&sample_rate=24000"
    with serving(tts) as live:
        answer = live.client.post(path, json=TOLD)
    says = answer.headers.get("X-AI-Generated") == "true"
    with soundfile.SoundFile(io.BytesIO(answer.content)) as file:  # streamed, so not signed
        return file.read(dtype="float32"), [says, file.comment == COMMENT]


# Surface -> path of a vendor's WebSocket, what is in its last answer, and the messages to it.
OVER_SOCKET = {
    "elevenlabs_websocket": (
        *(ELEVENLABS, {"isFinal": True}),
        [{"text": f"{TEXT} ", "flush": True}, {"close_socket": True}],
    ),
    "cartesia_websocket": (CARTESIA, {"type": "done"}, [SAID]),
    "deepgram_websocket": (
        DEEPGRAM,
        {"type": "Flushed"},
        [{"type": "Speak"} | TOLD, {"type": "Flush"}],
    ),
}


async def over_socket(name: str, tts: TTSEngine, *_: object) -> Heard:
    """Hear a vendor's WebSocket, whose messages have no field of ours: the handshake says it."""
    path, last, messages = OVER_SOCKET[name]
    with serving(tts) as live:
        async with dialect(live, path.replace("vivian", VOICE)) as socket:
            for message in messages:
                await tell(socket, **message)
            found = await listen(socket, lambda message: message.items() >= last.items())
        return of_pcm(audio_of(found)), [socket.response.headers.get("X-AI-Generated") == "true"]


# tests/sheen/test_adapters.py has the command of the second family.
SURFACES: dict[str, Callable[..., Awaitable[Heard]]] = {
    each.__name__: each
    for each in (
        *(command, batch, websocket, websocket_whole, wyoming, pipecat, ray, library),
        deepgram_file,
    )
}
SURFACES |= {name: functools.partial(over_http, name) for name in OVER_HTTP}
SURFACES |= {name: functools.partial(over_socket, name) for name in OVER_SOCKET}


@pytest.mark.parametrize("surface", SURFACES)
async def test_every_surface_has_the_watermark_and_says_that_its_speech_is_synthetic(
    surface: str, tts: TTSEngine, tmp_path: Path, monkeypatch
):
    samples, says = await SURFACES[surface](tts, tmp_path, monkeypatch)
    (found,) = find_marks(samples, 24000, KEY.secret, search_speeds=False)
    assert found.operator == KEY.operator
    assert says and all(each is True for each in says)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: MarkKey(b"x"), "The secret is 1 bytes; it must be 32 bytes."),
        (lambda: MarkKey(KEY.secret.hex()), "The secret is a str; it must be 32 bytes."),
        (lambda: MarkKey(KEY.secret, 1.5), "The operator is 1.5; it must be a whole number."),
        (lambda: Marking(key="mark.key"), "key is 'mark.key'; it must be a MarkKey."),
        (lambda: Marking(key=KEY.secret), "key is 32 bytes; it must be a MarkKey."),
        (lambda: Marking(signer="chain.pem"), "signer is 'chain.pem'; it must be a Signer."),
        (lambda: Marking.of(KEY.secret), "mark is 32 bytes; it must be a Marking, a MarkKey or"),
    ],
)
def test_what_cannot_mark_is_refused_when_it_is_made_and_a_secret_not_shown(make, what):
    with pytest.raises(UsageError) as refused:
        make()
    assert str(refused.value).startswith(what)
    assert KEY.secret.hex()[:8] not in str(refused.value)


def test_without_marks_nothing_says_so(tmp_path: Path):
    with tiny_engine(max_frames=4, mark=UNMARKED) as tts, serving(tts) as live:
        answer = answered(live, stream=False)
        assert "X-AI-Generated" not in answer.headers and answer.content[36:40] == b"data"
        facts = sse(answered(live, stream_format="sse").text)
        assert not any("ai_generated" in each for each in facts)
        answer = live.client.post(ROUTE, json=TOLD)
        assert answer.status_code == 200 and "X-AI-Generated" not in answer.headers
        with connect(live.url.replace("http", "ws") + CARTESIA) as socket:
            assert "X-AI-Generated" not in socket.response.headers
        tts.synthesize(TEXT, voice=VOICE).save(tmp_path / "a.wav")
        assert (tmp_path / "a.wav").read_bytes()[36:40] == b"data"


def test_a_client_asks_for_the_mark_of_a_recording(tts: TTSEngine):
    def asked(data: bytes) -> httpx.Response:
        return live.client.post("/v1/audio/detect", files={"audio": ("a.flac", data)})

    with serving(tts, max_upload_bytes=1_000_000) as live:
        found = asked(answered(live, stream=False, response_format="flac").content).json()
        assert found["result"] == "marked as synthetic"
        (mark,) = found["marks"]
        assert (mark["operator"], mark["speed"], mark["start_s"]) == (KEY.operator, 1, 0)
        assert mark["confidence"] == 1 - mark["false_alarm"] > 0.999
        assert (found["c2pa"]["state"], found["c2pa"]["is_synthetic"]) == ("valid", True)
        file = io.BytesIO()
        soundfile.write(file, np.random.default_rng(1).normal(0, 0.1, 24000), 24000, format="FLAC")
        assert asked(file.getvalue()).json() == NOTHING
        broken = io.BytesIO()
        soundfile.write(broken, np.full(24000, np.nan), 24000, format="WAV", subtype="FLOAT")
        for data in (b"no sound", broken.getvalue()):
            refused = asked(data)
            assert refused.status_code == 400 and refused.json()["error"]["param"] == "audio"
        assert asked(bytes(1_000_001)).status_code == 413


def test_a_server_without_a_key_looks_for_signatures_and_metadata(live: LiveServer, monkeypatch):
    def asked() -> httpx.Response:
        return live.client.post("/v1/audio/detect", files={"audio": ("a.wav", file.getvalue())})

    file = io.BytesIO()
    soundfile.write(file, np.zeros(24000), 24000, format="WAV")
    assert asked().json() == NOTHING
    file = io.BytesIO(answered(live, stream=False).content)
    found = asked().json()
    assert found["result"] == "marked as synthetic" and found["metadata"] == COMMENT
    monkeypatch.setitem(sys.modules, "c2pa", None)
    assert asked().json()["c2pa"]["state"] == "not checked"
