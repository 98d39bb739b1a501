"""The HTTP server on real (tiny, random) checkpoints, with the clients that users have."""

import base64
import io
import json
import threading
import wave
from http.client import HTTPResponse

import numpy as np
import openai
import pytest
import soundfile
from fake_engine import FakeEngine
from fixtures import module_fixture
from live_server import SPEECH, LiveServer, assert_error, http_post, serving, sse
from tiny_speech import tiny_engine
from tolerances import PCM16_STEP

from qwen_megakernel.marking import UNMARKED
from qwen_megakernel.server.schemas import SpeechBody

TEXT = "Hello there, how are you today?"

tts = module_fixture(lambda: tiny_engine(num_slots=2, mark=UNMARKED))
live = module_fixture(lambda tts: serving(tts))  # a wav head of 44 bytes


@pytest.fixture(scope="module")
def base():
    with tiny_engine("tiny-random-base", mark=UNMARKED) as engine, serving(engine) as server:
        yield server


def client_of(server: LiveServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)


def spoken(tts, seed, **options):
    """The engine's own speech, as int16, in the same chunks, so that every bit is equal."""
    speech = tts.synthesize(TEXT, seed=seed, first_chunk_frames=1, **options)
    return (speech.audio * 32768).astype(np.int16)


# ---- the OpenAI client ---------------------------------------------------------------------------


def test_the_openai_client_gets_the_engines_samples_as_wav(live, tts):
    answer = client_of(live).audio.speech.create(
        model="tts-1", voice="vivian", input=TEXT, extra_body={"seed": 3, "max_new_tokens": 13}
    )
    assert answer.response.headers["content-type"] == "audio/wav"
    samples, rate = read_wav(answer.content)
    assert rate == 24000
    assert np.array_equal(samples, spoken(tts, 3, voice="vivian", max_frames=12))


def test_without_sampling_the_codes_are_the_greedy_ones(live, tts):
    body = {"voice": "vivian", "do_sample": False, "max_new_tokens": 9, "response_format": "pcm"}
    answers = [live.speak(TEXT, seed=seed, stream=False, **body).content for seed in (1, 2)]
    greedy = {"do_sample": False, "subtalker_do_sample": False}
    expected = spoken(tts, 3, voice="vivian", max_frames=8, **greedy)
    assert answers == [expected.tobytes()] * 2


def test_the_openai_client_reads_a_stream_while_it_is_made(live, tts):
    with client_of(live).audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts",
        voice="vivian",
        input=TEXT,
        response_format="pcm",
        extra_body={"seed": 5, "max_new_tokens": 13},
    ) as answer:
        pieces = list(answer.iter_bytes())
    assert len(pieces) > 1
    samples = np.frombuffer(b"".join(pieces), "<i2")
    assert np.array_equal(samples, spoken(tts, 5, voice="vivian", max_frames=12))


def test_the_openai_client_understands_our_errors(live):
    with pytest.raises(openai.BadRequestError) as caught:
        client_of(live).audio.speech.create(model="tts-1", voice="nobody", input=TEXT)
    assert 'Unknown voice "nobody"' in caught.value.body["message"]
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client_of(live).audio.speech.create(model="whisper-1", voice="vivian", input=TEXT)


def test_the_openai_client_lists_the_model(live):
    names = [model.id for model in client_of(live).models.list()]
    assert names[0] == "tiny-random" and "tts-1" in names
    listed = live.client.get("/v1/models").json()
    assert live.client.get("/v1/models/").json() == listed
    assert listed["data"][0]["vocoder_weights"] == "float32"


def test_the_openai_client_asks_for_a_model(live):
    models = client_of(live).models
    for listed in models.list():
        assert models.retrieve(listed.id) == listed
    with pytest.raises(openai.NotFoundError, match='"whisper-1" does not exist'):
        models.retrieve("whisper-1")


def test_a_model_of_the_hub_is_found_by_its_name_with_the_slash():
    engine = FakeEngine()
    engine.files.name = "Qwen/Qwen3-TTS"
    with serving(engine) as live:
        for name in ("Qwen/Qwen3-TTS", "qwen3-tts"):
            assert client_of(live).models.retrieve(name).id == name


# ---- formats -------------------------------------------------------------------------------------


