"""Products of bf16 vectors without oneDNN, which repacks the weights on every call.

On two Zen 4 cores we measured 5 GB/s of weights with oneDNN, and 12 to 40 GB/s without. PyTorch has
no separate function for such a product, only a switch for the whole process: while a step of the
decoder runs without oneDNN, other models in other threads do, too (docs/architecture.md).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class _Switch:
    """The state of the process's switch: the first block turns oneDNN off, the last turns it on."""

    lock = threading.Lock()
    num_inside = 0  # blocks that run now


@contextmanager
def without_onednn(device: torch.device, *dtypes: torch.dtype) -> Iterator[None]:
    """Run a block without oneDNN if that helps: on a CPU, if one of the dtypes is bf16.

    Blocks of several threads may overlap. If oneDNN was off before, it stays off.
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
