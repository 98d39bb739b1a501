"""Recording and replaying (cuda_graphs.py), with a GPU that only logs its calls."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
import torch

from qwen_megakernel.gpu.cuda_graphs import Graphs, download, upload


@pytest.fixture
def notes(monkeypatch):
    """A list of what happens to graphs, in order; `recording` is in it while one is recorded."""
    log = []

    class Graph:
        def replay(self):
            log.append("replay")

    @contextlib.contextmanager
    def record(graph, pool, stream, capture_error_mode):
        log.append(("recording", pool, stream, capture_error_mode))
        yield
        log.append("recorded")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", record)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: f"stream of {device}")
    pools = iter(("pool", "another pool"))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))
    return log


def test_the_first_run_does_the_work_and_records_it_later_ones_replay(notes):
    graphs = Graphs(torch.device("cuda"))
    for _ in range(3):
        graphs.run("key", lambda: notes.append("work"))
    recording = ("recording", "pool", "stream of cuda", "thread_local")
    assert notes == ["work", recording, "work", "recorded", "replay", "replay"]


def test_each_key_has_its_graph_and_all_share_their_memory(notes):
    graphs = Graphs(torch.device("cuda"))
    for key in (1, 2, 1):
        graphs.run(key, lambda: None)
    assert [note[1] for note in notes if note[0] == "recording"] == ["pool", "pool"]
    assert notes[-1] == "replay"


def test_a_graph_is_recorded_on_its_own_gpu(notes):
    for name in ("cuda:0", "cuda:1"):
        Graphs(torch.device(name)).run("key", lambda: None)
    streams = [note[2] for note in notes if note[0] == "recording"]
    assert streams == ["stream of cuda:0", "stream of cuda:1"]


def test_two_engines_record_one_after_the_other(notes):
    def record():
        Graphs(torch.device("cuda")).run("key", lambda: time.sleep(0.02))

    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            pool.submit(record)
    assert ["recorded" if note == "recorded" else note[0] for note in notes] == [
        *("recording", "recorded", "recording", "recorded")
    ]


def test_what_fails_is_not_recorded(notes):
    graphs = Graphs(torch.device("cuda"))
    with pytest.raises(ZeroDivisionError):
        graphs.run("key", lambda: 1 // 0)
    assert notes == []
    graphs.run("key", lambda: None)
    assert notes[0][0] == "recording"


def test_a_cpu_does_the_work_every_time(notes):
    graphs, done = Graphs(torch.device("cpu")), []
    for _ in range(3):
        graphs.run("key", lambda: done.append(1))
    assert len(done) == 3 and notes == []


def test_a_download_keeps_what_is_overwritten_afterwards():
    values = torch.arange(4)
    wait = download(values)
    values.zero_()
    assert wait().tolist() == [0, 1, 2, 3]


def test_an_upload_to_a_gpu_goes_through_pinned_memory():
    target, values = Mock(is_cuda=True), Mock(is_cuda=False)
    upload(target, values)
    pinned = values.contiguous().pin_memory()
    target.copy_.assert_called_once_with(pinned, non_blocking=True)


def test_what_is_on_a_gpu_is_copied_as_it_is():
    """PyTorch refuses to pin it; a vocoder takes codes from any device."""
    target, values = Mock(is_cuda=True), Mock(is_cuda=True)
    upload(target, values)
    target.copy_.assert_called_once_with(values, non_blocking=True)
    assert not values.contiguous.called
