"""Speed, volume and sample rate over HTTP, events and the WebSocket."""

import io
import json

import httpx
import numpy as np
import pytest
import soundfile
from fake_engine import FakeEngine
from fixtures import module_fixture
from live_server import SPEECH, LiveServer, assert_error, serving, sse
from speech_socket import session, speak
from tolerances import CODEC_PADDING, LIMITED, LOUDNESS_LU, PEAK_DB, PITCH, SIX_DIGITS, nearly
from waveforms import pitch

from qwen_megakernel.errors import UsageError
from qwen_megakernel.marking import UNMARKED
from qwen_megakernel.server.encoders import AudioFormat
from qwen_megakernel.server.settings import SAMPLE_RATES, ServerSettings
from qwen_megakernel.speech_options import SoundOptions

TEXT = "Your table for two is ready. We will meet you on Friday."
WAYS = [{"stream": False}, {}, {"stream_format": "sse"}]

# With a wav head of 58 bytes.
live = module_fixture(lambda: serving(FakeEngine(rtf=0.001, mark=UNMARKED)))


def pcm(answer: httpx.Response) -> np.ndarray:
    """Return the samples of a response in pcm, in one piece or in events."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        import base64

        deltas = [event["audio"] for event in sse(answer.text) if "delta" in event["type"]]
        return np.frombuffer(b"".join(map(base64.b64decode, deltas)), "<i2")
    return np.frombuffer(answer.content, "<i2")


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_speed_is_heard_and_the_frames_stay_the_codecs(live: LiveServer, way: dict[str, object]):
    plain = live.speak(TEXT, response_format="pcm", **way)
    hum = live.engine.streams[-1].pitch
    fast = live.speak(TEXT, response_format="pcm", speed=2, **way)
    assert len(pcm(fast)) == len(pcm(plain)) // 2
    facts = [
        live.client.get(f"{SPEECH}/{answer.headers['x-request-id']}").json()
        for answer in (plain, fast)
    ]
    assert facts[0]["n_steps"] == facts[1]["n_steps"]
    assert facts[1]["n_samples"] == len(pcm(fast))
    assert pitch(pcm(fast), 24000) == pytest.approx(live.engine.streams[-1].pitch, rel=PITCH)
    assert hum != live.engine.streams[-1].pitch


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_sample_rate_is_the_one_of_the_header_and_of_the_samples(live, way):
    plain = live.speak(TEXT, response_format="pcm", **way)
    low = live.speak(TEXT, response_format="pcm", sample_rate=8000, **way)
    assert low.headers["x-sample-rate"] == "8000"
    assert len(pcm(low)) == len(pcm(plain)) // 3
    assert pitch(pcm(low), 8000) == pytest.approx(live.engine.streams[-1].pitch, rel=PITCH)


def test_volume_is_in_decibels(live: LiveServer):
    quiet = pcm(live.speak(TEXT, response_format="pcm", volume=-20, stream=False))
    peak = 20 * np.log10(np.abs(quiet).max() / 8000)  # the engine hums at 8000
    assert peak == pytest.approx(-20, abs=PEAK_DB)
    loud = pcm(live.speak(TEXT, response_format="pcm", volume=20, stream=False))
    assert 0.9 < np.abs(loud / 32768).max() <= LIMITED


def test_a_whole_speech_has_the_loudness_that_is_asked_for(live: LiveServer):
    loud, soft = (
        pcm(live.speak(TEXT, response_format="pcm", stream=False, loudness=lufs)).astype(float)
        for lufs in (-16, -26)
    )
    levels = [20 * np.log10(np.sqrt(np.mean(samples**2))) for samples in (loud, soft)]
    assert levels[0] - levels[1] == pytest.approx(10, abs=LOUDNESS_LU)


def test_deltas_say_when_they_are_heard(live: LiveServer):
    answer = live.speak(TEXT, response_format="pcm", stream_format="sse", speed=0.5)
    *deltas, done = sse(answer.text)
    counts = [len(event["audio"]) * 3 // 4 // 2 for event in deltas]
    starts = np.cumsum([0, *counts])[:-1] / 24000
    assert [event["start_s"] for event in deltas[:3]] == pytest.approx(starts[:3], abs=SIX_DIGITS)
    assert sum(event["num_frames"] for event in deltas) == done["n_steps"]
    assert done["n_samples"] == 2 * 1920 * done["n_steps"]


@pytest.mark.parametrize("response_format", ["wav", "flac", "mp3", "opus"])
@pytest.mark.parametrize("stream", [None, False])
def test_a_file_has_the_sample_rate(live: LiveServer, response_format: str, stream: bool | None):
    av = pytest.importorskip("av")
    answer = live.speak(TEXT, response_format=response_format, sample_rate=16000, stream=stream)
    with av.open(io.BytesIO(answer.content)) as container:
        rate = container.streams.audio[0].rate
        num_samples = sum(frame.samples for frame in container.decode(audio=0))
    assert rate == (48000 if response_format == "opus" else 16000)  # FFmpeg decodes Opus at 48 kHz
    frames = live.client.get(f"{SPEECH}/{answer.headers['x-request-id']}").json()["n_steps"]
    assert num_samples / rate == pytest.approx(0.08 * frames, abs=CODEC_PADDING)


@pytest.mark.parametrize("rate", SAMPLE_RATES["mp3"])
def test_mp3_has_the_bits_of_speech_at_every_rate(rate: int):
    samples = (8000 * np.sin(np.arange(2 * rate) / 20)).astype(np.int16)
    data = AudioFormat("mp3", rate).file(samples)
    assert 55 < len(data) * 8 / 2 / 1000 < 75


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "opus", "sample_rate": 22050}, "sample_rate"),
        ({"response_format": "mp3", "sample_rate": 9000}, "sample_rate"),
        ({"response_format": "aac", "sample_rate": 47999}, "sample_rate"),
        ({"response_format": "ulaw", "encoding": "ulaw"}, "encoding"),
        ({"response_format": "mp3", "encoding": "pcm"}, "encoding"),
        ({"response_format": "ulaw", "sample_rate": 7999}, "sample_rate"),
        ({"speed": 4.1}, "speed"),
        ({"volume": "loud"}, "volume"),
        ({"loudness": -16}, "loudness"),
        ({"loudness": -16, "stream": True}, "loudness"),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_is_spoken(live, fields, param):
    num_streams = len(live.engine.streams)
    facts = assert_error(live.speak(TEXT, **fields), 400)
    assert facts["param"] == param
    async with session(live, False) as socket:
        await socket.send(json.dumps({"type": "session.config", **fields}))
        refused = json.loads(await socket.recv())
        assert refused["type"] == "error" and refused["error"]["param"] == param
    assert len(live.engine.streams) == num_streams


async def test_a_session_is_not_told_of_a_field_that_it_has_not(live: LiveServer):
    async with session(live, False) as socket:
        await socket.send(json.dumps({"type": "session.config", "loudness": -16}))
        assert json.loads(await socket.recv())["message"].endswith("complete.\nUse volume, in dB.")


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_silence_at_the_edges_is_cut_where_a_request_says_so(way):
    with serving(FakeEngine(rtf=0.001, silent_frames=5)) as live:
        whole = pcm(live.speak(TEXT, response_format="pcm", **way))
        cut = pcm(live.speak(TEXT, response_format="pcm", leading_silence=30, **way))
    assert len(whole) - len(cut) == (400 - 30) * 24
    assert not cut[: 30 * 24].any() and np.abs(cut[30 * 24 :][:240]).max() > 7000


@pytest.mark.parametrize("encoding", ["ulaw", "alaw"])
@pytest.mark.parametrize("stream", [None, False])
def test_a_telephones_samples_are_of_8000_hz_unless_the_request_says_otherwise(
    live: LiveServer, encoding: str, stream: bool | None
):
    samples = pcm(live.speak(TEXT, response_format="pcm", sample_rate=8000, seed=1))
    pitch = live.engine.streams[-1].pitch
    raw = live.speak(TEXT, response_format=encoding, stream=stream)
    assert raw.headers["x-sample-rate"] == "8000"
    assert raw.headers["content-type"] == {"ulaw": "audio/pcmu", "alaw": "audio/pcma"}[encoding]
    assert len(raw.content) == len(samples)
    wav = live.speak(TEXT, response_format="wav", encoding=encoding, stream=stream)
    with soundfile.SoundFile(io.BytesIO(wav.content)) as file:
        assert (file.samplerate, file.subtype) == (8000, encoding.upper())
        assert len(file.read(len(samples))) == len(samples)
    fast = live.speak(TEXT, response_format=encoding, stream=stream, sample_rate=16000)
    assert len(fast.content) == 2 * len(raw.content) and pitch


async def test_the_websocket_sends_the_telephones_samples(live: LiveServer):
    for config, head in (({"response_format": "ulaw"}, 0), ({"encoding": "ulaw"}, 58)):
        config = {"response_format": "wav"} | config
        async with session(live, config) as socket:
            events, audio = await speak(socket, TEXT)
        done = next(event for event in events if event["type"] == "audio.done")
        assert done["sample_rate"] == 8000 and len(audio) == head + done["n_samples"]


def test_a_server_may_answer_with_the_telephones_samples_by_default():
    sound = SoundOptions(sample_rate=24000)
    with serving(FakeEngine(rtf=0.001), default_format="ulaw", sound=sound) as live:
        answer = live.speak(TEXT)
        assert answer.headers["content-type"] == "audio/pcmu"
        assert answer.headers["x-sample-rate"] == "8000"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e400", "-1e9", "1000000000"])
@pytest.mark.parametrize("field", ["speed", "volume", "sample_rate"])
def test_numbers_that_are_none_are_refused(live: LiveServer, field: str, number: str):
    content = f'{{"input": "a", "{field}": {number}}}'
    headers = {"Content-Type": "application/json"}
    assert_error(live.client.post(SPEECH, content=content, headers=headers), 400)


async def test_the_websocket_speaks_as_its_config_says(live: LiveServer):
    async with session(live, {"speed": 2, "sample_rate": 8000}) as socket:
        events, audio = await speak(socket, *TEXT)
    start, done = (next(e for e in events if e["type"] == f"audio.{n}") for n in ("start", "done"))
    assert start["sample_rate"] == done["sample_rate"] == 8000
    assert len(audio) == 2 * done["n_samples"] == nearly(done["n_steps"] * 1920 / 3 / 2 * 2)


def test_a_server_speaks_as_it_was_told_where_a_request_does_not_say():
    sound = SoundOptions(speed=2, volume=-20)
    with serving(FakeEngine(rtf=0.001), sound=sound) as live:
        for fields in ({}, {"speed": 1}):
            answer = live.speak(TEXT, response_format="pcm", stream=False, **fields)
            request = live.engine.streams[-1].request
            assert request.sound == SoundOptions(speed=fields.get("speed", 2), volume=-20)
            assert answer.headers["x-sample-rate"] == "24000"


def test_a_server_whose_default_format_has_not_its_rate_is_refused():
    with pytest.raises(UsageError, match="sample_rate is 22050 and the default format opus"):
        ServerSettings(default_format="opus", sound=SoundOptions(sample_rate=22050))