@pytest.mark.parametrize("response_format", ["wav", "flac", "mp3", "opus", "aac"])
@pytest.mark.parametrize("stream", [None, False], ids=["streamed", "whole"])
def test_every_format_decodes_to_the_length_that_was_spoken(live, response_format, stream):
    pytest.importorskip("av")
    options = {"voice": "vivian", "seed": 2, "max_new_tokens": 16, "stream": stream}
    answer = live.speak(TEXT, response_format=response_format, **options)
    assert answer.status_code == 200
    num_samples = live.client.get(f"{SPEECH}/{answer.headers['x-request-id']}").json()["n_samples"]
    slack = {"wav": 0, "flac": 0}.get(response_format, 2500)  # codec delay and padding
    assert abs(num_samples_in(answer.content) - num_samples) <= slack


@pytest.mark.parametrize("response_format", ["pcm", "mp3", "opus", "aac"])
def test_no_delta_is_empty_and_together_they_have_every_frame(live, response_format):
    if response_format == "aac":
        pytest.importorskip("av")
    answer = live.speak(
        **{"input": TEXT, "voice": "vivian", "seed": 2, "max_new_tokens": 31},
        **{"response_format": response_format, "stream_format": "sse", "include_codes": True},
    )
    *deltas, done = sse(answer.text)
    assert all(delta["audio"] for delta in deltas)
    framed = [delta for delta in deltas if "num_frames" in delta]
    assert sum(delta["num_frames"] for delta in framed) == done["n_steps"]
    assert sum(len(delta["codes"]) for delta in framed) == done["n_steps"]
    following = 0
    for delta in framed:
        assert delta["frame_index"] == following
        following += delta["num_frames"]


# ---- headers -------------------------------------------------------------------------------------


def test_headers_have_id_seed_rate_parts_and_finish_reason(live):
    answer = live.speak(TEXT, voice="vivian", seed=11, max_new_tokens=4, stream=False)
    assert answer.headers["x-seed"] == "11"
    assert answer.headers["x-sample-rate"] == "24000"
    assert answer.headers["x-parts"] == "1"
    assert answer.headers["x-finish-reason"] == "length"
    assert int(answer.headers["content-length"]) == len(answer.content) == 44 + 3 * 1920 * 2


def test_how_a_streamed_request_ended_can_be_asked_for(live):
    answer = live.client.post(
        SPEECH,
        json={"input": TEXT, "voice": "vivian", "max_new_tokens": 4, "seed": 1},
        headers={"X-Request-Id": "mine-1"},
    )
    assert answer.headers["x-request-id"] == "mine-1"
    facts = live.client.get(f"{SPEECH}/mine-1").json()
    assert (facts["finish_reason"], facts["n_steps"]) == ("length", 3)
    assert facts["first_audio_ms"] <= facts["elapsed_ms"]


def test_the_parts_of_a_long_text_are_counted_before_they_are_spoken(live):
    text = "This is a sentence that goes on for a while. " * 12
    answer = live.speak(text, voice="vivian", max_new_tokens=3)
    assert int(answer.headers["x-parts"]) > 1


def test_null_is_a_field_that_is_left_out(live):
    nulls = dict.fromkeys(SpeechBody.model_fields.keys() - {"input"})
    assert live.speak("Hello.", **nulls).status_code == 200


@pytest.mark.parametrize(
    ("fields", "warning"),
    [
        ({"task_type": "Base", "füße": "é"}, 'ignored: "f\\u00fc\\u00dfe", "task_type"'),
        (
            {"tempo": 1, "temprature": 0.5},
            'ignored: "tempo", "temprature". Did you mean "temperature"?',
        ),
        ({"instructions": "Whisper."}, "instructions are ignored: this model follows none"),
    ],
)
def test_what_is_ignored_is_named_in_a_warning(live, fields, warning):
    answer = live.speak(TEXT, voice="vivian", max_new_tokens=3, **fields)
    assert (answer.status_code, answer.headers["x-warning"]) == (200, warning)


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("include_codes", {"include_codes": True}),
        ("include_codes", {"include_codes": True, "stream": False}),
        ("include_codes", {"include_codes": True, "stream": True, "stream_format": "audio"}),
        (
            "timestamp_granularities",
            {"timestamp_granularities": ["word"], "stream": True, "stream_format": "audio"},
        ),
    ],
)
def test_what_only_events_carry_is_refused_without_events(live, param, body):
    facts = assert_error(live.speak(TEXT, voice="vivian", **body), 400)
    assert facts["param"] == param and "stream_format" in facts["message"]


# ---- events --------------------------------------------------------------------------------------


