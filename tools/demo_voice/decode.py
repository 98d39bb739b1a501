"""Decodes many sentences at once with the training network, greedily, to show its progress.

It has no cache, because short sentences on a small network do not need one. Published figures are
measured with the engine (evaluate.py).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qwen_megakernel.checkpoint.config import ModelConfig
from qwen_megakernel.decoders.sampling import MIN_FRAMES
from tools.demo_voice import tokenizer
from tools.demo_voice.alignment import mean_distance
from tools.demo_voice.batches import Layout, Rows, lay_out
from tools.demo_voice.codebooks import Codebooks
from tools.demo_voice.shards import Utterance
from tools.demo_voice.talker_net import Weights, predictor_hidden, talker_hidden

BATCH = 32


@torch.no_grad()
def greedy(
    weights: Weights,
    config: ModelConfig,
    batch: Sequence[Utterance],
    max_frames: int,
    layout: Layout,
) -> list[np.ndarray | None]:
    """Return each sentence's codes [num_frames, num_codes]; None where it did not end itself."""
    groups, eos = config.talker.num_code_groups, config.talker.codec_eos_id
    pieces = [
        lay_out(config, tokenizer.role_ids(), _blank(u, max_frames, groups), layout) for u in batch
    ]
    shape = (len(pieces), max(len(piece.text) for piece in pieces))
    rows = Rows.empty(shape, groups, config.tts_pad_id)
    for row, piece in enumerate(pieces):
        rows.put(row, 0, piece)
    starts = torch.tensor([int(piece.is_frame.argmax()) - 1 for piece in pieces])
    names = ("text", "control", "codes", "is_frame")
    device = weights["codec_head.weight"].device
    inputs = {name: torch.from_numpy(getattr(rows, name)).to(device) for name in names}
    drawn: list[list[Tensor]] = [[] for _ in batch]
    has_ended = [False] * len(batch)
    live = torch.arange(len(batch))
    for frame in range(max_frames):
        length = int(starts[live].max()) + frame + 1
        part = {name: values[live, :length] for name, values in inputs.items()}
        part["owner"] = torch.ones(len(live), length, dtype=torch.int64, device=device)
        hidden = talker_hidden(weights, config, part, torch.float32)
        hidden = hidden[torch.arange(len(live)), starts[live] + frame]
        logits = hidden @ weights["codec_head.weight"][: eos + 1].T
        logits[:, config.talker.suppressed_from : eos] = -torch.inf
        if frame < MIN_FRAMES:
            logits[:, eos] = -torch.inf
        codes = logits.argmax(-1)
        goes_on = (codes != eos).cpu()
        for row in live[~goes_on].tolist():
            has_ended[row] = True
        live, hidden, codes = live[goes_on], hidden[goes_on], codes[goes_on][:, None]
        if not len(live):
            break
        for group in range(groups - 1):
            state = predictor_hidden(weights, config, hidden, codes, torch.float32)[:, -1]
            logits = F.linear(state, weights[f"code_predictor.lm_head.{group}.weight"])
            codes = torch.cat([codes, logits.argmax(-1, keepdim=True)], dim=1)
        inputs["codes"][live, starts[live] + frame + 1] = codes
        for row, values in zip(live.tolist(), codes.cpu(), strict=True):
            drawn[row].append(values)
    return [
        torch.stack(codes).numpy() if ended else None
        for codes, ended in zip(drawn, has_ended, strict=True)
    ]


def progress(
    weights: Weights,
    config: ModelConfig,
    sentences: Sequence[Utterance],
    codebooks: Codebooks,
    layout: Layout,
) -> dict[str, float]:
    """Return the share of sentences that end, and how far the frames of those are from the
    references'."""
    distances = []
    for start in range(0, len(sentences), BATCH):
        batch = sentences[start : start + BATCH]
        max_frames = 20 + 2 * max(len(sentence.codes) for sentence in batch)
        drawn = greedy(weights, config, batch, max_frames, layout)
        distances += [
            mean_distance(codes, sentence.codes, codebooks)
            for sentence, codes in zip(batch, drawn, strict=True)
            if codes is not None
        ]
    distance = float(np.mean(distances)) if distances else float("nan")
    return {"ended": len(distances) / len(sentences), "distance": distance}


def _blank(utterance: Utterance, num_frames: int, num_codes: int) -> Utterance:
    """Return the sentence with room for frames that are not known yet."""
    room = np.zeros((num_frames, num_codes), np.uint8)
    return replace(utterance, codes=room, words=room[:, 0])
