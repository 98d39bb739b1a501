"""The three embeddings that prompts and frames are made of.

The text table stays in its file mapping: a prompt reads a few of its 152,000 rows.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from qwen_megakernel.decoders.weights import DecoderModel, WeightReader, tensor
from qwen_megakernel.gpu.cuda_graphs import uploaded


class Embeddings:
    """T(text ids), C(codec ids) and E(frame) of one checkpoint.

    Args:
        device, dtype: device and dtype of every result; weights are converted once, here.
        stored_tables: keep tables of codes that the checkpoint stores in bfloat16 as they are, and
            convert the rows that are read; in float32 the tables would take twice the memory.
    Source: QwenLM/Qwen3-TTS, modeling_qwen3_tts.py, Qwen3TTSTalkerForConditionalGeneration.
    """

    def __init__(
        self,
        model: DecoderModel,
        device: torch.device,
        dtype: torch.dtype,
        *,
        stored_tables: bool = False,
    ):
        self.device, self.dtype = device, dtype
        self.num_code_groups = model.config.talker.num_code_groups
        weights, read = model.talker, WeightReader(model.talker, device, dtype)

        def load_table(name: str) -> Tensor:
            stored = tensor(weights, name)
            if stored_tables and stored.dtype == torch.bfloat16:
                return stored.to(device).contiguous()
            return read.tensor(name)

        self._text_table = tensor(weights, "model.text_embedding.weight")
        self._projection = [
            read.tensor(f"text_projection.linear_{part}")
            for part in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")
        ]
        self.codec_table = load_table("model.codec_embedding.weight")  # [vocab_size, hidden_size]
        self.code_tables = [  # one [codebook_size, hidden_size] for each code after the first
            load_table(f"code_predictor.model.codec_embedding.{group}.weight")
            for group in range(self.num_code_groups - 1)
        ]

    def join_tables(self) -> Tensor:
        """Join the tables of codes into one, [num_rows, hidden_size], of which they become views.

        A decoder that needs one table thus has no second copy in memory.
        """
        tables = [self.codec_table, *self.code_tables]
        joined = torch.cat(tables)
        self.codec_table, *self.code_tables = joined.split([len(table) for table in tables])
        return joined

    def text(self, ids: Tensor) -> Tensor:
        """Return text_projection(text_embedding) of text ids: [n] int64 -> [n, hidden_size]."""
        rows = uploaded(self._text_table[ids.cpu()], self.device, self.dtype)
        fc1_weight, fc1_bias, fc2_weight, fc2_bias = self._projection
        return F.linear(F.silu(F.linear(rows, fc1_weight, fc1_bias)), fc2_weight, fc2_bias)

    def codec(self, ids: Tensor) -> Tensor:
        """Return the rows of the talker's codec vocabulary: [n] int64 ids -> [n, hidden_size]."""
        return self.codec_table[ids.to(self.device)].to(self.dtype)

    def frames(self, codes: Tensor) -> Tensor:
        """Return the sum of each frame's codes: [n, num_code_groups] integers -> [n, hidden_size].

        The sum is one reduction, rounded once, as in the official code: adding bf16 rows one by one
        gives other values.
        """
        codes = uploaded(codes, self.device, torch.int64)
        rows = [self.codec_table[codes[:, 0]]]
        rows += [table[codes[:, group + 1]] for group, table in enumerate(self.code_tables)]
        return torch.stack(rows, dim=1).to(self.dtype).sum(1)
