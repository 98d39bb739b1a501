"""Helpers for the ctypes mirrors of structs in C headers."""

import ctypes
from ctypes import c_float, c_int32
from typing import Any

Fields = list[tuple[str, Any]]  # for `_fields_`; the base class of C types has no public name


def fields(kind: Any, names: str) -> Fields:
    """Return members of one C type, from their names with spaces between."""
    return [(name, kind) for name in names.split()]


class SamplingParams(ctypes.Structure):
    """`speech_options.Draw` as the CUDA kernel and the native code of CPUs take it."""

    _fields_ = [
        *fields(c_float, "temperature top_p repetition_penalty"),
        *fields(c_int32, "top_k do_sample"),
    ]
