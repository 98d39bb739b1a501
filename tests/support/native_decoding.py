"""Prompts, samplings and weights with which the tests run the native CPU decoder."""

from dataclasses import replace

import numpy as np
import torch

from qwen_megakernel.decoders import quantization
from qwen_megakernel.speech_options import Sampling

GREEDY = Sampling.greedy()
MODES = {
    "greedy": GREEDY,
    "sampled": Sampling(),
    "top-p": Sampling().override(top_p=0.8, subtalker_top_p=0.7),
    "penalised": Sampling().override(repetition_penalty=1.5, top_k=0, subtalker_temperature=0.4),
}


def begin(decoder, prefill, sampling=GREEDY, slot=0, seed=5, part=0, **options):
    """Run a prompt in a slot, with a seed that is the same everywhere."""
    decoder.prefill(slot, prefill, sampling, seed=seed, part=part, **options)


def stored(checkpoint, weights):
    """Return the checkpoint with its weights in the form or dtype of this name; None: unchanged."""
    if (weights or "").startswith("int"):
        return replace(checkpoint, talker=quantization.quantize(checkpoint.talker, weights))
    if weights is None:
        return checkpoint
    talker = {name: each.to(getattr(torch, weights)) for name, each in checkpoint.talker.items()}
    return replace(checkpoint, talker=talker)


def assert_same(got, want):
    """Compare the codes of two `StepResult`s, up to the end of each stream."""
    assert (got.num_frames, got.ended) == (want.num_frames, want.ended)
    for row, count in enumerate(want.num_frames):
        np.testing.assert_array_equal(got.codes[row, :count], want.codes[row, :count])
