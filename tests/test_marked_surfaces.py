"""Every mark on every surface, from one list: watermark, metadata, and the signature of files."""

import base64
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
from qwen_megakernel.marking import COMMENT, UNMARKED, Marking, MarkKey
from qwen_megakernel.pipecat_tts import MegakernelTTSService
from qwen_megakernel.server.settings import ServerSettings
from qwen_megakernel.sound.mark_detector import find_marks

KEY = MarkKey(bytes(range(32)), operator=258)
VOICE = "aiden"
NOTHING = {"result": "no mark found", "marks": [], "c2pa": None, "metadata": None}
ASKED = {"input": TEXT, "voice": VOICE}

Heard = tuple[
    np.ndarray, list[object]
]  # float samples at 24 kHz, and what says that they are marked


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


async def http_whole(tts: TTSEngine, *_: object) -> Heard:
    with serving(tts) as live:
        answer = answered(live, stream=False, response_format="flac")
        samples, says = of_file(answer.content, "flac")
        return samples, [says, answer.headers["X-AI-Generated"] == "true"]


async def http_streamed(tts: TTSEngine, *_: object) -> Heard:
    with serving(tts) as live:
        answer = answered(live, response_format="pcm")
        return of_pcm(answer.content), [answer.headers["X-AI-Generated"] == "true"]


async def http_timestamps(tts: TTSEngine, *_: object) -> Heard:
    with serving(tts) as live:
        facts = answered(live, timestamp_granularities=["word"]).json()
        samples, says = of_file(base64.b64decode(facts["audio"]), "wav")
        return samples, [says, facts["ai_generated"]]


async def events(tts: TTSEngine, *_: object) -> Heard:
    with serving(tts) as live:
        facts = sse(answered(live, stream_format="sse", response_format="pcm").text)
    deltas = [each for each in facts if each["type"] == "speech.audio.delta"]
    samples = of_pcm(b"".join(base64.b64decode(each["audio"]) for each in deltas))
    return samples, [each["ai_generated"] for each in (*deltas, facts[-1])]


async def phases(tts: TTSEngine, *_: object) -> Heard:
    with serving(tts) as live:
        answer = answered(live, stream=True, event_format="phases")
    done = sse(answer.text.replace("data: [DONE]\n\n", ""))[-1]
    samples, says = of_file(base64.b64decode(done["audio"]), "wav")
    return samples, [says, answer.headers["X-AI-Generated"] == "true"]


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


def answer_of_dialect(live: LiveServer, path: str, **body: object) -> tuple[httpx.Response, bool]:
    """Return a vendor's answer, and whether its header says that the speech is synthetic."""
    answer = live.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer, answer.headers.get("X-AI-Generated") == "true"


async def elevenlabs_whole(tts: TTSEngine, *_: object) -> Heard:
    path = f"/v1/text-to-speech/{VOICE}?output_format=mp3_24000_48"
    with serving(tts) as live:
        answer, says = answer_of_dialect(live, path, text=TEXT)
    samples, file_says = of_file(answer.content, "mp3")
    return samples, [says, file_says]


async def elevenlabs_streamed(tts: TTSEngine, *_: object) -> Heard:
    path = f"/v1/text-to-speech/{VOICE}/stream?output_format=pcm_24000"
    with serving(tts) as live:
        answer, says = answer_of_dialect(live, path, text=TEXT)
    return of_pcm(answer.content), [says]


async def elevenlabs_whole_timestamps(tts: TTSEngine, *_: object) -> Heard:
    path = f"/v1/text-to-speech/{VOICE}/with-timestamps?output_format=wav_24000"
    with serving(tts) as live:
        answer, says = answer_of_dialect(live, path, text=TEXT)
    samples, file_says = of_file(base64.b64decode(answer.json()["audio_base64"]), "wav")
    return samples, [says, file_says]


async def elevenlabs_streamed_timestamps(tts: TTSEngine, *_: object) -> Heard:
    path = f"/v1/text-to-speech/{VOICE}/stream/with-timestamps?output_format=pcm_24000"
    with serving(tts) as live:
        answer, says = answer_of_dialect(live, path, text=TEXT)
    lines = map(json.loads, answer.text.splitlines())
    return of_pcm(b"".join(base64.b64decode(each["audio_base64"]) for each in lines)), [says]


