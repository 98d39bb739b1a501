"""Runs the programs in .mlpackage files with PyTorch, in place of Core ML on an Apple machine.

The programs are read from disk. Every operation computes in float32 and is rounded to the type of
its result, which is the least error of float16; Core ML's own order of sums, and the Neural
Engine's arithmetic inside an operation, are not emulated.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


@functools.cache
def torch_types() -> dict[type, torch.dtype]:
    """Return torch's dtypes by Core ML's. coremltools is imported late: it takes seconds."""
    from coremltools.converters.mil.mil import types

    return {
        types.fp16: torch.float16,
        types.fp32: torch.float32,
        types.int32: torch.int32,
        types.int16: torch.int16,
        types.uint16: torch.int32,
        types.bool: torch.bool,
    }


class State:
    """The states of one stream, as `MLModel.make_state()` gives them."""

    def __init__(self, shapes: dict[str, Sequence[int]]):
        self.values = {name: torch.zeros(*s, dtype=torch.float16) for name, s in shapes.items()}


class EmulatedModel:
    """The methods of `coremltools.models.MLModel` that a decoder uses."""

    def __init__(self, path: str):
        import coremltools as ct
        from coremltools.converters.mil.frontend.milproto.load import load as load_program
        from coremltools.converters.mil.mil import types

        model = ct.models.MLModel(path, skip_model_load=True)
        spec = model.get_spec()
        self.description = spec.description
        self._function = load_program(
            spec,
            specification_version=spec.specificationVersion,
            file_weights_dir=model.weights_dir,
        ).functions["main"]
        self._is_state = types.is_state
        self.operations = list(self._function.operations)
        self._constants: dict[str, Any] = {}

    def make_state(self) -> State:
        return State({s.name: s.type.stateType.arrayType.shape for s in self.description.state})

    def predict(
        self, inputs: dict[str, np.ndarray], state: State | None = None
    ) -> dict[str, np.ndarray]:
        """Run the program once.

        Raises:
            ValueError: other inputs, shapes or types than the program declares; no state.
        """
        self._check(inputs)
        if (state is None) == bool(self.description.state):
            raise ValueError("a state is given where there is none, or none where there is one")
        values: dict[str, Any] = {name: torch.from_numpy(x) for name, x in inputs.items()}
        for operation in self.operations:
            (output,) = operation.outputs
            values[output.name] = self._run(operation, values, state)
        return {out.name: values[out.name].float().numpy() for out in self._function.outputs}

    def _check(self, inputs: dict[str, np.ndarray]) -> None:
        declared = {each.name: each.type.multiArrayType for each in self.description.input}
        if set(inputs) != set(declared):
            raise ValueError(f"inputs are {sorted(inputs)}; declared: {sorted(declared)}")
        for name, array in inputs.items():
            kind = {65568: np.float32, 131104: np.int32}[declared[name].dataType]
            if array.dtype != kind or array.shape != tuple(declared[name].shape):
                raise ValueError(f"{name} is {array.dtype} {array.shape}")

    def _run(self, operation: Any, values: dict[str, Any], state: State | None) -> Any:
        out = operation.outputs[0]
        if operation.op_type == "const" or operation.op_type.startswith("constexpr_"):
            if out.name not in self._constants:
                self._constants[out.name] = constant(operation)
            return self._constants[out.name]

        def value_of(var: Any) -> Any:
            if isinstance(var, list | tuple):
                return [value_of(each) for each in var]
            if var.name in values:
                return values[var.name]
            return None if self._is_state(var.sym_type) else plain(var.val)

        given = {name: value_of(var) for name, var in operation.inputs.items() if var is not None}
        if operation.op_type == "read_state":
            return state.values[operation.inputs["input"].name].clone()
        if operation.op_type == "coreml_update_state":
            state.values[operation.inputs["state"].name] = given["value"].clone()
            return given["value"]
        given = {name: widened(value) for name, value in given.items()}
        return OPERATIONS[operation.op_type](**given).to(torch_types()[out.dtype])


def plain(value: Any) -> Any:
    """Return a constant as a value of Python or torch."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value))
    return value.item() if isinstance(value, np.generic) else value


def widened(value: Any) -> Any:
    """Return the value that an operation computes with."""
    if isinstance(value, list):
        return [widened(each) for each in value]
    is_half = isinstance(value, Tensor) and value.dtype == torch.float16
    return value.float() if is_half else value


def constant(operation: Any) -> Any:
    """Return the value of a const, or of an 8-bit matrix with a scale for each row."""
    if operation.op_type == "const":
        return plain(operation.outputs[0].val)
    assert operation.op_type == "constexpr_blockwise_shift_scale", operation.op_type
    assert operation.inputs.get("offset") is None
    data, scale = (np.asarray(operation.inputs[name].val) for name in ("data", "scale"))
    assert data.dtype == np.int8
    product = data.astype(np.float32) * scale.astype(np.float32)
    return torch.from_numpy(product).to(torch_types()[operation.outputs[0].dtype])


def numbers(value: Any) -> list[int]:
    return [int(each) for each in value]


