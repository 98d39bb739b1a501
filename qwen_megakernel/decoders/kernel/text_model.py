"""The layers of a Qwen text model on the kernel that decodes speech.

The talker of Qwen3-TTS is a Qwen3 decoder with other embeddings and another head, and Qwen2 is one
with a bias on q, k and v and without their norms. So the kernel's `forward` runs the layers of
either, compiled for their dimensions in the place of the talker's. Embedding and head stay in
PyTorch: the kernel draws codes from shared memory, which does not hold a text vocabulary. A token
enters as a prepared embedding (token id -1) and leaves as the hidden state after the final norm.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from qwen_megakernel.checkpoint.config import PredictorConfig, StackConfig
from qwen_megakernel.checkpoint.config_fields import Keys
from qwen_megakernel.checkpoint.tensor_shapes import stack_tensors
from qwen_megakernel.decoders.kernel.buffers import TALKER, LayerBuffers
from qwen_megakernel.decoders.kernel.build import TextSizes, TextStack
from qwen_megakernel.decoders.kernel.launcher import Launcher
from qwen_megakernel.decoders.kernel.loading import load_library
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.errors import ModelFilesError, UnsupportedModel

MODEL_TYPES = ("qwen2", "qwen3")

PREDICTOR_VOCAB_SIZE = 8  # the smallest that the kernel takes


def text_sizes(values: Mapping[str, Any]) -> TextSizes:
    """Return the dimensions that the kernel is compiled for to run the model of a config.json.

    Raises:
        UnsupportedModel: the model is no dense Qwen2 or Qwen3 text model, or has scaled positions
            or sliding windows.
        ModelFilesError: a key is missing or has a value outside its limits.
    """
    stack = _stack(values)
    predictor = replace(
        stack,  # the same width, so that there is no projection between the two
        intermediate_size=32,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=32,
        qkv_bias=False,
        qk_norm=True,
    )
    return TextSizes(TextStack(stack), PredictorConfig(predictor, PREDICTOR_VOCAB_SIZE))


def layer_tensors(stack: StackConfig) -> dict[str, tuple[int, ...]]:
    """Return the official names and the shapes of a text model's layers and final norm."""
    return {TALKER + name: shape for name, shape in stack_tensors(stack)}


def _stack(values: Mapping[str, Any]) -> StackConfig:
    model_type = values.get("model_type")
    if model_type not in MODEL_TYPES or values.get("attention_bias"):
        raise UnsupportedModel(f"model_type {model_type!r} is not {' or '.join(MODEL_TYPES)}.")
    if values.get("use_sliding_window"):
        raise UnsupportedModel("use_sliding_window is true; only full attention is supported.")
    scaling = values.get("rope_scaling") or values.get("rope_parameters") or {}
    if scaling.get("rope_type", scaling.get("type")) not in {None, "default"}:
        raise UnsupportedModel(f"rope_scaling {scaling} is not supported; only plain RoPE is.")
    rope = values.get("rope_parameters") or values  # the newer layout of config.json
    return Keys(dict(values), "config.json").read(
        StackConfig,
        head_dim=values.get("head_dim") or (lambda others: others.hidden_size // others.num_heads),
        rope_theta=Keys(rope, "rope_parameters")("rope_theta"),
        mrope_section=None,
        qkv_bias=model_type == "qwen2",
        qk_norm=model_type == "qwen3",
    )


class KernelTextModel:
    """The layers and the final norm of a text model.

    Args:
        values: the model's config.json.
        weights: tensors by their official names; embedding and head are not read.
        num_slots: number of sequences, each with its own KV cache.
        device: a GPU runs the kernel, the CPU its emulation.
        dtype: bfloat16 or float32.
    Raises:
        UnsupportedModel, ModelFilesError: the kernel cannot be compiled for these dimensions, or
            weights are missing.
        ArchError, BuildError, LaunchError, OutOfMemory: the kernel cannot run on the device.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        weights: Mapping[str, Tensor],
        *,
        num_slots: int = 1,
        max_positions: int,
        device: torch.device,
        dtype: torch.dtype,
    ):
        config = text_sizes(values)
        names = layer_tensors(config.talker.stack)
        if missing := [name for name in names if name not in weights]:
            raise ModelFilesError(f"{len(missing)} tensors are missing: {', '.join(missing[:5])}.")
        sizes = DecoderSizes(num_slots, max_positions, device, dtype)
        self.library, num_blocks = load_library(config, sizes)
        layers = {name: weights[name] for name in names}
        buffers = LayerBuffers(config, layers, self.library.description, sizes)
        self._launcher = Launcher(self.library, buffers, num_blocks)

    def forward(self, slot: int, rows: Tensor, first_position: int) -> Tensor:
        """Run consecutive positions of a sequence, with one launch of the kernel.

        Args:
            rows: [n, hidden_size] embeddings.
            first_position: position of the first row; earlier positions of the slot are filled.
        Returns:
            [n, hidden_size] float32 after the final norm.
        Raises:
            UsageError: the positions do not fit the KV cache.
            GenerationError: the launch failed; the sequence must start again from position 0.
        """
        prepared = torch.full((len(rows),), -1, dtype=torch.int32)
        return self._launcher.forward(slot, prepared, rows, first_position=first_position)
