"""A fine-tuning of the small random Base model, on two recordings of random codes."""

import itertools
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

import numpy as np
import torch

from qwen_megakernel import output_files
from qwen_megakernel.checkpoint.loading import Checkpoint
from qwen_megakernel.cloning.voice_library import VoiceLibrary
from qwen_megakernel.training.speech_data import TrainingSample
from qwen_megakernel.training.speech_job import TuneJob, tune
from qwen_megakernel.training.speech_trainer import TuneOptions
from qwen_megakernel.training.trainer import BaseTrainer, Watch

BASE = "tiny-random-base"
TEXTS = ("Good morning.", "And good night to you.")
JOB = TuneJob(Path(), Path(), BASE, "anna", device="cpu", held_out=0, sample_text="")


def recordings(base: Checkpoint) -> list[TrainingSample]:
    config, draw = base.config, np.random.default_rng(1)
    shape = config.talker.num_code_groups
    return [
        TrainingSample(
            f"{at}",
            f"{at}.wav",
            text,
            draw.integers(0, config.predictor.vocab_size, (4 + at, shape)).tolist(),
            draw.normal(size=config.talker.stack.hidden_size).tolist(),
            f"digest {at}",
            VoiceLibrary(base).fingerprint,
            1.0,
        )
        for at, text in enumerate(TEXTS)
    ]


def write(path: Path, samples: list[TrainingSample]) -> Path:
    """Write the file of `train prepare`."""
    path.write_text("".join(each.to_json() + "\n" for each in samples), encoding="utf-8")
    return path


def run(job: TuneJob, options: TuneOptions, kill: str = "", at: float = 0) -> None:
    """Train in a process of its own, which kills itself, as the system would, without notice.

    Args:
        kill: "rename": before the file number `at` takes the place of an old one; "write": when the
            state number `at` is half written; "time": `at` seconds after the first step begins.
    """
    torch.set_num_threads(1)
    calls = itertools.count(1)

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def rename(*paths: Path, replace: Callable[..., None] = os.replace) -> None:
        if kill == "rename" and next(calls) == at:
            die()
        replace(*paths)

    def write(state: object, file: BinaryIO, save: Callable[..., None] = torch.save) -> None:
        save(state, file)
        if kill == "write" and next(calls) == at:
            file.truncate(file.tell() // 2)
            die()

    def start(trainer: BaseTrainer) -> None:
        if kill == "time":
            threading.Timer(at, die).start()

    output_files.os = SimpleNamespace(**vars(os) | {"replace": rename})  # type: ignore[attr-defined]
    torch.save = write
    tune(job, options, Watch(start))
