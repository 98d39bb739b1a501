"""Products of bf16 vectors without oneDNN, which repacks the weights on every call.

Measured on two Zen 4 cores: 5 GB/s of weights with oneDNN, 12 to 40 GB/s without. PyTorch has no
such product under a name of its own, only a switch, and it is the process's: models of the host in
other threads run without oneDNN, too, while a step of the decoder does (docs/architecture.md).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class _Switch:
    """The process's, so its state is, too: the first in turns it off, the last out on again."""

    lock = threading.Lock()
    num_inside = 0


@contextmanager
def without_onednn(device: torch.device, *dtypes: torch.dtype) -> Iterator[None]:
    """Without oneDNN where that helps: on a CPU, if one of the dtypes is bf16.

    Threads may overlap. If it was off before, it stays off.
    """
    if device.type != "cpu" or torch.bfloat16 not in dtypes:
        yield
        return
    # The public torch.backends.mkldnn.flags also sets TF32 and warns about it on every CPU build.
    with _Switch.lock:
        applies = _Switch.num_inside > 0 or torch._C._get_mkldnn_enabled()
        if applies:
            _Switch.num_inside += 1
            torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        if applies:
            with _Switch.lock:
                _Switch.num_inside -= 1
                if not _Switch.num_inside:
                    torch._C._set_mkldnn_enabled(True)
