"""The options that both trainers share: where a run starts, its learning rate, and its device."""

import argparse
from pathlib import Path

import torch

from qwen_megakernel.cli import parsing
from tools.demo_voice.codebooks import SHIPPED


def parser(description: str, *, learning_rate: float, hold: float) -> argparse.ArgumentParser:
    """Return an argument parser with the shared options and their defaults.

    Args:
        learning_rate, hold: defaults of the peak rate and of the share of the run that has it.
    """
    found = parsing.Parser(description=description)
    add = parsing.adder(found)
    add("--output", "state file to write", Path, required=True)
    add_either = parsing.adder(found.add_mutually_exclusive_group())
    add_either("--init", "checkpoint folder to start from", Path)
    add_either("--resume", "continue the run whose state is in --output", bool)
    add("--learning-rate", "peak learning rate", float, learning_rate)
    add("--hold", "share of the run that has the full learning rate", float, hold)
    add("--save-minutes", "minutes between two saves of the state", float, 5.0)
    add("--seed", "seed of all random choices", int, 0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    add("--device", "PyTorch device to train on", str, device)
    dtypes = ("bfloat16", "float32")
    add("--dtype", "number format of the computation; weights are float32", dtypes, dtypes[0])
    return found


def add_segments(
    parser: argparse.ArgumentParser, *, sentences: int, steps: int, batch: int, segment: int
) -> None:
    """Add the options of a half of the codec, which learns from segments of sentences."""
    add = parsing.adder(parser)
    add("--texts", "text file that tools.demo_voice.texts wrote", Path, required=True)
    add("--codebooks", "codebooks file whose codes are learned", Path, SHIPPED)
    add("--sentences", "number of sentences to learn from", int, sentences)
    add("--steps", "number of updates", int, steps)
    add("--batch", "number of segments in a batch", int, batch)
    add("--segment", "number of frames in a segment", int, segment)
    add("--compile", "compile the network with torch.compile", argparse.BooleanOptionalAction, True)
