"""CUDA graphs, recorded on first use and replayed afterwards, and copies that do not wait.

A decoder frame in PyTorch is some thousand small kernels, and starting them one by one takes
several times as long as computing them. A CUDA graph starts them all with one call.
"""

import threading
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor


class Graphs:
    """CUDA graphs by key.

    Recorded work must read and write tensors that stay where they are, have shapes that depend on
    the key alone, and never wait for the device. Calling such work directly has the same effect,
    which is how a CPU runs and tests it.
    """

    # "Only one capture may be underway at a time in the process" (PyTorch, torch/cuda/graphs.py).
    # Each engine has a thread of its own, so all instances share this lock.
    _one_at_a_time = threading.Lock()

    def __init__(self, device: torch.device):
        self.device = device
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._place: dict[str, Any] = {}  # memory pool and stream of every capture

    def run(self, key: Hashable, work: Callable[[], None]) -> None:
        """Replay the work of `key`, or on first use do `work` and record it.

        The first use calls `work` directly, which also warms up the libraries that it calls, and
        once more to record it; the recording does not execute it.
        """
        graph = self._graphs.get(key)
        if graph is not None:
            graph.replay()
            return
        work()
        if self.device.type == "cuda":
            self._graphs[key] = self._record(work)

    def _record(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        if not self._place:  # graphs run one after another, so they share their scratch memory
            self._place["pool"] = torch.cuda.graph_pool_handle()
            # By default PyTorch has one capture stream per process, on the first GPU that was used.
            self._place["stream"] = torch.cuda.Stream(self.device)
        with (
            self._one_at_a_time,
            torch.cuda.device(self.device),
            # PyTorch leaves its capture stream current if the end of a capture fails.
            torch.cuda.stream(torch.cuda.current_stream(self.device)),
            torch.cuda.graph(
                graph,
                **self._place,
                # Other threads, such as another engine's, may use the GPU during the capture.
                capture_error_mode="thread_local",
            ),
        ):
            work()
        return graph


def upload(target: Tensor, values: Tensor) -> None:
    """Copy values into `target` without waiting for the device.

    It uses pinned memory, because a copy from ordinary memory waits for all work before it. The
    allocator keeps the pinned block until the copy is over.
    """
    if target.is_cuda and not values.is_cuda:  # copies of what is not contiguous wait, too
        values = values.contiguous().pin_memory()
    target.copy_(values, non_blocking=True)


def uploaded(values: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return the values on `device`, copied without waiting, as `upload` copies."""
    if device.type == "cuda" and not values.is_cuda:
        values = values.contiguous().pin_memory()
    # The device changes the dtype; the CPU would do so in ordinary memory.
    return values.to(device, non_blocking=True).to(dtype or values.dtype)


def download(values: Tensor) -> Callable[[], Tensor]:
    """Start to copy values to the host; later enqueued work may overwrite them.

    Returns:
        A function that returns the copy. On a GPU it waits only for the work before the copy.
    """
    if not values.is_cuda:
        copied = values.clone()
        return lambda: copied
    host = torch.empty_like(values, device="cpu", pin_memory=True)
    host.copy_(values, non_blocking=True)
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(values.device))

    def wait() -> Tensor:
        done.synchronize()
        return host

    return wait
