"""The options that both trainers share: where a run starts, its learning rate, and its device."""

import argparse
from pathlib import Path

import torch

from qwen_megakernel.cli import parsing


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
