"""The three embeddings that prompts and frames are made of.

The text table stays in its file mapping: a prompt reads a few of its 152,000 rows.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from qwen_megakernel.checkpoint.loading import Checkpoint
from qwen_megakernel.gpu.cuda_graphs import uploaded


class Embeddings:
    """T(text ids), C(codec ids) and E(frame) of one checkpoint.

    Args:
        checkpoint: supplies `talker` tensors.
        device, dtype: of every result; weights are converted once, here.
        stored_tables: keep the tables of codes in the checkpoint's dtype (float16 as float32), and
            convert the rows that are read: half of the memory where that is bfloat16.
    Source: QwenLM/Qwen3-TTS, modeling_qwen3_tts.py, Qwen3TTSTalkerForConditionalGeneration.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype,
        *,
        stored_tables: bool = False,
    ):
        self.device, self.dtype = device, dtype
        talker = checkpoint.config.talker
        self.num_code_groups = talker.num_code_groups
        weights = checkpoint.talker

        def load(name: str) -> Tensor:
            return weights[name].to(device=device, dtype=dtype)

        def load_table(name: str) -> Tensor:
            if stored_tables and weights[name].dtype == torch.bfloat16:
                return weights[name].to(device).contiguous()
            return load(name)

        self._text_table = weights["model.text_embedding.weight"]
        self._projection = [
            load(f"text_projection.linear_{part}")
            for part in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")
        ]
        self.codec_table = load_table("model.codec_embedding.weight")  # [vocab_size, hidden_size]
        self.code_tables = [  # one [codebook_size, hidden_size] for each code after the first
            load_table(f"code_predictor.model.codec_embedding.{group}.weight")
            for group in range(self.num_code_groups - 1)
        ]

    def text(self, ids: Tensor) -> Tensor:
        """[n] int64 text ids -> [n, hidden_size]: text_projection(text_embedding)."""
        rows = uploaded(self._text_table[ids.cpu()], self.device, self.dtype)
        fc1_weight, fc1_bias, fc2_weight, fc2_bias = self._projection
        return F.linear(F.silu(F.linear(rows, fc1_weight, fc1_bias)), fc2_weight, fc2_bias)

    def codec(self, ids: Tensor) -> Tensor:
        """[n] int64 ids of the talker's codec vocabulary -> [n, hidden_size]."""
        return self.codec_table[ids.to(self.device)].to(self.dtype)

    def frames(self, codes: Tensor) -> Tensor:
        """[n, num_code_groups] int codes -> [n, hidden_size]: the sum over the frame's codes.

        One reduction, rounded once, as in the official code: adding bf16 rows one by one differs.
        """
        codes = uploaded(codes, self.device, torch.int64)
        rows = [self.codec_table[codes[:, 0]]]
        rows += [table[codes[:, group + 1]] for group, table in enumerate(self.code_tables)]
        return torch.stack(rows, dim=1).to(self.dtype).sum(1)
