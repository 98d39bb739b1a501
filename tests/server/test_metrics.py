"""/metrics: the names, and that they count requests and speech."""

import json
import time

import pytest
from fake_engine import FRAME_SAMPLES, STORY, FakeEngine
from live_server import http_post, serving
from prometheus_client.parser import text_string_to_metric_families
from waiting import wait_until

from qwen_megakernel.errors import GenerationError, GPULost
from qwen_megakernel.server.admission import Admission, Newest
from qwen_megakernel.server.metrics import Metrics, SpeechRecord


def read(live):
    """{sample name with labels: value}, parsed by Prometheus' own parser."""
    families = text_string_to_metric_families(live.client.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples]
    labels = ["".join(f"{{{key}={value}}}" for key, value in s.labels.items()) for s in samples]
    return {s.name + told: s.value for s, told in zip(samples, labels, strict=True)}


def test_requests_are_counted_and_timed_by_finish_reason():
    with serving(FakeEngine(rtf=0.001)) as live:
        live.speak("One.")
        live.speak("Two.", stream=False)
        live.speak("Two.", stream=True)
        live.engine.fail_after, live.engine.error = 1, GenerationError("planted")
        live.speak("Three.", stream=True)
        live.speak(voice="nobody")
        live.client.get("/nothing")
        live.engine.failure = GPULost("planted")  # a server that drains would end itself
        assert live.client.get("/ready").status_code == 503  # no refusal of a request
        found = read(live)
    assert found["tts_requests_total{finish_reason=eos}"] == 3
    assert found["tts_requests_total{finish_reason=error}"] == 1
    assert found["tts_refused_total{status=400}"] == found["tts_refused_total{status=404}"] == 1
    assert "tts_refused_total{status=503}" not in found
    for name in ("tts_request_duration_seconds", "tts_time_to_first_audio_seconds"):
        assert found[f"{name}_count"] == 4 and found[f"{name}_sum"] > 0
    assert found["tts_realtime_factor_count"] == found["tts_tokens_per_second_count"] == 4
    assert found["tts_active_requests"] == found["tts_waiting_requests"] == 0
    assert found["tts_reference_cache_hits_total"] == 0
    assert found["process_resident_memory_bytes"] > 0


def test_a_speech_that_its_client_left_when_it_was_made_and_not_yet_sent_was_cancelled():
    with serving(FakeEngine(rtf=0.001), send_buffer=4096) as live:
        with live.connect_slowly() as client:
            client.sendall(http_post(json.dumps({"input": STORY * 8}).encode()))
            wait_until(lambda: live.service.admission.open_responses)
            wait_until(lambda: not live.service.admission.running)  # the engine is done
        live.settle()
        found = read(live)
        (facts,) = live.service.finished.values()
    assert found["tts_requests_total{finish_reason=cancelled}"] == 1
    assert "tts_requests_total{finish_reason=eos}" not in found
    assert facts["finish_reason"] == "cancelled"


def test_what_runs_and_what_waits_is_shown_while_it_does():
    engine = FakeEngine(num_slots=1, stall_after=1)
    with serving(engine) as live, live.send_speech(), live.send_speech():
        wait_until(lambda: len(engine.streams) == 2)
        found = read(live)
        assert (found["tts_active_requests"], found["tts_waiting_requests"]) == (2, 1)


def test_an_engine_faster_than_speech_does_not_underrun(monkeypatch):
    # With a slow clock, this machine is never late.
    clock = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: clock() / 100)
    with serving(FakeEngine(rtf=0.5)) as live:
        live.speak("A few words.")
        found = read(live)
    assert found["tts_underruns_total"] == 0
    assert found["tts_requests_total{finish_reason=eos}"] == 1


def test_an_engine_slower_than_speech_underruns():
    with serving(FakeEngine(rtf=1.5)) as live:
        live.speak("A few words.")
        assert read(live)["tts_underruns_total"] >= 1


@pytest.mark.parametrize(("gap_s", "underruns"), [(0.01, 0), (0.12, 1)])
def test_a_player_runs_dry_when_a_chunk_comes_later_than_the_last_one_plays(
    gap_s, underruns, monkeypatch
):
    now = [0.0]
    monkeypatch.setattr("qwen_megakernel.server.metrics.time.perf_counter", lambda: now[0])
    record = SpeechRecord(Metrics(Admission(1, 1), lambda: 0), 24000)
    record.add(FRAME_SAMPLES, 1)
    now[0] += gap_s  # a frame plays for 0.08 s
    record.add(FRAME_SAMPLES, 1)
    now[0] += 0.05
    record.add(FRAME_SAMPLES, 1)
    assert record.underruns == underruns


def test_two_servers_of_one_process_count_apart():
    with serving(FakeEngine(rtf=0.001)) as one, serving(FakeEngine(rtf=0.001)) as other:
        one.speak("One.")
        assert read(one)["tts_requests_total{finish_reason=eos}"] == 1
        assert "tts_requests_total{finish_reason=eos}" not in read(other)


def test_finished_requests_are_forgotten_in_the_order_they_ended():
    finished = Newest(capacity=2)
    for name in ("a", "b", "a", "c"):
        finished[name] = {"n": name}
    assert finished.get("b") is None and finished.get("a") and len(finished) == 2
