"""Work that is recorded once on a GPU and replayed, and simply done on a CPU.

A decoder frame in PyTorch is some thousand small kernels; starting them one by one costs several
times what they compute. A CUDA graph starts them all with one call.
"""

import threading
from collections.abc import Callable, Hashable

import torch
from torch import Tensor


class Graphs:
    """CUDA graphs by key.

    What is recorded must read and write tensors that stay where they are, have shapes that depend
    on the key alone, and never wait for the device; then doing it directly is the same work, which
    is how a CPU runs it and how it is tested there.
    """

    # "Only one capture may be underway at a time in the process" (PyTorch, torch/cuda/graphs.py):
    # of all instances together, for engines each have a thread of their own.
    _one_at_a_time = threading.Lock()

    def __init__(self, device: torch.device):
        self.device = device
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._pool: tuple[int, int] | None = None
        self._stream: torch.cuda.Stream | None = None

    def run(self, key: Hashable, work: Callable[[], None]) -> None:
        """Do `work`, recorded under `key`.

        The first time it is done directly, which also warms up the libraries it calls, and then
        recorded: recording does not execute.
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
        if self._pool is None:  # graphs run one after another, so they share their scratch memory
            self._pool = torch.cuda.graph_pool_handle()
            # PyTorch's own capture stream is one for the process, on the GPU that was first.
            self._stream = torch.cuda.Stream(self.device)
        with (
            self._one_at_a_time,
            torch.cuda.device(self.device),
            # PyTorch leaves its capture stream current where the end of a capture fails.
            torch.cuda.stream(torch.cuda.current_stream(self.device)),
            torch.cuda.graph(
                graph,
                pool=self._pool,
                stream=self._stream,
                # Other threads may use the GPU meanwhile: another engine, an adapter's reader.
                capture_error_mode="thread_local",
            ),
        ):
            work()
        return graph


def upload(target: Tensor, values: Tensor) -> None:
    """Copy a CPU tensor into `target` without waiting for the device.

    Through pinned memory: a copy from ordinary memory waits for all work before it. The allocator
    keeps the pinned block until the copy is over.
    """
    if target.is_cuda:  # contiguous, or the copy would go through ordinary memory
        values = values.contiguous().pin_memory()
    target.copy_(values, non_blocking=True)


def uploaded(values: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """The values on `device`, as `upload` brings them there: without waiting for it."""
    if device.type == "cuda" and not values.is_cuda:
        values = values.contiguous().pin_memory()
    # Another dtype is made there: here it would be made in ordinary memory.
    return values.to(device, non_blocking=True).to(dtype or values.dtype)


class HostCopy:
    """A copy to the host that was asked for and may still be under way.

    Args:
        values: on any device; may be overwritten by work enqueued after this.
    """

    def __init__(self, values: Tensor):
        self._done: torch.cuda.Event | None = None
        if values.is_cuda:
            self._host = torch.empty_like(values, device="cpu", pin_memory=True)
            self._host.copy_(values, non_blocking=True)
            self._done = torch.cuda.Event()
            self._done.record(torch.cuda.current_stream(values.device))
        else:
            self._host = values.clone()

    def wait(self) -> Tensor:
        """The values, on the CPU. On a GPU this waits for the work before the copy, and no more."""
        if self._done is not None:
            self._done.synchronize()
        return self._host
