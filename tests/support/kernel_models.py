"""Small random models of every shape that the kernel must accept, and streams on them.

The steps of tools/gpu_check import this module, on machines that may have no pytest.
"""

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from qwen_megakernel.checkpoint.config import (
    ModelConfig,
    PredictorConfig,
    StackConfig,
    TalkerConfig,
)
from qwen_megakernel.checkpoint.tensor_shapes import TALKER_PREFIX, model_tensors
from qwen_megakernel.decoders import quantization
from qwen_megakernel.records import Prefill
from qwen_megakernel.speech_options import Sampling

TEXT_IDS = ("im_start", "im_end", "tts_pad", "tts_bos", "tts_eos")
CONTROL_IDS = ("eos", "think", "nothink", "think_bos", "think_eos", "pad", "bos")

# Each limit of a draw is in effect.
NARROW = Sampling().override(
    top_k=20, top_p=0.8, repetition_penalty=1.3, subtalker_top_k=0, subtalker_top_p=0.7
)


def step_alike(ours: Any, theirs: Any, slots: list[int], num_frames: int) -> Any:
    """Step two decoders, whose frames must be the same; returns ours."""
    found, expected = (decoder.step(slots, num_frames) for decoder in (ours, theirs))
    assert (found.num_frames, found.ended) == (expected.num_frames, expected.ended)
    np.testing.assert_array_equal(found.codes, expected.codes)
    return found


def small_config(**changes: Any) -> ModelConfig:
    """Return one layer of everything, 4 codes a frame; the arguments change the two stacks."""
    stack = StackConfig(
        hidden_size=64,
        intermediate_size=96,
        num_layers=1,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        max_positions=512,
        mrope_section=(6, 5, 5),
    )
    talker = TalkerConfig(
        stack=replace(stack, **changes.get("talker", {})),
        vocab_size=1152,  # 128 codes and the 1024 ids that are never drawn
        text_vocab_size=64,
        text_hidden_size=64,
        num_code_groups=4,
        **{f"codec_{name}_id": 140 + index for index, name in enumerate(CONTROL_IDS)},
        speakers={},
        dialects={},
        languages={},
    )
    predictor = replace(stack, mrope_section=None, **changes.get("predictor", {}))
    return ModelConfig(
        model_type="custom_voice",
        model_size="small",
        **{f"{name}_id": index for index, name in enumerate(TEXT_IDS)},
        talker=talker,
        predictor=PredictorConfig(predictor, vocab_size=128),
        speaker_encoder=None,
    )


# The kernel must handle unequal widths and head sizes, a head that is no power of two, more than
# one layer, every ratio of heads, and a matrix wider than one chunk of activations.
SHAPES: dict[str, dict[str, Any]] = {
    "small": {},
    "projected": {
        "talker": {"hidden_size": 96, "head_dim": 64},
        "predictor": {"head_dim": 48, "num_layers": 2},
    },
    "wide": {
        "talker": {"num_kv_heads": 4, "num_layers": 2, "intermediate_size": 2080},
        "predictor": {"num_kv_heads": 1},
    },
}


# The models of programs that a sanitizer watches.
SANITIZED_ENVIRONMENT = {
    "TSAN_OPTIONS": "halt_on_error=1",
    "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
    "EMULATION_LAZY_COPIES": "1",
}


def sanitized_config(talker_head_dim: int = 64) -> ModelConfig:
    """Return the model of sanitized.cu, whose prompt is two chunks of attention in either dtype."""
    return small_config(
        talker={"head_dim": talker_head_dim}, predictor={"hidden_size": 96, "head_dim": 48}
    )


def random_checkpoint(config: ModelConfig, seed: int = 0, eos_gain: float = 1.0) -> Any:
    """Return random weights for `config`; `eos_gain` > 1 lets streams end after a few frames."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in model_tensors(config).items():
        values = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            values = 1 + 0.1 * values
        elif "codec_head" in name or "lm_head" in name:
            values *= 3 / shape[-1] ** 0.5
        elif "embedding" in name:
            values *= 0.5
        elif values.dim() == 2:
            values /= shape[-1] ** 0.5
        weights[name.removeprefix(TALKER_PREFIX)] = values
    weights["codec_head.weight"][config.talker.codec_eos_id] *= eos_gain
    return SimpleNamespace(config=config, talker=weights)


def checkpoint(shape: str = "small", weights: str | None = None, **options: Any) -> Any:
    """Return `random_checkpoint` of one of `SHAPES`; `weights` names its int8 layers."""
    made = random_checkpoint(small_config(**SHAPES[shape]), **options)
    return with_int8(made, weights) if weights else made


def with_int8(checkpoint: Any, weights: str) -> Any:
    """Return the model with the int8 layers of `weights`, one of `choices.WEIGHTS`."""
    talker = quantization.quantize(checkpoint.talker, weights)
    return SimpleNamespace(config=checkpoint.config, talker=talker)


def start(decoder: Any, slot: int, sampling: Sampling, *, seed: int, positions: int = 7) -> None:
    """Begin a stream whose prompt and three text rows depend on `seed` alone."""
    width = decoder.config.talker.stack.hidden_size
    generator = torch.Generator().manual_seed(seed)
    embeds = 0.5 * torch.randn(positions, width, generator=generator)
    rows = 0.3 * torch.randn(4, width, generator=generator)
    dtype = decoder.embeddings.dtype
    prefill = Prefill(embeds.to(dtype), rows[1:].to(dtype), rows[0].to(dtype))
    decoder.prefill(slot, prefill, sampling, seed=seed << 20, part=seed % 3)


def forward(decoder: Any, x: torch.Tensor, slot: int = 0, first: int = 0, **options: Any) -> Any:
    """Return the hidden states of prepared rows, the first of which has position `first`."""
    tokens = torch.full((len(x),), -1, dtype=torch.int32)
    return decoder.forward(slot, tokens, x, first_position=first, **options)


def lose_a_block(decoder: Any) -> None:
    """Make the first barrier of the decoder's next launch wait for a block that never arrives."""
    controls = decoder._buffers.controls
    controls.words[controls.free[0], 0] = -1


def is_clean(decoder: Any) -> bool:
    """Return whether ended launches left control block and tickets clean."""
    controls = decoder._buffers.controls
    return len(controls.free) == len(controls) and not (
        controls.words.any() or controls.tickets.any()
    )


def emulate_blocks(monkeypatch: Any, decoder: Any, num_blocks: int) -> None:
    """Let `num_blocks` blocks be resident, and give all of them to a decoder's launches; a GPU has
    its own number, unless tools/fake_gpu emulates it.
    """
    if decoder.device.type == "cpu" or "QWEN_MEGAKERNEL_FAKE_GPU" in os.environ:
        monkeypatch.setenv("EMULATION_SMS", str(num_blocks))
        monkeypatch.setattr(decoder.launcher, "num_blocks", num_blocks)