async def cartesia_whole(tts: TTSEngine, *_: object) -> Heard:
    how = {"container": "wav", "encoding": "pcm_s16le", "sample_rate": 24000}
    with serving(tts) as live:
        body = cartesia("c", TEXT, voice=VOICE, output_format=how)
        answer, says = answer_of_dialect(live, "/tts/bytes", **body)
    samples, file_says = of_file(answer.content, "wav")
    return samples, [says, file_says]


async def cartesia_streamed(tts: TTSEngine, *_: object) -> Heard:
    with serving(tts) as live:
        answer, says = answer_of_dialect(live, "/tts/bytes", **cartesia("c", TEXT, voice=VOICE))
    return of_pcm(answer.content), [says]


async def cartesia_events(tts: TTSEngine, *_: object) -> Heard:
    with serving(tts) as live:
        answer, says = answer_of_dialect(live, "/tts/sse", **cartesia("c", TEXT, voice=VOICE))
    lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
    return of_pcm(audio_of([json.loads(line.removeprefix("data: ")) for line in lines])), [says]


async def deepgram_file(tts: TTSEngine, *_: object) -> Heard:
    path = f"/v1/speak?model={VOICE}&encoding=mp3&sample_rate=24000"
    with serving(tts) as live:
        answer, says = answer_of_dialect(live, path, text=TEXT)
    with soundfile.SoundFile(io.BytesIO(answer.content)) as file:  # streamed, so not signed
        return file.read(dtype="float32"), [says, file.comment == COMMENT]


async def over_socket(
    tts: TTSEngine, path: str, is_last: Callable[[dict], object], *messages: dict
) -> Heard:
    """Hear a vendor's WebSocket, whose messages have no field of ours: the handshake says it."""
    with serving(tts) as live:
        async with dialect(live, path.replace("vivian", VOICE)) as socket:
            for message in messages:
                await tell(socket, **message)
            audio = audio_of(await listen(socket, is_last))
        return of_pcm(audio), [socket.response.headers.get("X-AI-Generated") == "true"]


async def elevenlabs_websocket(tts: TTSEngine, *_: object) -> Heard:
    messages = {"text": f"{TEXT} ", "flush": True}, {"close_socket": True}
    is_last = lambda message: message.get("isFinal")  # noqa: E731
    return await over_socket(tts, ELEVENLABS, is_last, *messages)


async def cartesia_websocket(tts: TTSEngine, *_: object) -> Heard:
    message = cartesia("c", TEXT, voice=VOICE)
    return await over_socket(tts, CARTESIA, lambda each: each["type"] == "done", message)


async def deepgram_websocket(tts: TTSEngine, *_: object) -> Heard:
    messages = {"type": "Speak", "text": TEXT}, {"type": "Flush"}
    is_last = lambda message: message.get("type") == "Flushed"  # noqa: E731
    return await over_socket(tts, DEEPGRAM, is_last, *messages)


# tests/sheen/test_adapters.py has the command of the second family.
SURFACES: tuple[Callable[..., Awaitable[Heard]], ...] = (
    *(command, batch, http_whole, http_streamed, http_timestamps, events, phases),
    *(websocket, websocket_whole, wyoming, pipecat, ray, library),
    *(elevenlabs_whole, elevenlabs_streamed, elevenlabs_whole_timestamps),
    *(elevenlabs_streamed_timestamps, elevenlabs_websocket),
    *(cartesia_whole, cartesia_streamed, cartesia_events, cartesia_websocket),
    *(deepgram_file, deepgram_websocket),
)


@pytest.mark.parametrize("surface", SURFACES, ids=lambda surface: surface.__name__)
async def test_every_surface_has_the_watermark_and_says_that_its_speech_is_synthetic(
    surface: Callable[..., Awaitable[Heard]], tts: TTSEngine, tmp_path: Path, monkeypatch
):
    samples, says = await surface(tts, tmp_path, monkeypatch)
    (found,) = find_marks(samples, 24000, KEY.secret, search_speeds=False)
    assert found.operator == KEY.operator
    assert says and all(each is True for each in says)


def test_without_marks_nothing_says_so(tmp_path: Path):
    with tiny_engine(max_frames=4, mark=UNMARKED) as tts, serving(tts) as live:
        answer = answered(live, stream=False)
        assert "X-AI-Generated" not in answer.headers and answer.content[36:40] == b"data"
        facts = sse(answered(live, stream_format="sse").text)
        assert not any("ai_generated" in each for each in facts)
        assert not answer_of_dialect(live, f"/v1/text-to-speech/{VOICE}", text=TEXT)[1]
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
