"""Let PyTorch's CPU kernels do the work of its CUDA kernels, on the same bytes.

run.py has every process that it starts import this module after torch. An operation first completes
the copies that are pending on its stream. During a capture it is recorded, and every replay
executes it. An operation that waits for the device on a GPU is refused during a capture, as PyTorch
refuses it there.
"""

import ctypes
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

_runtime = ctypes.CDLL(None)  # the runtime, which was loaded before everything else
_runtime.fake_is_capturing.argtypes = [ctypes.c_void_p]
_runtime.fake_record.argtypes = [ctypes.c_void_p, ctypes.c_int]
_runtime.fake_finish.argtypes = [ctypes.c_void_p]
_runtime.fake_is_here.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
_runtime.fake_refuse.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_runtime.cudaStreamSynchronize.argtypes = [ctypes.c_void_p]
_runtime.cudaMemcpyAsync.argtypes = [*[ctypes.c_void_p] * 2, ctypes.c_size_t, ctypes.c_int]
_runtime.cudaMemcpyAsync.argtypes += [ctypes.c_void_p]

# The CUDA build itself allocates memory, and a view is the same on every device.
KEPT = ("empty", "empty_strided", "set_", "resize_", "record_stream", "copy_")
KEPT += ("_local_scalar_dense", "is_pinned", "_pin_memory")
COMPOSITE = ("aten::convolution",)  # cuDNN does these below the dispatcher
WAITING = ("nonzero", "masked_select", "_unique2", "unique_dim", "equal", "bincount")

_recorded: list[Callable[[], Any]] = []
_registrations: list[torch.library.Library] = []


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
def _run_operation(index: int) -> int:
    try:
        with torch.inference_mode():
            _recorded[index]()
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def install() -> None:
    """Run every operation of the CUDA build on the CPU from now on."""
    _runtime.fake_set_operations(_run_operation)
    library = torch.library.Library("aten", "IMPL")
    _registrations.append(library)  # an operation is registered while its library exists
    warnings.filterwarnings("ignore", message=".*[Oo]verrid", module=r"torch\.library")
    names = torch._C._dispatch_get_registrations_for_dispatch_key("CUDA")
    for name in sorted({name for name in names if name.startswith("aten::")} | {*COMPOSITE}):
        packet, _, overload = name.removeprefix("aten::").partition(".")
        operation = getattr(getattr(torch.ops.aten, packet), overload or "default", None)
        if packet in KEPT or operation is None:
            continue
        if any(r.alias_info and not r.alias_info.is_write for r in operation._schema.returns):
            continue
        library.impl(
            name.removeprefix("aten::"), _Operation(operation), "CUDA", allow_override=True
        )
    library.impl("copy_", _copy, "CUDA", allow_override=True)
    library.impl("_local_scalar_dense", _item, "CUDA", allow_override=True)


def install_own(operation: torch._ops.OpOverload) -> None:
    """Run an operation of this package on the CPU, too."""
    namespace, _, name = operation._schema.name.partition("::")
    library = torch.library.Library(namespace, "FRAGMENT")
    _registrations.append(library)
    library.impl(name, _Operation(operation), "CUDA", allow_override=True)


def precede(kind: type, name: str) -> None:
    """Make a method that launches on a stream (params, num_blocks, stream) wait for the copies that
    are pending on the stream, as a GPU does.
    """
    launch = getattr(kind, name)

    def launched(self: Any, params: Any, num_blocks: int, stream: int | None) -> None:
        if _runtime.fake_is_capturing(stream):
            _refuse(stream, "a launch of the kernel")
        if not _runtime.fake_is_here(stream, params.workspace.control):
            raise RuntimeError("CUDA error: the kernel's weights are on another device")
        _runtime.fake_finish(stream)
        launch(self, params, num_blocks, stream)

    setattr(kind, name, launched)


