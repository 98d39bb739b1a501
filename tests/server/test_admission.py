"""The queue before the engine, loading, and draining."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import httpx
import pytest
from fake_engine import FakeEngine
from live_server import SPEECH, assert_error, http_post, serving
from tolerances import nearly
from waiting import wait_until

from qwen_megakernel.errors import EngineBusy, EngineClosed, KernelTimeout
from qwen_megakernel.server.admission import Admission
from qwen_megakernel.server.error_responses import ApiError

SHORT = "Hello there."
LONG = "A sentence with some forty letters in it. " * 40


# ---- the queue -----------------------------------------------------------------------------------


def test_one_too_many_is_answered_429_at_once():
    with serving(FakeEngine(num_slots=2, stall_after=1), max_queue=1) as live:
        held = [live.send_speech() for _ in range(3)]
        wait_until(lambda: len(live.service.admission.running) == 3)
        answer = live.speak(SHORT)  # the engine stalls, so waiting would never end
        facts = assert_error(answer, 429, "engine_busy")
        assert facts["message"].startswith("1 of 1 places in the queue are taken.")
        assert facts["type"] == "rate_limit_error"
        assert int(answer.headers["retry-after"]) >= 1
        for connection in held:
            connection.close()
        live.settle()
        live.engine.stall_after = None
        assert live.speak(SHORT).status_code == 200


def test_without_a_queue_the_answer_counts_the_slots():
    admission = Admission(num_slots=2, max_queue=0)
    for _ in range(2):
        admission.admit()
    with pytest.raises(EngineBusy, match=r"All 2 slots are taken, and max_queue is 0\."):
        admission.admit()


@pytest.mark.parametrize(
    ("held_s", "text_s", "num_slots", "max_queue", "expected"),
    [
        ((), 0.0, 1, 2, 4),  # no speech has ended yet: the age of the oldest
        ((), 4.0, 1, 2, 12),  # or, if they are longer, their texts
        ((), 0.1, 1, 2, 4),
        ((5.0, 5.0), 9.0, 1, 2, 15),
        ((5.0, 5.0), 0.0, 3, 2, 5),
        ((5.0, 10.0), 0.0, 1, 0, 6),  # the mean of both
        ((0.01,), 0.0, 1, 2, 1),
        ((60.0,), 0.0, 2, 8, 60),  # the largest value
    ],
)
def test_a_refusal_names_how_long_the_queue_will_take(
    monkeypatch, held_s, text_s, num_slots, max_queue, expected
):
    now = 100.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    admission = Admission(num_slots, max_queue)
    for seconds in held_s:
        ticket = admission.admit()
        now += seconds
        ticket.release()
        ticket.release()  # a second release has no effect
    for _ in range(num_slots + max_queue):
        admission.admit(text_s)
    now += 1.2
    with pytest.raises(EngineBusy) as caught:
        admission.admit()
    assert ApiError.of(caught.value).headers == {"Retry-After": str(expected)}
    assert str(caught.value).endswith(f"Try again in {expected} s.")


def test_the_time_in_the_queue_is_no_time_on_a_slot(monkeypatch):
    now = 100.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    admission = Admission(num_slots=1, max_queue=2)
    first, second, third = (admission.admit() for _ in range(3))
    third.release()  # the client left before its turn
    assert admission._mean_s is None
    for ticket in (first, second):
        now += 7
        ticket.release()
    assert admission._mean_s == nearly(7)
    assert admission.idle


def test_connections_are_counted():
    with serving(FakeEngine(stall_after=1), max_connections=2) as live:
        held = [live.send_speech() for _ in range(2)]
        wait_until(lambda: len(live.engine.streams) == 2)
        answer = live.client.get("/health")
        assert_error(answer, 503, "too_many_connections")
        assert answer.headers["retry-after"]
        for connection in held:
            connection.close()
        wait_until(lambda: live.client.get("/health").status_code == 200)


def test_requests_are_spoken_in_the_order_they_came():
    with serving(FakeEngine(num_slots=1, rtf=0.01), max_queue=10) as live:
        with ThreadPoolExecutor(5) as pool:
            for index in range(5):
                request = {"json": {"input": SHORT}, "headers": {"X-Request-Id": str(index)}}
                pool.submit(live.client.post, SPEECH, **request)
                wait_until(lambda index=index: len(live.engine.streams) > index)
        # The event loop may record the last speech after its client has taken it.
        wait_until(lambda: len(live.service.finished) == 5)
        assert list(live.service.finished) == ["0", "1", "2", "3", "4"]


# ---- warming up and going down -------------------------------------------------------------------


def test_an_engine_that_gave_up_is_reported_to_every_request():
    with serving(engine := FakeEngine(rtf=0.001)) as live:
        assert live.client.get("/health").json() == {"status": "ok"}
        engine.failure = engine.refusal = KernelTimeout("3 launches in a row hung.", "planted")
        answer = live.client.get("/health")
        assert answer.status_code == 503
        assert answer.json() == {"status": "failed", "why": "3 launches in a row hung.\nplanted"}
        assert_error(live.client.get("/ready"), 503)
        assert_error(live.speak(SHORT), 503)


def test_ready_and_alive_are_different_answers():
    release = threading.Event()
    engine = FakeEngine(rtf=0.001)

    def make():
        assert release.wait(20)
        return engine

    with serving(make) as live:
        assert live.client.get("/health").json() == {"status": "ok"}
        assert_error(live.client.get("/ready"), 503, "not_ready")
        answer = live.speak(SHORT)
        assert_error(answer, 503, "not_ready")
        assert answer.headers["retry-after"]
        release.set()
        wait_until(lambda: live.client.get("/ready").status_code == 200)
        assert live.speak(SHORT).status_code == 200
    assert engine.closed  # the server closes an engine that it made


def test_an_engine_that_cannot_be_made_ends_the_server():
    with serving(Mock(side_effect=EngineClosed("no such thing"))) as live:
        wait_until(lambda: live.running.should_exit)
        assert str(live.service.failure) == "no such thing"


def test_draining_finishes_what_runs_and_refuses_what_is_new():
    with serving(FakeEngine(stall_after=1)) as live, ThreadPoolExecutor(1) as pool:
        spoken = pool.submit(live.speak, "It takes about a second to say.", stream=True)
        wait_until(lambda: live.engine.streams and live.engine.streams[0].num_frames)
        live.running.handle_exit(signal.SIGTERM, None)
        answer = live.speak(SHORT)
        assert_error(answer, 503, "draining")
        assert answer.headers["retry-after"]
        assert live.client.get("/health").json() == {"status": "draining"}
        assert_error(live.client.get("/ready"), 503)
        live.loop.call_soon_threadsafe(live.engine.go_on)
        assert spoken.result().text.endswith("data: [DONE]\n\n")
        wait_until(lambda: live.running.should_exit)


def test_draining_does_not_wait_for_ever():
    engine = FakeEngine(stall_after=1)
    with serving(engine, drain_timeout_s=0.3) as live, live.send_speech() as connection:
        assert connection.recv(15)
        live.running.handle_exit(signal.SIGTERM, None)
        wait_until(lambda: live.running.should_exit)
    assert engine.streams[0].cancelled


def serve_with(load_engine: str, *words: str) -> list[str]:
    """Return the command `serve` with another function that loads an engine; this is its body."""
    code = f"""
