"""kill -9 at any moment, and a disk that is really full, keep the last good state of a training."""

import multiprocessing
import os
import random
import shutil
import signal
import subprocess
from dataclasses import replace

import pytest
import tiny_training
import torch

from qwen_megakernel.errors import OutputError
from qwen_megakernel.training.job import STATE
from qwen_megakernel.training.speech_job import tune
from qwen_megakernel.training.speech_trainer import TuneOptions
from qwen_megakernel.training.trained_voice import ADAPTER, SPEAKER, TrainedVoice
from qwen_megakernel.training.trainer import Watch

pytestmark = pytest.mark.ci

STEPS = 8
OPTIONS = TuneOptions(
    max_steps=STEPS, epochs=STEPS, eval_steps=3, gradient_accumulation=1, precision="fp32", rank=4
)
DRAW = random.Random(5)
NUM_FILES = 7  # that a save replaces
MOMENTS = [
    ("write", 1),  # the first state
    ("write", 2),
    *(("rename", place) for place in (1, 2, NUM_FILES, NUM_FILES + 1)),
    *(("time", DRAW.uniform(0, 1)) for _ in range(3)),
]


@pytest.fixture(scope="module")
def start():
    """Start `tiny_training.run` in a process that has the imports already; wait for its end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tiny_training", "peft"])

    def run(*arguments):
        process = context.Process(target=tiny_training.run, args=arguments)
        process.start()
        process.join(300)
        return process.exitcode

    return run


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def files(folder):
    paths = (path for path in folder.iterdir() if path.is_file() and path.suffix != ".png")
    return {path.name: path.read_bytes() for path in paths}


@pytest.mark.timeout(900)
def test_a_training_that_is_killed_again_and_again_is_the_uninterrupted_one(job, start, tmp_path):
    pytest.importorskip("peft")
    job = replace(job, held_out=0.5, save_steps=1)
    whole = replace(job, output=tmp_path / "whole")
    assert start(whole, OPTIONS) == 0
    kills = 0
    for kill, at in MOMENTS:
        job = replace(job, resume=(job.output / STATE).exists())
        kills += (code := start(job, OPTIONS, kill, at)) == -signal.SIGKILL
        assert code in (0, -signal.SIGKILL)
        if (job.output / STATE).exists():
            torch.load(job.output / STATE, weights_only=True)
        if (job.output / ADAPTER).exists():
            TrainedVoice.read(job.output)
    assert kills >= len(MOMENTS) - 3  # those at a time may come too late
    assert start(replace(job, resume=True), OPTIONS) == 0
    found, wanted = files(job.output), files(whole.output)
    assert found.keys() == wanted.keys()
    ours, theirs = (torch.load(each.output / STATE, weights_only=True) for each in (job, whole))
    assert len(theirs["records"]) == STEPS and same(ours, theirs)
    for name in (STATE, SPEAKER):  # the second has metadata in any order
        del found[name], wanted[name]
    assert found == wanted
    voices = (TrainedVoice.read(each.output).speaker for each in (job, whole))
    assert len({voice.x_vector.tobytes() for voice in voices}) == 1


@pytest.fixture
def disk(tmp_path):
    """A file system of 64 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", place]
    if os.geteuid() or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("this container may not mount")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_a_full_disk_keeps_the_last_state(job, disk, tmp_path):
    pytest.importorskip("peft")
    options = replace(OPTIONS, max_steps=4, epochs=4)
    whole = tune(replace(job, output=tmp_path / "whole"), options)
    job, filler = replace(job, save_steps=1, output=disk / "voice"), disk / "filler"

    def fill(record):
        if record.step == 3:
            filler.write_bytes(bytes(shutil.disk_usage(disk).free - 2**16))

    with pytest.raises(OutputError, match=r"Cannot write .*voice/trainer.pt: .*No space left"):
        tune(job, options, Watch(step=fill))
    filler.unlink()
    resumed = tune(replace(job, resume=True), options)
    ours, theirs = resumed.learned(), whole.learned()
    assert resumed.records == whole.records and ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
