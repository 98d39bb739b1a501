"""The form of a checkpoint whose matrices are stored as native code reads them on a CPU.

Its model.safetensors has first the packed matrices, uint8 tensors in the order in which a frame
reads them, each at a multiple of `ALIGNMENT` bytes, then all other tensors of the source as they
are. The header's metadata holds a `PackedForm` under `KEY`. The speech tokenizer's file has the
same form; all weights of its vocoder are one packed tensor, uint8 if they are float32 and otherwise
float16, and the vectors of all codes, in the same number format, are another, uint8.
`decoders/cpu/conversion.py` writes both.
"""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qwen_megakernel.checkpoint import safetensors_file
from qwen_megakernel.checkpoint.safetensors_file import EXPONENT_MASKS
from qwen_megakernel.checkpoint.tensor_shapes import Shape
from qwen_megakernel.choices import WEIGHTS
from qwen_megakernel.errors import ModelFilesError

KEY = "qwen_megakernel.packed"
VERSION = 4  # raise it when the packed layout changes
PREFIX = "packed."  # begins the names of packed matrices, after the prefix of their model
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class PackedForm:
    """What a file with packed matrices says of itself."""

    weights: str | None  # one of `choices.WEIGHTS`; None: as the source stored them
    dtype: str  # of the source's matrices, such as "BF16"
    parts: dict[str, list[str]]  # packed matrix -> the source's matrices that it consists of
    source: str  # name of the source
    source_sha256: str  # of the source's model.safetensors

    def __post_init__(self) -> None:
        texts = [self.dtype, self.source, self.source_sha256]
        texts += [name for packed, parts in self.parts.items() for name in [packed, *parts]]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("a name is no text")
        if self.weights not in (None, *WEIGHTS) or self.dtype not in EXPONENT_MASKS:
            raise ValueError(f"its form is {self.weights!r} of {self.dtype!r}")

    def metadata(self) -> dict[str, str]:
        """Return the header's metadata."""
        return {"format": "pt", KEY: json.dumps(asdict(self) | {"version": VERSION})}

    @property
    def part_names(self) -> set[str]:
        """The names, without the prefix, of all of the source's matrices that were packed."""
        return {name for parts in self.parts.values() for name in parts}


def read(path: Path) -> PackedForm | None:
    """Return the form of a file; None: it is a checkpoint as it was released.

    Raises:
        ModelFilesError: another version of this package wrote the file, or it is damaged.
    """
    text = safetensors_file.metadata(path).get(KEY)
    if text is None:
        return None
    try:
        values: dict[str, Any] = json.loads(text)
        if values["version"] == VERSION:
            return PackedForm(**{field.name: values[field.name] for field in fields(PackedForm)})
        problem = f"it has version {values['version']} of the packed form, not {VERSION}"
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        problem = f"what it says of its packed form cannot be read ({error})"
    raise ModelFilesError(
        f"{path} cannot be used: {problem}.", hint="Convert the original model again."
    )


def load(
    path: Path,
    form: PackedForm | None,
    expected: dict[str, Shape],
    prefix: str,
    layout: str = "its config.json",
) -> dict[str, Tensor]:
    """Check a file, and map its tensors with a prefix; those that were packed have no values.

    The sizes of packed matrices are native code's, which compares them when it maps them.

    Args:
        form: that of the file.
        expected: names and shapes of all tensors of the source.
        prefix: that of the packed tensors and of those that they consist of, too.
        layout: where `expected` comes from, in the error.
    Raises:
        ModelFilesError: as `safetensors_file.check`; the bytes are not those that were written.
    """
    if form is None:
        safetensors_file.check(path, expected, layout)
        return safetensors_file.MappedTensors(path, prefix)
    packed = {prefix + PREFIX + name for name in form.parts}
    replaced = {prefix + name for name in form.part_names}
    if unknown := replaced - expected.keys():
        raise ModelFilesError(
            f"{path} does not fit {layout}: it has packed {min(unknown)}, which is unknown.",
            hint="Convert the original model again.",
        )
    found = safetensors_file.describe(path)
    stored = {name: shape for name, shape in expected.items() if name not in replaced}
    stored |= {name: found[name][1] if name in found else () for name in packed}
    safetensors_file.check(path, stored, layout, is_summed=True)
    tensors: dict[str, Tensor] = safetensors_file.MappedTensors(path, prefix)
    dtype = safetensors_file.DTYPES[form.dtype]
    for name in form.part_names:
        tensors[name] = torch.empty(expected[prefix + name], dtype=dtype, device="meta")
    return tensors
