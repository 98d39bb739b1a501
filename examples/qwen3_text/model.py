"""Decodes Qwen3 text with the kernel that decodes speech (decoders.kernel.text_model)."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from qwen_megakernel.decoders.kernel.text_model import KernelTextModel
from qwen_megakernel.errors import ModelFilesError, UsageError

FILES = ("config.json", "generation_config.json", "tokenizer.json", "*.safetensors")


def find(model: str) -> Path:
    """Return the folder of a checkpoint; downloads a hub id.

    Raises:
        ModelFilesError: the folder has no config.json.
    """
    folder = Path(model)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(model, allow_patterns=list(FILES)))
    if not (folder / "config.json").is_file():
        raise ModelFilesError(f"{folder} has no config.json.", hint="Pass a Qwen3 checkpoint.")
    return folder


def load_weights(folder: Path) -> dict[str, Tensor]:
    """Return all tensors of a checkpoint, from one file or several."""
    weights: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        weights |= load_file(path)
    return weights


class Decoder:
    """Decodes one sequence of text, greedily.

    Args:
        values: the contents of config.json.
        weights: tensors by their official names; `lm_head.weight` is absent if it is tied.
        tokenizer: needed only by `generate`.
        device: a GPU runs the kernel, a CPU its emulation.
        dtype: bfloat16 or float32.
        max_positions: maximum number of tokens of prompt and answer together.
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
        self._layers = KernelTextModel(
            values, weights, max_positions=max_positions, device=torch.device(device), dtype=dtype
        )
        self._embedding = weights["model.embed_tokens.weight"].to(device=device, dtype=dtype)
        head = weights.get("lm_head.weight")  # absent if it is tied
        self._head = self._embedding if head is None else head.to(device=device, dtype=dtype)
        ends = values.get("eos_token_id")
        self.end_ids = end_ids or set(ends if isinstance(ends, list) else [ends])

    @classmethod
    def from_pretrained(cls, model: str, **options: Any) -> "Decoder":
        """Load the checkpoint in a folder, or that of a hub id such as "Qwen/Qwen3-0.6B"."""
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
        """Return the continuation of a text by the likeliest tokens."""
        if self.tokenizer is None:
            raise UsageError("This checkpoint has no tokenizer.json; use generate_ids.")
        return self.tokenizer.decode(
            self.generate_ids(self.tokenizer.encode(prompt).ids, max_tokens)
        )

    @torch.inference_mode()
    def generate_ids(self, ids: list[int], max_tokens: int = 128) -> list[int]:
        """Return the token ids that follow `ids`, without the end token.

        Raises:
            UsageError: the prompt is empty, or prompt and answer do not fit.
        """
        if not ids or len(ids) + max_tokens > self.max_positions:
            raise UsageError(
                f"The prompt has {len(ids)} tokens, and {max_tokens} more may follow; it needs 1 "
                f"or more, and there are {self.max_positions} positions."
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
        """Return [len(ids), hidden_size] float32 after the final norm, by one launch."""
        rows = self._embedding[torch.tensor(ids, device=self._embedding.device)]
        return self._layers.forward(0, rows, first_position)