def test_openai_events_carry_the_file_and_its_usage(live, tts):
    body = {"voice": "vivian", "seed": 4, "max_new_tokens": 13, "response_format": "pcm"}
    answer = live.speak(TEXT, **body, stream_format="sse", include_codes=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *deltas, done = sse(answer.text)
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    speech = tts.synthesize(TEXT, voice="vivian", seed=4, max_frames=12, first_chunk_frames=1)
    pcm = b"".join(base64.b64decode(event["audio"]) for event in deltas)
    assert np.array_equal(np.frombuffer(pcm, "<i2") / 32768, speech.audio.astype(float))
    assert np.array_equal(np.concatenate([event["codes"] for event in deltas]), speech.codes)
    assert done["type"] == "speech.audio.done"
    usage = done["usage"]
    assert usage["output_tokens"] == len(speech.codes) == done["n_steps"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert 0 < usage["input_tokens"] <= len(TEXT)


def test_the_seeds_curl_is_answered_event_by_event_on_a_base_model(base):
    """Byte for byte what `curl -N -X POST .../v1/audio/speech -H ... -d ...` sends."""
    body = b'{"input":"Hello world","voice":"alloy","stream":true}'
    request = (
        b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost:8090\r\nUser-Agent: curl/8.5.0\r\n"
        b"Accept: */*\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    with base.connect() as connection:
        connection.sendall(request + body)
        answer = HTTPResponse(connection)
        answer.begin()
        text = answer.read().decode("ascii")
    assert (answer.status, answer.reason) == (200, "OK")
    assert answer.headers["content-type"].startswith("text/event-stream")
    warning = 'voice "alloy" is ignored: this model has no speakers'
    assert answer.headers["x-warning"].startswith(warning)
    assert text.endswith("data: [DONE]\n\n")
    assert all(line.startswith("data: ") for line in text.splitlines() if line)
    facts = sse(text)
    decoding = [event for event in facts if event.get("phase") == "decoding"]
    done = facts[-1]
    assert [event["step"] for event in decoding] == list(range(1, done["n_steps"] + 1))
    assert {event["max_steps"] for event in decoding} == {1000}
    assert [event["phase"] for event in facts if "phase" in event][-2:] == ["vocoder", "done"]
    assert done["n_samples"] == 1920 * done["n_steps"] and done["elapsed_ms"] > 0
    with wave.open(io.BytesIO(base64.b64decode(done["audio"]))) as file:
        assert (file.getframerate(), file.getnchannels()) == (24000, 1)
        whole = file.readframes(file.getnframes())
    assert len(whole) == 2 * done["n_samples"]
    deltas = [event for event in facts if event["type"] == "speech.audio.delta"]
    streamed = b"".join(base64.b64decode(event["audio"]) for event in deltas)
    assert streamed[44:] == whole


def test_event_format_phases_is_the_seeds_stream_and_nothing_else(tts, monkeypatch):
    """The older servers' example with this speech's figures; each step is sent before the next."""
    asked = {"input": TEXT, "voice": "vivian", "seed": 4, "max_new_tokens": 6}
    body = json.dumps(asked | {"stream": True, "event_format": "phases"}).encode()
    told = threading.Semaphore(1)  # number of frames that may be drawn
    launch = tts._loop.stages.decoder.launch

    def one_by_one(slots, num_frames):
        assert num_frames == 1 and told.acquire(timeout=20)
        return launch(slots, num_frames)

    with monkeypatch.context() as patch, serving(tts) as server:
        patch.setattr(tts._loop.stages.decoder, "launch", one_by_one)
        with server.connect() as connection:
            connection.sendall(http_post(body))
            answer, received = HTTPResponse(connection), b""
            answer.begin()
            for line in answer:
                received += line
                if line != b"\n":  # an event has come
                    told.release()
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = received.decode("ascii").split("\n\n")
    speech = spoken(tts, 4, voice="vivian", max_frames=5)  # its chunks are longer
    *decoding, vocoder, done, end, nothing = lines
    assert decoding == [
        f'data: {{"phase":"decoding","step":{step},"max_steps":5}}' for step in range(1, 6)
    ]
    assert (vocoder, end, nothing) == ('data: {"phase":"vocoder"}', "data: [DONE]", "")
    facts = json.loads(done.removeprefix("data: "))
    assert list(facts) == ["phase", "n_steps", "n_samples", "elapsed_ms", "audio"]
    assert (facts["phase"], facts["n_steps"], facts["n_samples"]) == ("done", 5, 5 * 1920)
    samples, rate = read_wav(base64.b64decode(facts["audio"]))
    assert rate == 24000 and np.abs(samples.astype(int) - speech).max() <= PCM16_STEP


@pytest.mark.parametrize("event_format", [None, "phases"])
def test_max_steps_is_what_the_request_can_have(live, event_format):
    text = "This is a sentence that goes on for a while. " * 12
    body = {"voice": "vivian", "stream": True, "event_format": event_format}
    parts = int(live.speak(text, voice="vivian", max_new_tokens=3).headers["x-parts"])
    assert parts > 1
    for limit, most in ((4, 3), (None, parts * live.engine.max_frames)):
        with live.client.stream(
            "POST", SPEECH, json={"input": text, "max_new_tokens": limit} | body
        ) as answer:
            first = next(line for line in answer.iter_lines() if '"decoding"' in line)
        assert json.loads(first.removeprefix("data: "))["max_steps"] == most


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("stream", {}),
        ("stream", {"stream": False}),
        ("stream_format", {"stream": True, "stream_format": "sse"}),
        ("response_format", {"stream": True, "response_format": "mp3"}),
        ("include_codes", {"stream": True, "include_codes": True}),
    ],
)
def test_what_phases_have_no_room_for_is_refused(live, param, body):
    answer = live.speak(TEXT, voice="vivian", event_format="phases", **body)
    assert assert_error(answer, 400)["param"] == param


def test_phases_report_a_speech_that_fails_in_the_middle():
    with serving(FakeEngine(fail_after=3)) as server:
        facts = sse(text := server.speak(stream=True, event_format="phases").text)
    assert [event["phase"] for event in facts] == ["decoding"] * 3 + ["error"]
    assert facts[-1]["error"]["message"] == "planted" and "[DONE]" not in text


# ---- voices and models ---------------------------------------------------------------------------


def test_voices_are_objects_with_id_and_name(live, base):
    listing = live.client.get("/v1/audio/voices").json()
    assert "vivian" in [voice["id"] for voice in listing["voices"]]
    assert all(voice["id"] == voice["name"] for voice in listing["voices"])
    assert listing["data"] == listing["voices"] and listing["uploaded_voices"] == []
    assert base.client.get("/v1/audio/voices").json()["voices"] == []


def test_openai_voices_are_unknown_where_there_are_speakers(live, tts):
    assert live.speak(TEXT, voice="alloy").status_code == 400
    with serving(tts, voice_fallback="vivian") as server:
        answer = server.speak(TEXT, voice="alloy", seed=3, max_new_tokens=4, stream=False)
        assert answer.headers["x-warning"] == 'voice "alloy" is spoken by "vivian"'
        expected = spoken(tts, 3, voice="vivian", max_frames=3)
        assert np.array_equal(read_wav(answer.content)[0], expected)


def test_a_voice_has_another_name_on_every_path(tts):
    text, body = "<voice name='alloy'>B.</voice>", {"seed": 3, "response_format": "pcm"}
    with serving(tts, voice_aliases={"alloy": "aiden"}) as server:
        names, body = ("alloy", "aiden"), body | {"text_format": "ssml"}
        answers = [server.speak(text, voice=name, **body) for name in names]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].content == answers[1].content and "x-warning" not in answers[0].headers


