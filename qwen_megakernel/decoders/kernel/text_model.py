"""The layers of a Qwen text model on the kernel that decodes speech.

The talker of Qwen3-TTS is a Qwen3 decoder with other embeddings and another head, and Qwen2 is one
with a bias on q, k and v and without their norms. So the kernel's `forward` runs the layers of
either, compiled for its dimensions as the talker's. Embedding and head stay in PyTorch: the kernel
draws codes from shared memory, which does not hold a text vocabulary. A token enters as a prepared
embedding (token id -1) and leaves as the hidden state after the final norm.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from qwen_megakernel.checkpoint.config import (
    ModelConfig,
    PredictorConfig,
    StackConfig,
    TalkerConfig,
)
from qwen_megakernel.checkpoint.tensor_shapes import TALKER_PREFIX, model_tensors
from qwen_megakernel.decoders.kernel.decoder import KernelDecoder
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.errors import ModelFilesError, UnsupportedModel

MODEL_TYPES = ("qwen2", "qwen3")

# What the library must have and a text model lacks, as small as the kernel can be compiled for.
CODEC_VOCAB_SIZE = 1056  # 1024 control ids and one row of tiles
PREDICTOR_VOCAB_SIZE = 8
NUM_CODE_GROUPS = 2


def text_config(values: dict[str, Any]) -> ModelConfig:
    """The config under which the kernel is compiled for a text model.

    Args:
        values: its config.json.
    Raises:
        UnsupportedModel: not a dense Qwen2 or Qwen3 text model, or one with scaled positions or
            sliding windows.
    """
    stack = _stack(values)
    # The talker's width, so that no projection stands between the two.
    predictor = replace(
        stack,
        **{"intermediate_size": 32, "num_layers": 1, "num_heads": 1, "num_kv_heads": 1},
        **{"head_dim": 32, "qkv_bias": False, "qk_norm": True},
    )
    ids = ("eos", "think", "nothink", "think_bos", "think_eos", "pad", "bos")
    talker = TalkerConfig(
        stack=stack,
        vocab_size=CODEC_VOCAB_SIZE,
        text_vocab_size=1,
        text_hidden_size=1,
        num_code_groups=NUM_CODE_GROUPS,
        **{f"codec_{name}_id": index for index, name in enumerate(ids)},
        speakers={},
        dialects={},
        languages={},
    )
    return ModelConfig(
        model_type="custom_voice",
        model_size="text",
        **dict.fromkeys(("im_start_id", "im_end_id", "tts_pad_id", "tts_bos_id", "tts_eos_id"), 0),
        talker=talker,
        predictor=PredictorConfig(predictor, PREDICTOR_VOCAB_SIZE),
        speaker_encoder=None,
    )


def _stack(values: dict[str, Any]) -> StackConfig:
    model_type = values.get("model_type")
    if model_type not in MODEL_TYPES or values.get("attention_bias"):
        raise UnsupportedModel(f"model_type {model_type!r} is not {' or '.join(MODEL_TYPES)}.")
    if values.get("use_sliding_window"):
        raise UnsupportedModel("use_sliding_window is true; only full attention is supported.")
    scaling = values.get("rope_scaling") or values.get("rope_parameters") or {}
    if scaling.get("rope_type", scaling.get("type")) not in {None, "default"}:
        raise UnsupportedModel(f"rope_scaling {scaling} is not supported; only plain RoPE is.")
    rope = values.get("rope_parameters") or values  # the newer layout of config.json
    hidden_size, num_heads = values["hidden_size"], values["num_attention_heads"]
    return StackConfig(
        hidden_size=hidden_size,
        intermediate_size=values["intermediate_size"],
        num_layers=values["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=values["num_key_value_heads"],
        head_dim=values.get("head_dim") or hidden_size // num_heads,
        rms_norm_eps=values["rms_norm_eps"],
        rope_theta=rope["rope_theta"],
        max_positions=values["max_position_embeddings"],
        mrope_section=None,
        qkv_bias=model_type == "qwen2",
        qk_norm=model_type == "qwen3",
    )


class KernelTextModel:
    """The layers and the final norm.

    Args:
        values: config.json.
        weights: tensors by their official names; those of embedding and head are not read.
        num_slots: sequences with a cache of their own.
        max_positions: of each.
        device: a GPU runs the kernel, the CPU its emulation.
        dtype: bfloat16, or float32.
    Raises:
        UnsupportedModel: see `text_config`; or the kernel cannot be compiled for these dimensions.
        ModelFilesError: weights are missing.
    """

    def __init__(
        self,
        values: dict[str, Any],
        weights: dict[str, Tensor],
        *,
        num_slots: int = 1,
        max_positions: int,
        device: torch.device,
        dtype: torch.dtype,
    ):
        config = text_config(values)
        names = model_tensors(config)
        rest = {n.removeprefix(TALKER_PREFIX): torch.zeros(s) for n, s in names.items()}
        layers = {name: tensor for name, tensor in weights.items() if name in rest}
        missing = [
            n for n in rest if n.startswith(("model.layers.", "model.norm.")) and n not in layers
        ]
        if missing:
            raise ModelFilesError(f"{len(missing)} tensors are missing: {', '.join(missing[:5])}.")
        self._kernel = KernelDecoder(
            SimpleNamespace(config=config, talker=rest | layers),
            DecoderSizes(num_slots, max_positions, max_text_rows=1, device=device, dtype=dtype),
        )

    def forward(self, slot: int, rows: Tensor, first_position: int) -> Tensor:
        """[n, hidden_size] embeddings -> float32 after the final norm; one launch of the kernel."""
        prepared = torch.full((len(rows),), -1, dtype=torch.int32)
        return self._kernel.forward(slot, prepared, rows, first_position=first_position)