import os, signal, sys, time
import torch
from qwen_megakernel import families
from qwen_megakernel.cli import main

load = families.load_engine

def load_engine(*model, **options):
{load_engine}

families.load_engine = load_engine
sys.exit(main.main(["serve", "--port", "0", "--model", "tiny-random", *sys.argv[1:]]))
"""
    return [sys.executable, "-c", code, *words]


# An engine whose speech takes seconds: a signal comes in time on a busy machine, too.
SLOW = """
    engine = load(*model, **options)
    decoder = engine._loop.stages.decoder
    launch = decoder.launch
    decoder.launch = lambda *step: time.sleep(0.1) or launch(*step)
    return engine
"""


@contextlib.contextmanager
def served_speech(cache_folder):
    """`serve` in a process of its own, and a connection to which it sends a long speech."""
    environment = os.environ | {"QWEN_MEGAKERNEL_CACHE": str(cache_folder), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        serve_with(SLOW, "--backend", "cpu"),
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        # A suite in the background of a shell ignores Ctrl-C, and this process would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        line = process.stderr.readline()
        port = int(line.rpartition(":")[2])
        assert line.startswith("listening on http://127.0.0.1:")
        ready = f"http://127.0.0.1:{port}/ready"
        wait_until(lambda: httpx.get(ready, timeout=30).status_code == 200, 60)
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            body = {"input": LONG, "max_new_tokens": 200, "stream": True}
            connection.sendall(http_post(json.dumps(body).encode()))
            yield process, connection, connection.recv(4096)


def test_sigterm_ends_the_command_with_its_last_stream(cache_folder):
    with served_speech(cache_folder) as (process, connection, data):
        process.send_signal(signal.SIGTERM)
        while not data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            piece = connection.recv(1 << 16)
            assert piece, data[-200:]
            data += piece
        assert process.wait(20) == 128 + signal.SIGTERM
        assert process.stderr.read().splitlines()[-2:] == [
            "finishing 1 speech (at most 120 s); a second signal ends at once",
            "ended by SIGTERM",
        ]


@pytest.mark.ci
def test_a_second_signal_cuts_the_speech_and_ends_the_command(cache_folder):
    with served_speech(cache_folder) as (process, _connection, _):
        process.send_signal(signal.SIGINT)
        lines = iter(process.stderr.readline, "")
        finishing = next(line for line in lines if line.startswith("finishing"))
        assert finishing == "finishing 1 speech (at most 120 s); Ctrl-C again ends at once\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 128 + signal.SIGINT
        assert process.stderr.read() == "ended by SIGINT; 1 speech cut off\n"


@pytest.mark.ci
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_model_is_loaded_ends_the_command_in_order(number):
    """The loading thread is inside PyTorch nearly all the time."""
    busy = "    while True:\n        torch.randn(300, 300) @ torch.randn(300, 300)"
    command = serve_with(busy, "--slots", "3")
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr.readline().startswith("listening on")
        assert "503" in process.stderr.readline()
        assert process.stderr.readline() == "loading tiny-random, 3 slots\n"
        process.send_signal(number)
        assert process.wait(20) == 128 + number
        assert process.stderr.read() == f"ended by {signal.Signals(number).name}\n"
    finally:
        process.kill()  # of a test that fails: the process would compute for ever
        process.communicate()


@pytest.mark.ci  # seconds of a process that imports PyTorch
def test_ctrl_c_that_ends_a_compiler_too_ends_the_command_in_order():
    command = serve_with("    os.kill(os.getpid(), signal.SIGINT)\n    raise KeyboardInterrupt")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 130 and "Traceback" not in done.stderr
    assert done.stderr.endswith("loading tiny-random\nended by SIGINT\n")
