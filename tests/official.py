"""The official package as oracle: import it without its audio extras, load a folder in fp32.

qwen-tts 0.1.1 imports torchaudio, sox and onnxruntime at its top, for the 25 Hz tokenizer alone;
empty modules stand in for them where they are not installed.
"""

import functools
import importlib
import random
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

ONLY_FOR_25_HZ = (
    "torchaudio",
    "torchaudio.compliance",
    "torchaudio.compliance.kaldi",
    "sox",
    "onnxruntime",
)


@functools.cache
def package() -> types.ModuleType:
    """The module `qwen_tts`; skips the test that asks where it is not installed."""
    for name in ("transformers", "librosa", "einops", "accelerate"):
        pytest.importorskip(name, reason=f"the official package needs {name}")
    # transformers probes for torchaudio by its metadata: it must look before the stand-ins exist.
    importlib.import_module("transformers.utils.import_utils")
    for name in ONLY_FOR_25_HZ:
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = types.ModuleType(name)
    return pytest.importorskip("qwen_tts", reason="the official qwen-tts 0.1.1 is not installed")


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """`Qwen3TTSModel` of a checkpoint folder: eager attention, CPU, evaluation mode."""
    model = package().Qwen3TTSModel.from_pretrained(
        str(folder), dtype=dtype, attn_implementation="eager", local_files_only=True
    )
    model.model.eval()
    return model


def seed_everything(seed: int) -> None:
    """Seed every generator the official code may draw from."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
