"""Cooperative launches of one process on one GPU never compete: each waits for the last one."""

import threading
from dataclasses import dataclass, field

import pytest
import torch

from qwen_megakernel.gpu import launch_order
from qwen_megakernel.gpu.launch_order import in_order

GPU = torch.device("cuda", 0)


@dataclass(eq=False)
class Stream:
    cuda_stream: int
    device: torch.device = GPU
    waited_for: list["Stream"] = field(default_factory=list)

    def wait_stream(self, other: "Stream") -> None:
        self.waited_for.append(other)


@pytest.fixture
def launch_on(monkeypatch):
    """launch_on(stream): a launch where that stream is the current one."""
    monkeypatch.setattr(launch_order, "_last", {})
    current = threading.local()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current.stream)

    def launch(stream: Stream, work=lambda: None) -> None:
        current.stream = stream
        with in_order(stream.device) as address:
            assert address == stream.cuda_stream
            work()

    return launch


def test_a_launch_waits_on_the_device_for_the_last_one_of_another_stream(launch_on):
    first, second = Stream(1), Stream(2)
    launch_on(first)
    launch_on(first)
    assert not first.waited_for  # launches on one stream are in order anyway
    launch_on(second)
    launch_on(first)
    assert second.waited_for == [first] and first.waited_for == [second]


def test_other_gpus_have_an_order_of_their_own(launch_on):
    first, other = Stream(1), Stream(2, torch.device("cuda", 1))
    launch_on(first)
    launch_on(other)
    assert not other.waited_for


def test_a_launch_that_is_refused_leaves_the_order_as_it_was(launch_on):
    first, second = Stream(1), Stream(2)

    def refuse() -> None:
        raise RuntimeError("planted")

    launch_on(first)
    with pytest.raises(RuntimeError, match="planted"):
        launch_on(second, refuse)
    launch_on(first)
    assert second.waited_for == [first] and not first.waited_for


def test_two_threads_do_not_launch_at_the_same_time(launch_on):
    inside, most = [], []

    def work() -> None:
        inside.append(1)
        most.append(len(inside))
        threading.Event().wait(0.01)
        inside.pop()

    threads = [threading.Thread(target=launch_on, args=(Stream(index), work)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 8


def test_a_cpu_has_no_order_to_keep():
    with in_order(torch.device("cpu")) as address:
        assert address == 0
