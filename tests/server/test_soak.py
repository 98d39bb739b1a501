"""Thousands of valid and wrong requests: memory, threads and files do not grow."""

import gc
import logging
import tracemalloc
from itertools import pairwise

import pytest
from fake_engine import FakeEngine
from live_server import SPEECH, http_post, serving, wait_until

GROWTH_BYTES = 300_000  # of Python's heap; one leaked stream of a second of audio is 48,000


def one_request(live, index):
    """Send a request of one of ten kinds, and keep nothing of it on the client's side."""
    kind = index % 10
    if kind == 0:
        assert live.speak("Hello.").status_code == 200
    elif kind == 1:
        assert live.speak("Hello.", stream=True).text.endswith("[DONE]\n\n")
    elif kind == 2:
        assert live.speak("Hello.", stream=False, response_format="flac").status_code == 200
    elif kind == 3:
        assert live.client.post(SPEECH, content=b"{").status_code == 415
    elif kind == 4:
        assert live.speak(voice=f"nobody-{index}").status_code == 400
    elif kind == 5:
        assert live.client.get(f"/nothing/{index}").status_code == 404
    elif kind == 6:
        live.send_speech("A sentence that nobody will hear to its end.").close()
    elif kind == 7:
        with live.send_speech("A sentence that is heard for a moment.") as connection:
            connection.recv(1000)
    elif kind == 8:
        with live.connect() as connection:
            connection.sendall(http_post(b'{"input": "cut in the')[:-8])
    else:
        assert live.speak("a" * 5000).status_code == 413


@pytest.mark.parametrize(
    "num_requests",
    [
        pytest.param(300, marks=pytest.mark.ci),
        pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
    ],
)
def test_nothing_grows_over_many_requests(num_requests, monkeypatch):
    # pytest's own handlers keep every log record of a test, which would count as growth.
    monkeypatch.setattr(logging.root, "handlers", [logging.NullHandler()])
    with serving(FakeEngine(rtf=0.001)) as live:
        tasks = []
        measured = []
        tracemalloc.start()
        try:
            # The record of finished requests has a limit; here it is full from the start.
            for index in range(1000):
                live.service.finished[f"earlier-{index}"] = dict.fromkeys("abcdefghi", 0.5)
            for index in range(num_requests):
                one_request(live, index)
                if index in (num_requests // 3, 2 * num_requests // 3, num_requests - 1):
                    live.settle()
                    wait_until(lambda: not live.running.server_state.tasks)
                    live.engine.streams.clear()  # the fake engine keeps its streams
                    gc.collect()
                    measured.append(tracemalloc.get_traced_memory()[0])
                    tasks.append(live.num_tasks())
        finally:
            tracemalloc.stop()
        assert tasks[-1] <= tasks[0]
        assert not live.service.admission.running and not live.engine.speaking
        assert len(live.service.finished) == 1000
        # A leak grows in both halves; imports and caches grow in one.
        growth = min(after - before for before, after in pairwise(measured))
        assert growth < GROWTH_BYTES / 2, measured
        assert live.speak("Hello.").status_code == 200
