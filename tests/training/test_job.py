"""The folder of a training outlives kill -9, a full disk and a loss that is not a number."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from qwen_megakernel.errors import GenerationError, OutputError, UsageError
from qwen_megakernel.output_files import new_partial
from qwen_megakernel.training import job
from qwen_megakernel.training.job import LOSSES, STATE, BaseJob, run_job
from qwen_megakernel.training.trainer import BaseTrainer, TrainOptions, Watch

pytestmark = pytest.mark.usefixtures("without_plots")

OPTIONS = TrainOptions(
    epochs=6,
    learning_rate=0.1,
    warmup_steps=2,
    precision="fp32",
    batch_size=1,
    gradient_accumulation=1,
)


class Toy(BaseTrainer):
    """Two weights that learn a sum, with dropout, whose random numbers resuming must restore."""

    def __init__(self, options: TrainOptions = OPTIONS):
        torch.manual_seed(0)
        super().__init__(nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 1)), options)

    def _order(self, epoch):
        return [epoch * 2, epoch * 2 + 1]

    def _losses(self, group):
        x = torch.arange(8.0) + group[0]
        found = self.model(x)
        if getattr(self, "is_steep", False):
            found = (0 * found).sqrt()  # its gradient is not a number
        yield (found - x.sum()).square().mean() * getattr(self, "factor", 1.0)


def train(folder, *, resume=False, on_step=lambda record: None, factor=1.0, save_steps=1):
    trainer = Toy()
    trainer.factor = factor

    def write_voice():
        (folder / "voice").write_text(str(trainer.step))

    job = BaseJob(Path("none"), folder, save_steps=save_steps, resume=resume)
    run_job(trainer, job, write_voice, Watch(step=on_step))
    return trainer


def same(one: BaseTrainer, other: BaseTrainer) -> bool:
    ours, theirs = one.model.state_dict(), other.model.state_dict()
    return one.records == other.records and all(torch.equal(ours[n], theirs[n]) for n in ours)


KILLED = """
import os, signal, sys
from pathlib import Path
from test_job import job, train
job.plot = lambda *_: True
def kill(record):
    if record.step == 4:
        os.kill(os.getpid(), signal.SIGKILL)
train(Path(sys.argv[1]), on_step=kill)
"""


@pytest.mark.ci
def test_a_killed_training_is_resumed_bit_for_bit(tmp_path):
    words = [sys.executable, "-c", KILLED, str(tmp_path / "killed")]
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parents[1])])
    killed = subprocess.run(words, env={**os.environ, "PYTHONPATH": path}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "killed" / "voice").read_text() == "3"
    assert same(train(tmp_path / "killed", resume=True), train(tmp_path / "whole"))


def test_a_full_disk_ends_the_training_and_keeps_the_last_state(tmp_path, monkeypatch):
    folder, save = tmp_path / "voice", torch.save

    def fill(state, file):
        if len(state["records"]) == 3:
            file.write(b"half of it")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(state, file)

    monkeypatch.setattr(torch, "save", fill)
    with pytest.raises(OutputError, match=r"Cannot write .*trainer.pt: .*No space left"):
        train(folder)
    assert {path.name for path in folder.iterdir()} <= {
        "voice",
        STATE,
        LOSSES,
        job.PLOT,
        job.EVENTS,
    }
    monkeypatch.undo()
    assert same(train(folder, resume=True), train(tmp_path / "whole"))


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_loss_or_a_gradient_that_is_not_a_number_keeps_the_steps_before_it(tmp_path, what):
    toy = Toy()

    def spoil(record):
        if record.step == 3:
            toy.factor = 1.0 if what == "gradient" else float("nan")
            toy.is_steep = what == "gradient"

    with pytest.raises(GenerationError, match=rf"The {what} of step 4 is nan"):
        run_job(toy, BaseJob(Path("none"), tmp_path / "voice"), lambda: None, Watch(step=spoil))
    resumed = train(tmp_path / "voice", resume=True)
    assert same(resumed, train(tmp_path / "whole"))


def test_what_a_killed_save_left_behind_is_removed(tmp_path):
    train(tmp_path, on_step=lambda record: None)
    left = [new_partial(tmp_path / name) for name in (STATE, "tensors.safetensors")]
    other = tmp_path / "notes.part"
    other.touch()
    train(tmp_path, resume=True)
    assert other.exists() and not any(path.exists() for path in left)
    (tmp_path / STATE).unlink()  # killed in its first save
    left = new_partial(tmp_path / STATE)
    train(tmp_path)
    assert not left.exists()


def test_a_second_training_in_the_same_folder_is_refused_and_changes_nothing(tmp_path):
    folder = tmp_path / "voice"

    def begin_another(record):
        if record.step == 4:
            before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
            with pytest.raises(OutputError, match=f"Another process is writing {folder}"):
                train(folder)
            after = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
            assert STATE in before and before == after

    train(folder, on_step=begin_another)
    train(folder, resume=True)


def test_a_folder_is_refused_before_any_work(tmp_path):
    with pytest.raises(UsageError, match="holds no training"):
        BaseJob(tmp_path, tmp_path, resume=True).check_output()
    (tmp_path / STATE).touch()
    with pytest.raises(UsageError, match="holds a training already"):
        BaseJob(tmp_path, tmp_path).check_output()
    with pytest.raises(UsageError, match="save_steps is 0"):
        BaseJob(tmp_path, tmp_path, save_steps=0)
