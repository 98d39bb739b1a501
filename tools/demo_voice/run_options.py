"""The options that both trainers share: where a run starts, its learning rate, and its device."""

import argparse
from pathlib import Path

import torch


def parser(description: str, *, learning_rate: float, hold: float) -> argparse.ArgumentParser:
    """Return an argument parser with the shared options and their defaults.

    Args:
        learning_rate, hold: defaults of the peak rate and of the share of the run that has it.
    """
    found = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    found.add_argument("--output", type=Path, required=True, help="state file to write")
    start = found.add_mutually_exclusive_group()
    start.add_argument("--init", type=Path, help="checkpoint folder to start from")
    start.add_argument(
        "--resume", action="store_true", help="continue the run whose state is in --output"
    )
    found.add_argument(
        "--learning-rate", type=float, default=learning_rate, help="peak learning rate"
    )
    found.add_argument(
        "--hold", type=float, default=hold, help="share of the run that has the full learning rate"
    )
    found.add_argument(
        "--save-minutes", type=float, default=5.0, help="minutes between two saves of the state"
    )
    found.add_argument("--seed", type=int, default=0, help="seed of all random choices")
    found.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="PyTorch device to train on",
    )
    found.add_argument(
        "--dtype",
        choices=("bfloat16", "float32"),
        default="bfloat16",
        help="number format of the computation; weights are float32",
    )
    return found
