"""Check without a GPU whether work could be recorded in a CUDA graph."""

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class NoHostMode(TorchDispatchMode):
    """Counts operations; refuses those that copy data to the host or from it.

    Meant for the "meta" device, whose tensors have no values, so that reading one fails, too.
    """

    ALWAYS_HOST = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select")
    ALWAYS_HOST += ("unique", "lift_fresh", "pin_memory", "item")

    def __init__(self, device_type: str):
        super().__init__()
        self.device_type, self.counts = device_type, Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        name = function.overloadpacket.__name__
        assert name not in self.ALWAYS_HOST, name
        found = function(*args, **(kwargs or {}))
        tensors = [each for each in (*args, found) if isinstance(each, torch.Tensor)]
        assert all(each.device.type == self.device_type for each in tensors), name
        if name == "index":
            assert all(i is None or i.dtype == torch.int64 for i in args[1]), "mask as an index"
        if not function.is_view and "empty" not in name:  # operations that start a kernel
            self.counts[name] += 1
        return found
