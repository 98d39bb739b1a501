"""Fixtures of the second family: real SNAC and Qwen2 classes, small (sheen_toys)."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import soundfile
import torch
import waveforms
from sheen_toys import BY_HEART, CODEBOOK_SIZE, QWEN2_CONFIG, SNAC_CONFIG, TEXTS

from qwen_megakernel.sheen.training.job import Job, train_voice


@pytest.fixture(scope="session")
def snac_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SNAC with random weights, in the layout it is published in."""
    from snac import SNAC

    folder = tmp_path_factory.mktemp("snac")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = SNAC(**SNAC_CONFIG)
    with torch.no_grad():  # louder, or its biases drown the sound and all codes are the same
        for name, gain in model.encoder.named_parameters():
            if name.endswith("weight.original0"):
                gain.mul_(2)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(SNAC_CONFIG))
    return folder


@pytest.fixture(scope="session")
def codec(snac_folder: Path):
    from qwen_megakernel.sheen.codec import SnacCodec

    return SnacCodec(snac_folder)


@pytest.fixture(scope="session")
def base_folder(
    tmp_path_factory: pytest.TempPathFactory, model_folder: Callable[[str], Path]
) -> Path:
    """A Qwen2 language model with random weights and the tokenizer of a built-in checkpoint."""
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("qwen")
    tokenizer = AutoTokenizer.from_pretrained(model_folder("tiny-random"))
    rows = len(tokenizer) + 40  # padded, as the released ones are
    config = Qwen2Config(vocab_size=rows, rope_theta=1e6, **QWEN2_CONFIG)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


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
    """What `prepare` makes of the recordings."""
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
    """A copy of the trained voice, to be damaged."""
    return Path(shutil.copytree(trained, tmp_path / "my-voice"))
