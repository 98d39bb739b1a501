"""Qwen3 text decoding on the kernel that decodes speech.

The talker of Qwen3-TTS is a Qwen3 decoder with other embeddings and another head, so the kernel's
`forward` runs a Qwen3 text checkpoint as it is: its layers become the talker's. Embedding and head
stay in PyTorch: the kernel draws codes from shared memory, which does not hold 151,936 of them. A
token therefore enters as a prepared embedding (token id -1) and leaves as the hidden state after
the final norm.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from qwen_megakernel.config import ModelConfig, PredictorConfig, StackConfig, TalkerConfig
from qwen_megakernel.errors import ModelFilesError, UnsupportedModel, UsageError
from qwen_megakernel.inventory import TALKER_PREFIX, model_tensors
from qwen_megakernel.kernels import KernelDecoder

# What the library must have and a text model lacks, as small as the kernel can be compiled for.
CODEC_VOCAB_SIZE = 1056  # 1024 control ids and one row of tiles
PREDICTOR_VOCAB_SIZE = 8
NUM_CODE_GROUPS = 2

FILES = ("config.json", "generation_config.json", "tokenizer.json", "*.safetensors")


def text_config(values: dict[str, Any]) -> ModelConfig:
    """The config under which the kernel is compiled for a Qwen3 text model.

    Args:
        values: its config.json.
    Raises:
        UnsupportedModel: not a dense Qwen3 text model, or one with scaled positions.
    """
    rope = values.get("rope_parameters") or values  # the newer layout of config.json
    plain_rope = {None, "default"}
    if values.get("model_type") != "qwen3" or values.get("attention_bias"):
        raise UnsupportedModel(f"model_type {values.get('model_type')!r} is not qwen3.")
    scaling = values.get("rope_scaling") or values.get("rope_parameters") or {}
    if scaling.get("rope_type", scaling.get("type")) not in plain_rope:
        raise UnsupportedModel(f"rope_scaling {scaling} is not supported; only plain RoPE is.")
    stack = StackConfig(
        hidden_size=values["hidden_size"],
        intermediate_size=values["intermediate_size"],
        num_layers=values["num_hidden_layers"],
        num_heads=values["num_attention_heads"],
        num_kv_heads=values["num_key_value_heads"],
        head_dim=values["head_dim"],
        rms_norm_eps=values["rms_norm_eps"],
        rope_theta=rope["rope_theta"],
        max_positions=values["max_position_embeddings"],
        mrope_section=None,
    )
    # The talker's width, so that no projection stands between the two.
    predictor = StackConfig(
        hidden_size=stack.hidden_size,
        intermediate_size=32,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=32,
        rms_norm_eps=stack.rms_norm_eps,
        rope_theta=stack.rope_theta,
        max_positions=stack.max_positions,
        mrope_section=None,
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
        im_start_id=0,
        im_end_id=0,
        tts_pad_id=0,
        tts_bos_id=0,
        tts_eos_id=0,
        talker=talker,
        predictor=PredictorConfig(predictor, PREDICTOR_VOCAB_SIZE),
        speaker_encoder=None,
    )


def find(model: str) -> Path:
    """The folder of a checkpoint: itself, or the one a hub id is downloaded to.

    Raises:
        ModelFilesError: it has no config.json.
    """
    folder = Path(model)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(model, allow_patterns=list(FILES)))
    if not (folder / "config.json").is_file():
        raise ModelFilesError(f"{folder} has no config.json.")
    return folder


def load_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint, in one file or several."""
    weights: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        weights |= load_file(path)
    return weights


class Decoder:
    """Greedy text decoding of one sequence.

    Args:
        values: config.json.
        weights: tensors by their official names; `lm_head.weight` is absent where it is tied.
        tokenizer: for `generate`; token ids need none.
        device: a GPU runs the kernel, the CPU its emulation.
        dtype: bfloat16, or float32.
        max_positions: of prompt and answer.
        end_ids: tokens that end an answer; None: those of config.json.
    """

    def __init__(
        self,
        values: dict[str, Any],
        weights: dict[str, Tensor],
        tokenizer: Tokenizer | None = None,
        *,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        max_positions: int = 2048,
        end_ids: set[int] | None = None,
    ):
        self.tokenizer, self.max_positions = tokenizer, max_positions
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
            num_slots=1,
            max_positions=max_positions,
            max_text_rows=1,
            device=torch.device(device),
            dtype=dtype,
        )
        self._embedding = weights["model.embed_tokens.weight"].to(device=device, dtype=dtype)
        head = weights.get("lm_head.weight")  # absent: tied
        self._head = self._embedding if head is None else head.to(device=device, dtype=dtype)
        ends = values.get("eos_token_id")
        self.end_ids = end_ids or set(ends if isinstance(ends, list) else [ends])

    @classmethod
    def from_pretrained(cls, model: str, **options: Any) -> "Decoder":
        """Load a folder or a hub id, as "Qwen/Qwen3-0.6B"."""
        folder = find(model)
        values = json.loads((folder / "config.json").read_text())
        generation = folder / "generation_config.json"
        if generation.is_file() and "end_ids" not in options:
            ends = json.loads(generation.read_text()).get("eos_token_id")
            options["end_ids"] = set(ends) if isinstance(ends, list) else None
        path = folder / "tokenizer.json"
        tokenizer = Tokenizer.from_file(str(path)) if path.is_file() else None
        return cls(values, load_weights(folder), tokenizer, **options)

    def generate(self, prompt: str, max_tokens: int = 128) -> str:
        """The continuation of a text, best token by best token."""
        if self.tokenizer is None:
            raise UsageError("This checkpoint has no tokenizer.json; use generate_ids.")
        return self.tokenizer.decode(
            self.generate_ids(self.tokenizer.encode(prompt).ids, max_tokens)
        )

    @torch.inference_mode()
    def generate_ids(self, ids: list[int], max_tokens: int = 128) -> list[int]:
        """The same on token ids; the end token is not among them.

        Raises:
            UsageError: prompt and answer do not fit, or there is no prompt.
        """
        if not ids or len(ids) + max_tokens > self.max_positions:
            raise UsageError(
                f"{len(ids)} prompt and {max_tokens} new tokens; {self.max_positions} positions."
            )
        answer: list[int] = []
        hidden = self.forward(ids, 0)
        while len(answer) < max_tokens:
            token = int(torch.mv(self._head, hidden[-1].to(self._head.dtype)).argmax())
            if token in self.end_ids:
                break
            answer.append(token)
            hidden = self.forward([token], len(ids) + len(answer) - 1)
        return answer

    def forward(self, ids: list[int], first_position: int) -> Tensor:
        """[len(ids), hidden_size] float32 after the final norm; one launch of the kernel."""
        rows = self._embedding[torch.tensor(ids, device=self._embedding.device)]
        prepared = torch.full((len(ids),), -1, dtype=torch.int32)
        return self._kernel.forward(0, prepared, rows, first_position=first_position)
