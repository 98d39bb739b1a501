"""The values of `dtype=`, as torch's dtypes."""

from collections.abc import Collection

import torch

from qwen_megakernel import choices
from qwen_megakernel.errors import check_choice

DTYPES: dict[object, torch.dtype] = {name: getattr(torch, name) for name in choices.DTYPES}


def dtype_of(
    name: str | torch.dtype | None, known: Collection[str] = choices.DTYPES
) -> torch.dtype | None:
    """Return the dtype of a name, or a dtype as it is; None: the engine chooses.

    Raises:
        UsageError: no engine computes in this dtype; it lists the names in `known`.
    """
    if name is None or (isinstance(name, torch.dtype) and name in DTYPES.values()):
        return name
    check_choice("dtype", name, known)
    return DTYPES[name]


def dtypes_of(name: str | torch.dtype | None) -> tuple[torch.dtype | None, torch.dtype | None]:
    """Return the dtypes of talker and code predictor, as `dtype_of` does; the second is None if
    they are the same."""
    if name in choices.DTYPES_BY_PART:
        talker, predictor = (DTYPES[part.partition("=")[2]] for part in name.split(","))
        return talker, predictor
    return dtype_of(name, (*choices.DTYPES, *choices.DTYPES_BY_PART)), None
