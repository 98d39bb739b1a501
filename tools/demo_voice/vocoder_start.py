"""Teach a vocoder's first layers what its codes mean, before it learns to make sound.

A network that begins with whole sound first learns loudness and colour, then holds pulses at wrong
places, which no loss of magnitudes moves. Its layers up to 400 Hz are a tenth of the work. Here
they learn alone, and a linear head reads off them the phase of the pitch, its double, whether there
is a voice, and the envelope. Afterwards the head is thrown away.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from tools.demo_voice import features
from tools.demo_voice.codebooks import Codebooks

STEPS_PER_FRAME = 32  # at 400 Hz
NUM_PHASES = 4  # cosine and sine of the phase, and of its double
PHASE_WEIGHT, VOICED_WEIGHT, ENVELOPE_WEIGHT = 2.0, 1.0, 0.2
NUM_BLOCKS = 2  # number of the decoder's blocks that lead to 400 Hz
LEARNING_RATE, WARMUP_STEPS, MIN_RATE = 2e-3, 50, 0.02
BATCH, SEGMENT = 12, 12
CONTEXT_FRAMES = 2  # first frames of a segment, not compared because their past is missing
MAX_GRADIENT_NORM = 3.0


class Targets:
    """What the head has to read off.

    Args:
        codebooks: those of the envelope; the pitch is a frame's last code.
    """

    def __init__(self, codebooks: Codebooks):
        self._codebooks = codebooks
        share = (np.arange(STEPS_PER_FRAME) + 0.5) / STEPS_PER_FRAME
        table = np.zeros((256, STEPS_PER_FRAME, NUM_PHASES + 1), np.float32)
        for code in range(features.NO_PITCH):
            phase = 2 * np.pi * features.phase(code, share)
            waves = [np.cos(phase), np.sin(phase), np.cos(2 * phase), np.sin(2 * phase)]
            table[code] = np.stack([*waves, np.ones_like(phase)], axis=1)
        self._table = torch.from_numpy(table)
        mean = codebooks.mean.reshape(features.SUBFRAMES, -1)
        self._center = mean.mean(0)
        spread = codebooks.books[0] @ codebooks.components.T / codebooks.weights
        self._scale = (spread.reshape(-1, features.NUM_VALUES) + mean.mean(0)).std(0) + 0.05

    def __call__(self, codes: Tensor) -> Tensor:
        """[..., num_codes] int64 -> [..., STEPS_PER_FRAME, NUM_PHASES + 1 + NUM_VALUES]."""
        flat = codes.reshape(-1, codes.shape[-1])
        rows = torch.from_numpy(self._codebooks.decode(flat.numpy()))
        values = rows.reshape(len(flat), features.SUBFRAMES, features.NUM_VALUES)
        values = (values - self._center) / self._scale
        values = values.repeat_interleave(STEPS_PER_FRAME // features.SUBFRAMES, dim=1)
        found = torch.cat([self._table[flat[:, -1]], values], dim=-1)
        return found.reshape(*codes.shape[:-1], *found.shape[1:])


def first_layers(decoder: nn.Module, codes: Tensor) -> Tensor:
    """[n, num_codes, num_frames] int64 -> [n, num_channels, num_frames * STEPS_PER_FRAME]."""
    hidden = decoder.pre_conv(decoder.quantizer.decode(codes)).transpose(1, 2)
    hidden = decoder.pre_transformer(inputs_embeds=hidden).last_hidden_state.transpose(1, 2)
    for stage in decoder.upsample:
        for block in stage:
            hidden = block(hidden)
    for block in decoder.decoder[:NUM_BLOCKS]:
        hidden = block(hidden)
    return hidden


def teach(
    decoder: nn.Module, codebooks: Codebooks, sentences: Sequence[Tensor], steps: int, seed: int
) -> list[float]:
    """Train the first layers of `decoder` in place.

    Args:
        sentences: the codes of each, [num_frames, num_codes] int64, `SEGMENT` frames or more.
        steps: number of updates.
        seed: seed of the head and of the segments.
    Returns:
        The error of the phase after each step: 1 for a head that knows nothing, 0 for a right one.
    """
    targets, rng = Targets(codebooks), np.random.default_rng(seed)
    device = next(decoder.parameters()).device
    torch.manual_seed(seed)
    kept = tuple(f"decoder.{i}." for i in range(NUM_BLOCKS))
    learned = [
        parameter
        for name, parameter in decoder.named_parameters()
        if not name.startswith("decoder.") or name.startswith(kept)
    ]
    with torch.no_grad():
        width = first_layers(decoder, sentences[0].T[None, :, :2].to(device)).shape[1]
    head = nn.Linear(width, NUM_PHASES + 1 + features.NUM_VALUES).to(device)
    learned += head.parameters()
    weights = torch.full((head.out_features,), ENVELOPE_WEIGHT, device=device)
    weights[:NUM_PHASES], weights[NUM_PHASES] = PHASE_WEIGHT, VOICED_WEIGHT
    optimizer = torch.optim.AdamW(learned, LEARNING_RATE, (0.8, 0.99), weight_decay=0.0)
    shares = np.array([len(codes) for codes in sentences], float)
    shares /= shares.sum()
    errors = []
    for step in tqdm(range(steps), desc="first layers"):
        batch = []
        for index in rng.choice(len(sentences), BATCH, p=shares):
            start = int(rng.integers(len(sentences[index]) - SEGMENT + 1))
            batch.append(sentences[index][start : start + SEGMENT])
        codes = torch.stack(batch)
        wanted = targets(codes).flatten(1, 2).to(device)
        with torch.autocast(device.type, torch.bfloat16):
            hidden = first_layers(decoder, codes.mT.to(device))
        read = head(hidden.float().mT)
        squares = (read - wanted).square()[:, CONTEXT_FRAMES * STEPS_PER_FRAME :].mean((0, 1))
        optimizer.zero_grad()
        (squares * weights).sum().backward()
        torch.nn.utils.clip_grad_norm_(learned, MAX_GRADIENT_NORM)
        fall = max(MIN_RATE, 0.5 * (1 + np.cos(np.pi * step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * fall * min(1, (step + 1) / WARMUP_STEPS)
        optimizer.step()
        power = wanted[..., :NUM_PHASES].square().mean().clamp(min=1e-6)
        errors.append(float(squares[:NUM_PHASES].detach().mean() / power))
    return errors
