"""Talker and code predictor as one torch module, whose loss is that of the model as it is used.

Every position is computed at once, from the prompt rows that generation builds. The layers are
those of transformers' Qwen3: the talker's M-RoPE has equal positions, which is plain RoPE
(docs/model.md). Tensors have the official names, without "talker.".

Source: QwenLM/Qwen3-TTS, modeling_qwen3_tts.py (qwen-tts 0.1.1); the tests compare with
`decoders.plain`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qwen_megakernel.checkpoint.config import ModelConfig, StackConfig
from qwen_megakernel.checkpoint.loading import Checkpoint
from qwen_megakernel.decoders.prompt import PromptBuilder
from qwen_megakernel.records import TextIds
from qwen_megakernel.speech_options import SpeechOptions

if TYPE_CHECKING:
    from transformers import Qwen3Model

RESIDUAL_WEIGHT = 0.3  # of the mean loss of codes 1 .., beside that of code 0


class SpeechModel(nn.Module):
    """The model of a checkpoint, to be trained; its text embedding is frozen.

    Args:
        checkpoint: any but a converted one, whose matrices are packed.
        device: where the weights go.
        dtype: the format of the weights.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__()
        config = self._config = checkpoint.config
        talker = config.talker
        self.num_code_groups, hidden_size = talker.num_code_groups, talker.stack.hidden_size
        with torch.device("meta"):  # the checkpoint's tensors take the places of these
            self.model = _stack(talker.stack)
            self.model.text_embedding = nn.Embedding(
                talker.text_vocab_size, talker.text_hidden_size
            )
            self.model.codec_embedding = nn.Embedding(talker.vocab_size, hidden_size)
            self.text_projection = nn.ModuleDict()
            for name, width in (("fc1", talker.text_hidden_size), ("fc2", hidden_size)):
                self.text_projection[f"linear_{name}"] = nn.Linear(talker.text_hidden_size, width)
            self.codec_head = nn.Linear(hidden_size, talker.vocab_size, bias=False)
            self.code_predictor = _Predictor(config, self.num_code_groups - 1)
        weights = {
            name: tensor.to(device, dtype, copy=True) for name, tensor in checkpoint.talker.items()
        }
        self.load_state_dict(weights, assign=True)
        for stack in (self.model, self.code_predictor.model):
            # Its buffers are no tensors of the checkpoint.
            stack.rotary_emb = type(stack.rotary_emb)(config=stack.config).to(device)
        self.model.text_embedding.requires_grad_(False)

    # ---- the embeddings, as `decoders.prompt` takes them -----------------------------------------

    def text(self, ids: Tensor) -> Tensor:
        """Return T, the projected text embedding: [n] int64 -> [n, hidden_size]."""
        table = self.model.get_parameter("text_embedding.weight")
        rows = F.embedding(ids.to(table.device), table)
        fc1, fc2 = self.text_projection["linear_fc1"], self.text_projection["linear_fc2"]
        return fc2(F.silu(fc1(rows)))

    def codec(self, ids: Tensor) -> Tensor:
        """Return C, the embedding of codec ids: [n] int64 -> [n, hidden_size]."""
        table = self.model.get_parameter("codec_embedding.weight")
        return F.embedding(ids.to(table.device), table)

    def frames(self, codes: Tensor) -> Tensor:
        """Return E, the sum of each frame's codes: [n, num_code_groups] -> [n, hidden_size]."""
        codes = codes.to(self.codec_head.weight.device)
        return torch.stack(self._rows(codes), dim=1).sum(1)

    def _rows(self, codes: Tensor) -> list[Tensor]:
        """Return the embeddings of the codes of frames, [n, hidden_size] for each code."""
        tables = self.code_predictor.model.codec_embedding
        assert isinstance(tables, nn.ModuleList)
        first, *others = codes.unbind(1)
        return [self.codec(first), *(tables[at](each) for at, each in enumerate(others))]

    # ---- logits and losses -----------------------------------------------------------------------

    def forward(self, ids: TextIds, request: SpeechOptions, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of a recording, each given all that generation knows at that point.

        Args:
            ids: of the text.
            request: voice, language and text feed, as generation takes them.
            codes: [num_frames, num_code_groups] int64, the frames of the recording.
        Returns:
            [num_frames + 1, vocab_size] of code 0, the last row of which should give the end code;
            [num_frames, num_code_groups - 1, codebook_size] of the other codes.
        """
        codes = codes.to(self.codec_head.weight.device)
        prompts = PromptBuilder(self._config, self)
        prompt = prompts.build(ids, prompts.resolve(request))
        text = torch.cat([prompt.trailing_text, prompt.pad_embed.expand(len(codes), -1)])
        x = torch.cat([prompt.embeds, self.frames(codes) + text[: len(codes)]])
        hidden = self.model(inputs_embeds=x[None], use_cache=False).last_hidden_state[0]
        # Row k has read the frames before frame k, and is what generation draws frame k from.
        hidden = hidden[len(prompt.embeds) - 1 :]
        return self.codec_head(hidden), self._residual_logits(hidden[: len(codes)], codes)

    def losses(self, ids: TextIds, request: SpeechOptions, codes: Tensor) -> Tensor:
        """Return the summed loss of each codebook, [num_code_groups] float32, in nats.

        Code 0 is drawn from the codebook and the end code alone, so only these have a probability.
        Its sum has num_frames + 1 terms, the others num_frames. Arguments are those of `forward`.
        """
        talker = self._config.talker
        first, others = self(ids, request, codes)
        codes = codes.to(first.device)
        drawable = torch.zeros(talker.vocab_size, dtype=torch.bool, device=first.device)
        drawable[: talker.suppressed_from] = True
        drawable[talker.codec_eos_id] = True
        first = first.float().masked_fill(~drawable, -torch.inf)
        labels = F.pad(codes[:, 0], (0, 1), value=talker.codec_eos_id)
        sums = [F.cross_entropy(first, labels, reduction="sum")]
        for group in range(1, talker.num_code_groups):
            logits = others[:, group - 1].float()
            sums.append(F.cross_entropy(logits, codes[:, group], reduction="sum"))
        return torch.stack(sums)

    def _residual_logits(self, hidden: Tensor, codes: Tensor) -> Tensor:
        """Return the logits of codes 1 ..: position i of a frame has read codes 0 .. i - 1."""
        predictor = self.code_predictor
        x = torch.stack([hidden, *self._rows(codes[:, :-1])], dim=1)
        if self._config.has_projection:
            x = predictor.small_to_mtp_projection(x)
        states = predictor.model(inputs_embeds=x, use_cache=False).last_hidden_state
        logits = [head(states[:, group]) for group, head in enumerate(predictor.lm_head, start=1)]
        return torch.stack(logits, dim=1)


class _Predictor(nn.Module):
    """The modules of the code predictor; `SpeechModel` computes with them."""

    def __init__(self, config: ModelConfig, num_heads: int):
        super().__init__()
        stack, hidden_size = config.predictor.stack, config.talker.stack.hidden_size
        vocab_size = config.predictor.vocab_size
        self.model = _stack(stack)
        self.model.codec_embedding = nn.ModuleList(
            nn.Embedding(vocab_size, hidden_size) for _ in range(num_heads)
        )
        self.lm_head = nn.ModuleList(
            nn.Linear(stack.hidden_size, vocab_size, bias=False) for _ in range(num_heads)
        )
        if config.has_projection:
            self.small_to_mtp_projection = nn.Linear(hidden_size, stack.hidden_size)


def loss_of(sums: Tensor, num_frames: int, num_ends: int) -> Tensor:
    """Return the loss that training lowers, a scalar.

    Args:
        sums: [num_code_groups] of `SpeechModel.losses`, over one or more recordings.
        num_frames: of all recordings.
        num_ends: number of recordings, each of which has an end code.
    """
    first, others = sums[0] / (num_frames + num_ends), sums[1:] / num_frames
    return first + RESIDUAL_WEIGHT * others.mean()


def _stack(config: StackConfig) -> Qwen3Model:
    """Return the layers and the norm of a stack, without an embedding."""
    from transformers import Qwen3Config, Qwen3Model

    stack = Qwen3Model(
        Qwen3Config(
            vocab_size=1,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.rms_norm_eps,
            rope_theta=config.rope_theta,
            max_position_embeddings=config.max_positions,
        )
    )
    del stack.embed_tokens
    return stack
