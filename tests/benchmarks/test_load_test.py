"""The load generator: its draws, its arithmetic, and runs against live servers."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from subprocess import CompletedProcess

import numpy as np
import pytest
from fake_engine import FakeEngine
from live_server import serving
from tolerances import COUNT_VARIANCE, GAP_MEAN, GAP_SPREAD, SIX_DIGITS, nearly
from websockets.sync.server import serve

from benchmarks import common
from benchmarks.load_test import __main__ as load_test
from benchmarks.load_test import workload
from benchmarks.load_test.speech_client import Heard, played_at_ms
from qwen_megakernel.errors import EngineBusy


@pytest.fixture
def run(capsys):
    def run_(*words):
        code = common.run(load_test.main, load_test.parser().parse_args(words))
        return CompletedProcess(words, code, *capsys.readouterr())

    return run_


# ---- draws -------------------------------------------------------------------------------------


def test_arrivals_are_a_poisson_process_and_the_same_everywhere():
    times = list(workload.arrivals(3, 20, 500))
    gaps = np.diff([0, *times])
    assert np.mean(gaps) == pytest.approx(1 / 20, rel=GAP_MEAN)
    # Exponential gaps spread as far as their mean, and so do the counts of a Poisson process.
    assert np.std(gaps) == pytest.approx(1 / 20, rel=GAP_SPREAD)
    counts = np.histogram(times, bins=500, range=(0, 500))[0]
    assert np.var(counts) == pytest.approx(np.mean(counts), rel=COUNT_VARIANCE)
    assert times == list(workload.arrivals(3, 20, 500))
    assert times[:5] != list(workload.arrivals(4, 20, 500))[:5]
    # SHA-256 of "0:gap:0", its first 8 bytes over 2**64: any machine, any version.
    assert workload.uniform(0, "gap", 0) == pytest.approx(0.178349, abs=SIX_DIGITS)


def test_every_prompt_comes_before_one_comes_again():
    order = workload.prompt_order(0, 8, 20)
    assert sorted(order[:8]) == sorted(order[8:16]) == list(range(8))
    assert order[:8] != order[8:16] and len(order) == 20


# ---- arithmetic --------------------------------------------------------------------------------


def test_a_position_is_played_when_a_player_comes_to_it():
    rng = np.random.default_rng(0)
    for _ in range(50):
        times = np.cumsum(rng.integers(1, 40, size=5)).tolist()
        durations = rng.integers(1, 30, size=5).tolist()
        # An independent calculation, a millisecond at a time.
        clock, heard = 0, {}
        for index, duration in enumerate(durations):
            clock = max(clock, times[index])
            for _ in range(duration):
                heard[len(heard)] = clock
                clock += 1
        for position, at in heard.items():
            assert played_at_ms(times, durations, position) == at
        assert played_at_ms(times, durations, sum(durations)) == clock


def test_figures_of_a_speech_made_by_hand():
    rate = 1000  # a sample is a millisecond
    silence, sound = np.zeros(100, "<i2"), np.full(100, 8000, "<i2")
    heard = Heard(planned=10.0, sent=10.01)
    heard.arrivals = [10.06, 10.08, 10.36]
    heard.pieces = [silence.tobytes(), sound.tobytes()[:-1], sound.tobytes()[-1:] + sound.tobytes()]
    heard.ended = 10.4
    figures = heard.figures(rate)
    assert figures["first_byte_ms"] == nearly(50)
    assert figures["first_byte_planned_ms"] == nearly(60)
    # Silence until 90 ms (a window of 20 ms that is half loud counts); playing began at 50.
    assert figures["leading_silence_ms"] == 90
    assert figures["first_audible_ms"] == nearly(50 + 90)
    # 199 whole samples last until 249 ms; the rest arrives at 350.
    assert figures["underruns"] == 1 and figures["longest_gap_ms"] == nearly(101)
    assert figures["underruns_100ms"] == 1
    assert figures["audio_s"] == nearly(0.3) and figures["e2e_ms"] == nearly(390)


def test_percentiles_are_nearest_rank():
    values = [float(value) for value in range(1, 201)]
    expected = {"mean": 100.5, "p50": 100.0, "p95": 190.0, "p99": 198.0}
    assert common.spread(values, (50, 95, 99)) == expected


# ---- live --------------------------------------------------------------------------------------


@pytest.mark.ci
def test_both_loads_against_our_server(run, tmp_path):
    with serving(engine := FakeEngine(num_slots=64, first_delay_s=0.05, silent_frames=1)) as server:
        words = ["--url", server.url, "--rps", "12", "--concurrency", "3", "--duration", "1"]
        words += ["--warmup", "0", "--json", str(tmp_path / "r.json")]
        words += ["--plot", str(tmp_path / "r.png")]
        done = run(*words, "--voice", "vivian")
        assert done.returncode == 0, done.stderr
        assert server.service.admission.idle
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["model"] == "hum" and found["schema"] == common.SCHEMA
    opened, closed = found["levels"]
    assert opened["completed"] == len(list(workload.arrivals(0, 12, 1)))
    assert closed["completed"] >= 3 and closed["in_flight_peak"] <= 3
    for level in found["levels"]:
        assert level["errors"] == {} and len(level["requests"]) == level["completed"]
        summary = level["summary"]
        assert summary["first_byte_ms"]["p50"] >= 50  # the engine's own delay
        # One frame of silence, of which half a window may count as sound.
        distance = summary["first_audible_ms"]["p50"] - summary["first_byte_ms"]["p50"]
        assert 70 <= distance <= 200
        assert level["xrt"] == nearly(
            sum(request["audio_s"] for request in level["requests"]) / level["wall_s"]
        )
    assert {stream.request.voice for stream in engine.streams} == {"vivian"}
    assert {stream.text.written for stream in engine.streams} == set(load_test.PROMPTS)
    assert "12 rps" in done.stdout and "3 users" in done.stdout
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


def test_requests_that_fail_are_counted_and_reported(run, tmp_path):
    with serving(engine := FakeEngine()) as server:
        speak = engine.stream

        def stream(*args: object, **options: object) -> object:
            if len(engine.streams) >= 4:
                raise EngineBusy("8 of 8 places in the queue are taken.")
            return speak(*args, **options)

        engine.stream = stream
        words = ["--url", server.url, "--rps", "10", "--duration", "1", "--warmup", "0"]
        done = run(*words, "--json", str(tmp_path / "r.json"))
    assert done.returncode == 1
    (level,) = json.loads((tmp_path / "r.json").read_text())["levels"]
    assert level["completed"] == 3 and "429" in done.stderr  # besides one request before the load
    assert sum(level["errors"].values()) == len(level["requests"]) - 3 > 0


def test_a_load_that_sends_nothing_is_a_line_without_figures(run):
    with serving(FakeEngine()) as server:
        done = run("--url", server.url, "--rps", "0.001", "--duration", "0.1", "--warmup", "0.1")
    assert done.returncode == 0 and "0.001 rps     0     0" in done.stdout


@pytest.mark.ci
def test_more_in_flight_than_allowed_are_not_sent(run):
    with serving(engine := FakeEngine(rtf=1.0)) as server:
        words = ["--url", server.url, "--rps", "20", "--duration", "0.5", "--warmup", "0"]
        done = run(*words, "--max-in-flight", "1")
    assert done.returncode == 1 and "not sent" in done.stderr
    assert len(engine.streams) == 2  # one before the load, one of the load


def test_text_goes_in_by_the_word_and_sound_comes_before_the_last(run, tmp_path):
    with serving(engine := FakeEngine()) as server:
        prompts = tmp_path / "prompts.txt"
        prompts.write_text("Once upon a time there was a very small house at the edge of a wood.")
        words = ["--url", server.url, "--concurrency", "1", "--duration", "0.1", "--warmup", "0"]
        words += ["--word-ms", "40", "--prompts", str(prompts), "--voice", "vivian"]
        done = run(*words, "--json", str(tmp_path / "r.json"))
        assert done.returncode == 0, done.stderr
        (level,) = json.loads((tmp_path / "r.json").read_text())["levels"]
        summary = level["summary"]
        assert summary["first_byte_ms"]["p95"] < 15 * 40 < summary["e2e_ms"]["p50"]
        assert engine.streams[-1].written.split() == prompts.read_text().split()
        assert engine.streams[-1].request.voice == "vivian"
        done = run(*words, "--body", '{"voice": "nobody"}')
        assert done.returncode == 3 and "nobody" in done.stderr


def test_a_websocket_that_closes_in_the_middle_of_its_speech_has_failed(run):
    def die(socket):
        socket.recv()
        socket.send(bytes(4800))

    with serve(die, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.socket.getsockname()[1]
        done = run("--url", f"http://127.0.0.1:{port}", "--concurrency", "1", "--word-ms", "1")
    assert done.returncode == 3 and "the server closed the connection" in done.stderr


@pytest.fixture
def other_server() -> Iterator[str]:
    """A server of another project: OpenAI's endpoint, no model list, none of our headers."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((body, self.headers["Authorization"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(np.full(24000, 8000, "<i2").tobytes())

        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    asked: list[tuple[dict[str, object], str | None]] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked = asked
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_other_peoples_servers_can_be_measured(run, other_server):
    url = f"http://127.0.0.1:{other_server.server_port}"
    words = ["--url", url, "--concurrency", "1", "--duration", "0.3", "--warmup", "0"]
    words += ["--api-key", "secret", "--model-name", "tts-9"]
    done = run(*words, "--body", '{"stream": true, "non_streaming_mode": false}')
    assert done.returncode == 0, done.stderr
    body, key = other_server.asked[-1]
    assert key == "Bearer secret" and body["model"] == "tts-9"
    assert body["stream"] is True and body["response_format"] == "pcm"


def test_a_server_that_is_not_there_is_named(run):
    done = run("--url", "http://127.0.0.1:1", "--rps", "1")
    assert done.returncode == 3 and "127.0.0.1:1" in done.stderr
    done = run()
    assert done.returncode == 2 and "--rps" in done.stderr


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--rps", "1,x", "'x' is not a number"),
        ("--rps", "1,0", "0 is not a positive number"),
        ("--concurrency", "1,2.5", "'2.5' is not a whole number"),
        ("--body", '{"stream": tru}', "it is not JSON: Expecting value"),
        ("--body", "[1]", "it is no JSON object"),
    ],
)
def test_a_value_that_cannot_be_read_says_why(option, value, why, capsys):
    with pytest.raises(SystemExit, match="2"):
        load_test.parser().parse_args([option, value])
    assert f"argument {option}: {why}" in capsys.readouterr().err


def test_gaps_between_arrivals_are_never_negative():
    assert all(a < b for a, b in pairwise(workload.arrivals(1, 50, 10)))