class _Operation:
    """One operation of PyTorch on tensors of the device."""

    def __init__(self, operation: torch._ops.OpOverload):
        self._name = operation._schema.name.removeprefix("aten::")
        self._exact, self._packet = operation, operation.overloadpacket
        self._on_cpu = ATTENTION.get(self._name, operation)
        self._arguments = operation._schema.arguments
        self._returns = operation._schema.returns
        self._written = [bool(a.alias_info and a.alias_info.is_write) for a in self._arguments]
        self._tensors = [i for i, a in enumerate(self._arguments) if str(a.type) == "Tensor"]

    def __call__(self, *args: Any, **options: Any) -> Any:
        # PyTorch runs an operation on the device of its first tensor, on that device's current
        # stream.
        with torch.cuda.device(_device(args, options)):
            return self._call(torch.cuda.current_stream().cuda_stream, args, options)

    def _call(self, stream: int, args: tuple, options: dict) -> Any:
        if self._waits(args, options):
            _wait(stream, self._name)
        if any(self._written):
            self._change(stream, args, options)
            returned = [self._written_argument(r, args, options) for r in self._returns]
            return (*returned, None)[0] if len(returned) < 2 else tuple(returned)
        if not _runtime.fake_is_capturing(stream):
            _runtime.fake_finish(stream)
            found = self._run(*_swapped(args, options, _alias))
            return pytree.tree_map_only(Tensor, lambda t: _new_like(t, copied=True), found)
        try:
            shapes = self._run(*_swapped(args, options, _shape))
        except NotImplementedError:
            shapes = self._run(*_swapped(args, options, _alias))
        result = pytree.tree_map_only(Tensor, _new_like, shapes)
        targets = [_alias(t) for t in pytree.tree_leaves(result) if isinstance(t, Tensor)]
        swapped = _swapped(args, options, _alias)

        def run() -> None:
            found = [t for t in pytree.tree_leaves(self._run(*swapped)) if isinstance(t, Tensor)]
            for target, value in zip(targets, found, strict=True):
                target.copy_(value)

        _record(stream, run)
        return result

    def _run(self, args: tuple, options: dict) -> Any:
        if any(i < len(args) and isinstance(args[i], int | float) for i in self._tensors):
            return self._packet(*args, **options)  # PyTorch passed a number as a tensor
        return self._on_cpu(*args, **options)

    def _change(self, stream: int, args: tuple, options: dict) -> None:
        """Do an operation in place, or into `out`."""
        targets = [
            options.get(argument.name, args[i] if i < len(args) else None)
            for i, argument in enumerate(self._arguments)
            if self._written[i]
        ]
        targets = [t for t in pytree.tree_leaves(targets) if _is_on_device(t)]
        if any(t.numel() == 0 for t in targets):  # `out` has no size yet
            shapes: dict[int, Tensor] = {}
            swapped = _swapped(args, options, lambda t: shapes.setdefault(id(t), _shape(t)))
            self._run(*swapped)
            for target in targets:
                target.resize_(shapes[id(target)].size())
        swapped = _swapped(args, options, _alias)
        if _runtime.fake_is_capturing(stream):
            _record(stream, lambda: self._run(*swapped))
        else:
            _runtime.fake_finish(stream)
            self._run(*swapped)

    def _written_argument(self, returned: Any, args: tuple, options: dict) -> Any:
        for i, argument in enumerate(self._arguments):
            ours, theirs = argument.alias_info, returned.alias_info
            if ours and theirs and ours.before_set == theirs.before_set:
                return options.get(argument.name, args[i] if i < len(args) else None)
        raise NotImplementedError(f"{self._exact}: both changes its arguments and returns others")

    def _waits(self, args: tuple, options: dict) -> bool:
        """Return whether a GPU would wait here, to find a size or to copy an index."""
        for x in pytree.tree_leaves((args, options)):
            if isinstance(x, Tensor) and x.device.type == "cpu" and x.dim():
                return True
        masks = (torch.bool, torch.uint8)
        by_mask = self._name.startswith("index") and any(
            isinstance(x, Tensor) and x.dtype in masks for x in pytree.tree_leaves(args[1:2])
        )
        return by_mask or self._name in WAITING


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """aten::copy_ from, to and on a device."""
    with torch.cuda.device((source if source.is_cuda else target).device):
        return _copy_here(target, source, non_blocking)


def _copy_here(target: Tensor, source: Tensor, non_blocking: bool) -> Tensor:
    stream = torch.cuda.current_stream().cuda_stream
    source = source.expand(target.size())
    if not target.numel():
        return target
    if target.is_cuda and source.is_cuda:
        to, from_ = _alias(target), _alias(source)
        if _runtime.fake_is_capturing(stream):
            _record(stream, lambda: to.copy_(from_))
        else:
            _runtime.fake_finish(stream)
            to.copy_(from_)
        return target
    # PyTorch copies anything but one block of the same type through such a block.
    if target.is_cuda and not (source.is_contiguous() and source.dtype == target.dtype):
        source, non_blocking = source.to(target.dtype).contiguous(), False
    elif source.is_cuda:
        source = source.to(target.dtype).contiguous()
    if not target.is_contiguous():
        block = torch.empty(target.size(), dtype=target.dtype, device=target.device)
        return target.copy_(_copy(block, source))
    if not non_blocking and _runtime.fake_is_capturing(stream):
        _refuse(stream, "a copy that waits")
    ordinary = not (source if target.is_cuda else target).is_pinned()
    if not non_blocking or ordinary:
        _check_may_wait()
    num_bytes = target.numel() * target.element_size()
    if _runtime.cudaMemcpyAsync(target.data_ptr(), source.data_ptr(), num_bytes, 4, stream):
        _refuse(stream, "a copy of ordinary memory")
    if not non_blocking:
        _runtime.cudaStreamSynchronize(stream)
    return target


