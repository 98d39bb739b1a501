"""Responses with speech: order of events, clients that disconnect or do not read, deadlines."""

import asyncio
import json
import socket
import struct
import threading
import time
from http.client import HTTPResponse

import numpy as np
import pytest
from fake_engine import FRAME_SAMPLES, FakeEngine
from live_server import SPEECH, http_post, serving, sse
from tiny_speech import tiny_engine
from waiting import wait_until

from qwen_megakernel.errors import GenerationError, KernelTimeout, OutOfMemory

LONG = "A sentence with some forty letters in it. " * 40  # 100 s of humming
SHORT = "Hello there."


def read_some(connection: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        piece = connection.recv(4096)
        assert piece, "closed"
        data += piece
    return data


# ---- the first bytes -----------------------------------------------------------------------------


@pytest.mark.parametrize("response_format", ["wav", "pcm", "flac", "mp3", "opus", "aac"])
def test_the_first_bytes_leave_before_frame_two_exists(response_format):
    """The engine stops after one frame, and the audio of this frame must arrive."""
    if response_format == "aac":
        pytest.importorskip("av")
    with serving(FakeEngine(stall_after=1)) as live:
        with live.send_speech(response_format=response_format) as connection:
            head = read_some(connection, 15)
            assert head.startswith(b"HTTP/1.1 200 OK")
            expected = {"wav": 44 + 2 * FRAME_SAMPLES, "pcm": 2 * FRAME_SAMPLES}
            if response_format in expected:
                body = head
                while b"\r\n\r\n" not in body:
                    body += connection.recv(4096)
                body = body.partition(b"\r\n\r\n")[2]
                while len(body) < expected[response_format]:
                    body += connection.recv(4096)
        assert live.engine.streams[0].num_frames == 1
        live.settle()


def test_the_real_engines_first_bytes_leave_before_frame_two_exists(monkeypatch):
    with tiny_engine() as tts:
        released, steps = threading.Event(), []
        launch = tts._loop.stages.decoder.launch

        def held_back(slots, num_frames):
            steps.append(num_frames)
            if len(steps) > 1:
                assert released.wait(20)
            return launch(slots, num_frames)

        monkeypatch.setattr(tts._loop.stages.decoder, "launch", held_back)
        with serving(tts) as live, live.send_speech(max_new_tokens=6) as connection:
            data = read_some(connection, 44 + 2 * FRAME_SAMPLES)
            assert data.startswith(b"HTTP/1.1 200 OK") and b"RIFF" in data
            assert steps[0] == 1 and len(steps) <= 2
            released.set()
            while not data.endswith(b"0\r\n\r\n"):
                data += connection.recv(4096)


# ---- clients that go away ------------------------------------------------------------------------


@pytest.mark.parametrize("body", [{}, {"stream": True}, {"stream": False}], ids=str)
def test_a_client_that_goes_away_ends_its_stream_within_a_frame(body):
    with serving(FakeEngine(rtf=4.0)) as live:
        connection = live.send_speech(LONG, **body)
        wait_until(lambda: live.engine.streams and live.engine.streams[0].num_frames)
        made = live.engine.streams[0].num_frames
        connection.close()
        wait_until(lambda: not live.engine.speaking)
        live.settle()
        assert live.engine.streams[0].cancelled
        assert live.engine.streams[0].num_frames <= made + 10  # at most the current chunk


def test_a_client_that_goes_away_while_it_waits_leaves_the_queue():
    with serving(FakeEngine(num_slots=1, stall_after=1)) as live, live.send_speech(LONG) as first:
        read_some(first, 15)
        second = live.send_speech(LONG)
        wait_until(lambda: len(live.engine.streams) == 2)
        second.close()
        wait_until(lambda: len(live.service.admission.running) == 1)


def test_a_hundred_clients_that_vanish_leave_nothing():
    with serving(FakeEngine(num_slots=4, rtf=1.0), max_queue=1000) as live:
        connections = [live.send_speech(LONG) for _ in range(100)]
        wait_until(lambda: len(live.engine.streams) == 100)
        for index, connection in enumerate(connections):
            if index % 2:  # RST instead of FIN
                option = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
            connection.close()
        live.settle()
        assert not live.engine.speaking
        assert live.speak(SHORT).status_code == 200
        wait_until(lambda: not live.running.server_state.tasks)


def test_a_half_closed_connection_is_taken_for_gone():
    """A closed connection and a half-closed one look alike until something is sent."""
    with serving(FakeEngine(rtf=1.0)) as live, live.send_speech(LONG) as connection:
        wait_until(lambda: live.engine.speaking)
        connection.shutdown(socket.SHUT_WR)
        wait_until(lambda: not live.engine.speaking)
        live.settle()


# ---- clients that do not read --------------------------------------------------------------------


def test_a_client_that_does_not_read_is_cut_and_delays_no_other():
    engine = FakeEngine(num_slots=1, rtf=0.001)
    with serving(engine, send_buffer=8192, stall_timeout_s=0.5, buffer_s=10) as live:
        with slow_connection(live, LONG * 2):
            wait_until(lambda: engine.streams and engine.streams[0].num_frames > 100)
            made = engine.streams[0].num_frames
            wait_until(lambda: live.service.admission.idle, 20)  # ended by the server
            # Audio that was made ahead: ten seconds here, 64 kB in uvicorn, and the sockets'
            # buffers.
            assert engine.streams[0].num_frames < made + 200
            assert engine.streams[0].cancelled
            wait_until(lambda: not live.running.server_state.connections)
        assert live.speak(SHORT).status_code == 200


def test_a_client_that_reads_slowly_but_steadily_gets_all_of_a_whole_speech():
    times = {"stall_timeout_s": 1.0, "body_timeout_s": 1.0}
    with serving(FakeEngine(rtf=0.0001), send_buffer=8192, **times) as live:
        with live.connect_slowly() as slow:
            slow.sendall(http_post(json.dumps({"input": LONG, "stream": False}).encode()))
            answer, received = HTTPResponse(slow), b""
            answer.begin()
            while piece := answer.read(100_000):
                received += piece
                time.sleep(0.1)
        assert received.endswith(live.engine.streams[0].sent)


def test_a_slow_client_gives_its_slot_back_once_its_speech_is_made():
    engine = FakeEngine(num_slots=1, rtf=0.001)
    with (
        serving(engine, send_buffer=8192, max_queue=0, buffer_s=300) as live,
        slow_connection(live, LONG) as slow,
    ):
        wait_until(lambda: engine.streams and engine.streams[0]._over)
        assert live.speak(SHORT).status_code == 200  # while the first is still being sent
        assert not live.service.admission.idle
        received = len(slow.recv(1 << 16))
        while piece := slow.recv(1 << 16):
            received += len(piece)
            if piece.endswith(b"0\r\n\r\n"):
                break
        assert received > 2 * FRAME_SAMPLES * engine.streams[0].num_frames


def slow_connection(live, text):
    connection = live.connect_slowly()
    connection.sendall(http_post(json.dumps({"input": text[:4096]}).encode()))
    return connection


# ---- what takes too long, what fails -------------------------------------------------------------


def test_a_request_that_waits_past_its_deadline_is_answered_504():
    with serving(FakeEngine(num_slots=1, stall_after=0), deadline_s=0.3) as live:
        for stream in (None, True, False):
            answer = live.speak(stream=stream)
            assert answer.status_code == 504
            assert answer.json()["error"]["code"] == "deadline_exceeded"
        live.settle()
        assert not live.engine.speaking


def test_speech_that_is_cut_by_its_deadline_does_not_look_complete():
    with serving(FakeEngine(stall_after=3), deadline_s=1.5) as live:
        with live.send_speech(response_format="pcm") as connection:
            data = b""
            while piece := receive(connection):
                data += piece
            assert len(data) > 2 * FRAME_SAMPLES and not data.endswith(b"0\r\n\r\n")
        facts = sse(live.speak(stream=True).text)
        assert facts[-1]["type"] == "speech.audio.error"
        assert facts[-1]["error"]["code"] == "deadline_exceeded"


def receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(4096)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (GenerationError("planted"), 500),
        (KernelTimeout("planted"), 503),
        (OutOfMemory("planted"), 503),
        (RuntimeError("a secret"), 500),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("stream", [None, True, False])
def test_speech_that_fails_before_its_first_frame_is_an_error(error, status, stream):
    with serving(FakeEngine(fail_after=0, error=error)) as live:
        answer = live.speak(stream=stream)
        assert answer.status_code == status
        facts = answer.json()["error"]
        assert facts["type"] == "server_error" and "secret" not in facts["message"]
        live.settle()


def test_speech_that_fails_in_the_middle_says_so_in_every_form():
    with serving(FakeEngine(fail_after=3)) as live:
        with live.send_speech() as connection:
            data = b""
            while piece := receive(connection):
                data += piece
            assert not data.endswith(b"0\r\n\r\n")
        *_, last = sse(live.speak(stream=True).text)
        assert (last["type"], last["error"]["message"]) == ("speech.audio.error", "planted")
        assert live.speak(stream=False).status_code == 500
        facts = live.client.post(SPEECH, json={"input": SHORT, "stream_format": "sse"})
        request_id = facts.headers["x-request-id"]
        facts = live.client.get(f"{SPEECH}/{request_id}").json()
        assert facts["finish_reason"] == "error" and facts["error"]["message"] == "planted"


@pytest.mark.parametrize("reason", ["silence", "repeat", "length", "eos"])
def test_every_surface_reports_why_speech_ended(reason, monkeypatch):
    engine = FakeEngine()
    stream = FakeEngine.stream

    def ending(self, text, **options):
        made = stream(self, text, **options)
        last = made._last
        monkeypatch.setattr(made, "_last", lambda _: last(reason))
        return made

    monkeypatch.setattr(FakeEngine, "stream", ending)
    with serving(engine) as live:
        assert live.speak(stream=False).headers["x-finish-reason"] == reason
        assert sse(live.speak(stream=True).text)[-1]["finish_reason"] == reason
        assert sse(live.speak(stream_format="sse").text)[-1]["finish_reason"] == reason
        request_id = live.speak().headers["x-request-id"]
        facts = live.client.get(f"{SPEECH}/{request_id}").json()
        assert facts["finish_reason"] == reason
        counted = live.service.metrics.requests.labels(reason)._value.get()
        assert counted == 4


def test_streams_side_by_side_keep_to_themselves():
    """Eight clients at once: each receives its own pitch, complete and in order."""
    with serving(engine := FakeEngine(rtf=0.05)) as live:

        async def speak_all():
            import httpx

            async with httpx.AsyncClient(base_url=live.url, timeout=30) as client:
                body = {"input": "Eight of these at once.", "response_format": "pcm"}
                return await asyncio.gather(*(client.post(SPEECH, json=body) for _ in range(8)))

        answers = asyncio.run(speak_all())
        assert {answer.content for answer in answers} == {stream.sent for stream in engine.streams}
        assert all(np.frombuffer(answer.content, "<i2").any() for answer in answers)
