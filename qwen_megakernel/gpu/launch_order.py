"""Makes the cooperative launches of several decoders on one GPU run one after another.

A cooperative grid takes every multiprocessor. CUDA does not define what happens to two such grids
on two streams: if each gets some of its blocks onto the GPU, both wait for the rest until their
barriers time out. Therefore a launch waits, on the device and not on the host, for the earlier
launches of other streams. This cannot order the launches of other processes: see docs/gpu-setup.md.
"""

import contextlib
import threading
from collections.abc import Iterator

import torch

_lock = threading.Lock()
_last: dict[torch.device, torch.cuda.Stream] = {}  # the stream of each GPU's last launch


@contextlib.contextmanager
def in_order(device: torch.device) -> Iterator[int]:
    """Yield the current stream's address, for one launch within the block; 0 on a CPU.

    On a GPU, the work that the block enqueues runs after the launches of other streams of this
    process.
    """
    if device.type != "cuda":
        yield 0
        return
    stream = torch.cuda.current_stream(device)
    with _lock:
        before = _last.get(stream.device)
        if before is not None and before != stream:
            stream.wait_stream(before)
        yield stream.cuda_stream
        _last[stream.device] = stream
