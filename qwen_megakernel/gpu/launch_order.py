"""The order of cooperative launches on one GPU: those of several decoders run one after another.

A cooperative grid takes every multiprocessor. CUDA does not promise what becomes of two of them on
two streams: where each got some of its blocks in, both would wait for the rest until their barriers
time out. So a launch waits, on the device and not on the host, for what other streams have launched
before it. Other processes are out of reach: docs/gpu-setup.md says what they need.
"""

import contextlib
import threading
from collections.abc import Iterator

import torch

_lock = threading.Lock()
_last: dict[torch.device, torch.cuda.Stream] = {}  # where each GPU got its last launch


@contextlib.contextmanager
def in_order(device: torch.device) -> Iterator[int]:
    """Yield the current stream's address, for one launch within the block; 0 on a CPU.

    On a GPU what the block enqueues comes after the launches of other streams of this process.
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