def test_a_text_names_voices_as_a_request_does(tts):
    text, options = 'A. <voice name="{}">B.</voice>', {"voice": "aiden", "text_format": "ssml"}
    body = options | {"seed": 3, "response_format": "pcm"}
    with serving(tts, voice_fallback="vivian") as server:
        answer = server.speak(text.format("alloy"), **body)
        assert answer.headers["x-warning"] == 'voice "alloy" is spoken by "vivian"'
        with tts.stream(text.format("vivian"), seed=3, **options) as expected:
            assert answer.content == b"".join(chunk.pcm16 for chunk in expected)
        answer = server.speak(text.format("nobody"), **body)
        assert answer.status_code == 400 and "SSML, line 1, column 4" in answer.text


@pytest.mark.parametrize("name", ["/etc/passwd", "../x.voice.safetensors", "x.voice.safetensors"])
def test_a_voice_is_never_a_path(base, name):
    assert_error(base.speak(TEXT, voice=name), 400, "unknown_voice")


def read_wav(data: bytes) -> tuple[np.ndarray, int]:
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        return file.read(dtype="int16"), file.samplerate


def num_samples_in(data: bytes) -> int:
    """Return the number of samples that FFmpeg decodes, as players do."""
    import av

    with av.open(io.BytesIO(data)) as container:
        rate = container.streams.audio[0].rate
        return sum(frame.samples for frame in container.decode(audio=0)) * 24000 // rate
