"""Fixtures of the second family: real SNAC and Qwen2 classes, small (sheen_toys)."""

import shutil
from pathlib import Path

import pytest
import soundfile
import waveforms
from sheen_toys import BY_HEART, CODEBOOK_SIZE, TEXTS

from qwen_megakernel.sheen import random_models
from qwen_megakernel.sheen.codec import find_snac
from qwen_megakernel.sheen.training.job import Job, train_voice


@pytest.fixture(scope="session")
def snac_folder() -> Path:
    """A SNAC with random weights, in the published layout."""
    return find_snac(random_models.SNAC)


@pytest.fixture(scope="session")
def codec(snac_folder: Path):
    from qwen_megakernel.sheen.codec import SnacCodec

    return SnacCodec(snac_folder)


@pytest.fixture(scope="session")
def base_folder() -> Path:
    """A Qwen2 language model with random weights and the tokenizer of a built-in checkpoint."""
    return random_models.base_model()


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset folder: metadata.csv and wav/, half a second each."""
    folder = tmp_path_factory.mktemp("recordings")
    (folder / "wav").mkdir()
    for seed, name in enumerate(TEXTS):
        sound = waveforms.voice_like(0.5, 22050, seed)
        soundfile.write(folder / "wav" / f"{name}.wav", sound, 22050)
    lines = [f"{name}|{text}\n" for name, text in TEXTS.items()]
    (folder / "metadata.csv").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def dataset_file(recordings: Path, codec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset that `prepare` makes from the recordings."""
    from qwen_megakernel.sheen.training.prepare import prepare

    path = tmp_path_factory.mktemp("dataset") / "dataset.jsonl"
    prepare(recordings, path, codec)
    return path


@pytest.fixture(scope="session")
def samples(dataset_file: Path):
    from qwen_megakernel.sheen.training import dataset

    return dataset.read(dataset_file, CODEBOOK_SIZE)


@pytest.fixture(scope="session")
def trained(base_folder: Path, snac_folder: Path, dataset_file: Path, tmp_path_factory) -> Path:
    """A voice that knows its two sentences by heart."""
    folder = tmp_path_factory.mktemp("trained") / "my-voice"
    job = Job(dataset_file, folder, str(base_folder), str(snac_folder), device="cpu")
    train_voice(job, BY_HEART)
    return folder


@pytest.fixture
def voice_folder(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "my-voice"))
