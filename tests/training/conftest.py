"""A fine-tuning of two recordings, ready to run."""

from dataclasses import replace

import pytest
import tiny_training

from qwen_megakernel.training import job as training_job


@pytest.fixture(scope="session")
def samples(load_checkpoint):
    return tiny_training.recordings(load_checkpoint(tiny_training.BASE))


@pytest.fixture
def job(samples, tmp_path):
    data = tiny_training.write(tmp_path / "data.jsonl", samples)
    return replace(tiny_training.JOB, data=data, output=tmp_path / "voice")


@pytest.fixture
def without_plots(monkeypatch):
    """Let each save of a training draw no plot, which takes longer than ten steps of a toy."""
    monkeypatch.setattr(training_job, "plot", lambda records, path: True)
