"""The three embeddings that prompts and frames are made of.

The text table stays in its file mapping: a prompt reads a few of its 152,000 rows.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from qwen_megakernel.checkpoint.weight_reader import WeightReader
from qwen_megakernel.decoders.weights import DecoderModel, tensor
from qwen_megakernel.gpu.cuda_graphs import uploaded

# Rows of a stored matrix that are converted at a time: 2 MB of float32, which the cache holds.
BLOCK_ROWS = 256


class Embeddings:
    """T(text ids), C(codec ids) and E(frame) of one checkpoint.

    Args:
        device, dtype: device and dtype of every result; weights are converted once, here.
        as_stored: keep what the checkpoint stores in bfloat16 as it is, and convert the rows that
            are read; in float32 they would take twice the memory, in each process for itself.
    Source: QwenLM/Qwen3-TTS, modeling_qwen3_tts.py, Qwen3TTSTalkerForConditionalGeneration.
    """

    def __init__(
        self,
        model: DecoderModel,
        device: torch.device,
        dtype: torch.dtype,
        *,
        as_stored: bool = False,
    ):
        self.device, self.dtype = device, dtype
        self.num_code_groups = model.config.talker.num_code_groups
        weights, read = model.talker, WeightReader(model.talker, device, dtype)

        def load(name: str) -> Tensor:
            stored = tensor(weights, name)
            if as_stored and stored.dtype == torch.bfloat16:
                return stored.to(device).contiguous()
            return read[name]

        self._text_table = tensor(weights, "model.text_embedding.weight")
        self._projection = [
            (load(f"{name}.weight"), read[f"{name}.bias"])
            for name in ("text_projection.linear_fc1", "text_projection.linear_fc2")
        ]
        self.codec_table = load("model.codec_embedding.weight")  # [vocab_size, hidden_size]
        self.code_tables = [  # one [codebook_size, hidden_size] for each code after the first
            load(f"code_predictor.model.codec_embedding.{group}.weight")
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
        first, second = self._projection
        return _linear(F.silu(_linear(rows, *first)), *second)

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


def _linear(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Apply a layer whose weight may be stored in another dtype than its input's."""
    if weight.dtype == rows.dtype:
        return F.linear(rows, weight, bias)
    blocks = zip(weight.split(BLOCK_ROWS), bias.split(BLOCK_ROWS), strict=True)
    return torch.cat([F.linear(rows, part.to(rows.dtype), b) for part, b in blocks], dim=-1)