def taken(x: Tensor, begin: Any, end: Any, stride: Any = None, **masks: Any) -> tuple:
    """Return the index of a slice: for each axis a range, or one place, which drops the axis."""
    no, steps = [False] * x.ndim, [1] * x.ndim if stride is None else numbers(stride)
    from_first, to_last, one = (masks.get(f"{m}_mask", no) for m in ("begin", "end", "squeeze"))

    def of(axis: int) -> slice | int:
        if one[axis]:
            return int(begin[axis])
        first = None if from_first[axis] else int(begin[axis])
        return slice(first, None if to_last[axis] else int(end[axis]), steps[axis])

    return tuple(map(of, range(x.ndim)))


def slice_by_index(x: Tensor, begin: Any, end: Any, **masks: Any) -> Tensor:
    return x[taken(x, begin, end, **masks)]


def slice_update(x: Tensor, update: Tensor, begin: Any, end: Any, **masks: Any) -> Tensor:
    x = x.clone()
    x[taken(x, begin, end, **masks)] = update
    return x


def conv(x: Tensor, weight: Tensor, bias: Tensor | None = None, **options: Any) -> Tensor:
    return F.conv2d(x, weight, bias, **convolved(**options))


def conv_transpose(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, output_shape: Any = None, **options: Any
) -> Tensor:
    y = F.conv_transpose2d(x, weight, bias, **convolved(**options))
    assert output_shape is None or list(y.shape) == numbers(output_shape)
    return y


def convolved(
    pad_type: str, strides: Any, dilations: Any, groups: int, pad: Any = ()
) -> dict[str, Any]:
    """Return PyTorch's options for a convolution without padding."""
    assert pad_type == "valid" or not any(numbers(pad))
    return {"stride": numbers(strides), "dilation": numbers(dilations), "groups": groups}


def layer_norm(x: Tensor, axes: Any, epsilon: float) -> Tensor:
    axes = numbers(axes)
    y = x - x.mean(axes, keepdim=True)
    return y * torch.rsqrt(y.square().mean(axes, keepdim=True) + epsilon)


def expand_dims(x: Tensor, axes: Any) -> Tensor:
    for axis in sorted(numbers(axes)):
        x = x.unsqueeze(axis)
    return x


def gelu(x: Tensor, mode: str) -> Tensor:
    assert mode == "EXACT"
    return F.gelu(x)


def gather(x: Tensor, indices: Tensor, axis: int, batch_dims: int, **_: Any) -> Tensor:
    assert axis == 0 and batch_dims == 0
    return x[torch.as_tensor(indices).long()]


def matmul(x: Tensor, y: Tensor, transpose_x: bool, transpose_y: bool) -> Tensor:
    return (x.mT if transpose_x else x) @ (y.mT if transpose_y else y)


# The operations that the export's programs have.
OPERATIONS = {
    "abs": lambda x: x.abs(),
    "add": lambda x, y: x + y,
    "cast": lambda x, dtype: x,  # to the type of the result
    "clip": lambda x, alpha, beta: x.clamp(alpha, beta),
    "concat": lambda values, axis, interleave: torch.cat(values, dim=axis),
    "conv": conv,
    "conv_transpose": conv_transpose,
    "equal": lambda x, y: x == y,
    "expand_dims": expand_dims,
    "gather": gather,
    "gelu": gelu,
    "greater_equal": lambda x, y: x >= y,
    "layer_norm": layer_norm,
    "less_equal": lambda x, y: x <= y,
    "logical_and": lambda x, y: x & y,
    "matmul": matmul,
    "mul": lambda x, y: x * y,
    "real_div": lambda x, y: x / y,
    "reduce_max": lambda x, axes, keep_dims: x.amax(numbers(axes), keep_dims),
    "reduce_mean": lambda x, axes, keep_dims: x.mean(numbers(axes), keep_dims),
    "reduce_sum": lambda x, axes, keep_dims: x.sum(numbers(axes), keep_dims),
    "reshape": lambda x, shape: x.reshape(numbers(shape)),
    "rsqrt": lambda x, epsilon: torch.rsqrt(x + epsilon),
    "select": lambda cond, a, b: torch.where(cond, torch.as_tensor(a), torch.as_tensor(b)),
    "silu": lambda x: F.silu(x),
    "sin": lambda x: x.sin(),
    "slice_by_index": slice_by_index,
    "slice_update": slice_update,
    "softmax": lambda x, axis: torch.softmax(x, axis),
    "sub": lambda x, y: x - y,
    "tile": lambda x, reps: x.repeat(numbers(reps)),
    "transpose": lambda x, perm: x.permute(numbers(perm)),
}


def load(folder: Path, name: str) -> EmulatedModel:
    """Return one of the models that an export left in `folder`."""
    return EmulatedModel(str(folder / f"{name}.mlpackage"))


def decode_speech(decoder: EmulatedModel, codes: Tensor, chunk_frames: int) -> np.ndarray:
    """Return [num_samples] of a SpeechDecoder for codes [num_frames, num_quantizers] int32."""
    (shape,) = (e.type.multiArrayType.shape for e in decoder.description.input if e.name == "past")
    past, pieces = np.zeros(tuple(shape), dtype=np.float32), []
    for chunk in codes.split(chunk_frames):
        found = decoder.predict({"codes": chunk.T[None].contiguous().numpy(), "past": past})
        past = found["new_past"]
        pieces.append(found["pcm"][0])
    return np.concatenate(pieces)
