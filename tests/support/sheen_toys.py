"""Dimensions and data of the second family at toy size.

Codebooks have their real 4096 codes, so token counts are the real ones.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest

from qwen_megakernel.sheen import text_input
from qwen_megakernel.sheen.engine import SheenEngine
from qwen_megakernel.training.trainer import TrainOptions

CODEBOOK_SIZE = 4096

# Enough to learn two sentences at this size, on one core in seconds.
BY_HEART = TrainOptions(
    learning_rate=2e-2,
    precision="fp32",
    batch_size=1,
    gradient_accumulation=1,
    epochs=120,
    warmup_steps=5,
    weight_decay=0.0,
)


def speaker(folder: Path, **options: Any) -> SheenEngine:
    """Return an engine of a trained voice that begins without a warm-up."""
    return SheenEngine.from_pretrained(str(folder), backend="torch", warmup=False, **options)


needs_espeak = pytest.mark.skipif(
    shutil.which(text_input.PROGRAM) is None, reason="espeak-ng is not installed"
)
GREEDY = {"do_sample": False, "subtalker_do_sample": False, "repetition_penalty": 1.0}
TEXTS = {"0001": "həˈloʊ wɝld", "0002": "ɡʊd ˈmɔɹnɪŋ"}
HELLO, MORNING = TEXTS.values()
# The worked example in the description of this model family.
EXAMPLE_LAYERS = [[100, 200], [10, 11, 20, 21], [1, 2, 3, 4, 5, 6, 7, 8]]
QWEN2_CONFIG = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "initializer_range": 0.1,  # with less, past tokens hardly affect the next
}