def _item(tensor: Tensor) -> Any:
    with torch.cuda.device(tensor.device):
        _wait(torch.cuda.current_stream().cuda_stream, "item")
    return _alias(tensor).item()


def _wait(stream: int, what: str) -> None:
    if _runtime.fake_is_capturing(stream):
        _refuse(stream, what)
    _check_may_wait()
    _runtime.cudaStreamSynchronize(stream)


def _check_may_wait() -> None:
    """Do what PyTorch does under `torch.cuda.set_sync_debug_mode("error")`."""
    if torch.cuda.get_sync_debug_mode() == 2:
        raise RuntimeError("called a synchronizing CUDA operation")


def _refuse(stream: int, what: str) -> None:
    _runtime.fake_refuse(stream, what.encode())
    raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing ({what})")


def _record(stream: int, run: Callable[[], Any]) -> None:
    _recorded.append(run)
    _runtime.fake_record(stream, len(_recorded) - 1)


def _device(args: tuple, options: dict) -> torch.device:
    """Return the device of an operation. As in PyTorch, only single numbers may be on another
    GPU."""
    leaves = pytree.tree_leaves((args, options))
    tensors = [x.device for x in leaves if _is_on_device(x) and x.dim()]
    if len({*tensors}) > 1:
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {tensors}")
    tensors += [x.device for x in leaves if _is_on_device(x)]
    asked = [x for x in leaves if isinstance(x, torch.device) and x.type == "cuda"]
    return (tensors + asked + [torch.device("cuda", torch.cuda.current_device())])[0]


def _is_on_device(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_cuda


def _alias(tensor: Tensor) -> Tensor:
    """Return a new CPU tensor over the same bytes, as a kernel sees them."""
    if not tensor.numel():
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    last = sum((n - 1) * s for n, s in zip(tensor.size(), tensor.stride(), strict=True))
    array = ctypes.c_char * ((last + 1) * tensor.element_size())
    memory = torch.frombuffer(array.from_address(tensor.data_ptr()), dtype=tensor.dtype)
    return memory.as_strided(tensor.size(), tensor.stride())


def _shape(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")


def _new_like(tensor: Tensor, copied: bool = False) -> Tensor:
    new = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cuda")
    if copied:
        _alias(new).copy_(tensor)
    return new


def _swapped(args: tuple, options: dict, swap: Callable[[Tensor], Tensor]) -> tuple[tuple, dict]:
    """Return the arguments with other tensors in place of the device's."""
    device = torch.device("meta" if swap is not _alias else "cpu")

    def swapped(x: Any) -> Any:
        if _is_on_device(x):
            return swap(x)
        if isinstance(x, torch.device):
            return device
        return None if isinstance(x, torch.Generator) else x

    return pytree.tree_map(swapped, (args, options))


def _attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float | None
) -> Tensor:
    shared = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(shared, 1) for x in (k, v))
    attend = torch.ops.aten._scaled_dot_product_attention_math
    mixed = attend(q, k, v, bias, 0.0, causal, None, scale=scale)[0]
    return mixed.transpose(1, 2).contiguous().transpose(1, 2)  # the layout of both kernels


def _flash(q, k, v, dropout=0.0, causal=False, debug=False, *, scale=None):
    none = [torch.empty(0) for _ in range(6)]
    return _attend(q, k, v, None, causal, scale), *none[:3], q.shape[2], k.shape[2], *none[3:]


def _efficient(q, k, v, bias, with_lse, dropout=0.0, causal=False, *, scale=None):
    seed, offset = torch.empty((), dtype=torch.int64), torch.empty((), dtype=torch.int64)
    return _attend(q, k, v, bias, causal, scale), torch.empty(0), seed, offset


# A CPU has none of these. Attention by cuDNN is not replaced, because the engine must not use it.
ATTENTION = {
    "_scaled_dot_product_flash_attention": _flash,
    "_scaled_dot_product_efficient_attention": _efficient,
}
