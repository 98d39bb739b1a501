"""`sheen train`: trains a voice from a dataset and a language model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from qwen_megakernel.gpu.driver import find_device
from qwen_megakernel.sheen import model_folder, random_models
from qwen_megakernel.sheen.codec import DEFAULT_SNAC, find_snac, read_snac_config
from qwen_megakernel.sheen.model_folder import DEFAULT_BASE_MODEL, SheenConfig
from qwen_megakernel.sheen.tokens import AudioTokens, add_audio_tokens, resize_embeddings
from qwen_megakernel.sheen.training import dataset
from qwen_megakernel.sheen.training.sequences import TokenSequence, encode
from qwen_megakernel.sheen.training.trainer import Trainer
from qwen_megakernel.training import preparing
from qwen_megakernel.training.job import BaseJob, run_job
from qwen_megakernel.training.trainer import NO_WATCH, TrainOptions, Watch

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Job(BaseJob):
    """The inputs and the output of a training.

    Attributes:
        base_model: folder or hub id of a Qwen2.5 model, or "tiny-random-qwen2.5".
        snac: folder or hub id of the SNAC that made the dataset, or "tiny-random-snac".
    """

    base_model: str = DEFAULT_BASE_MODEL
    snac: str = DEFAULT_SNAC


@dataclass(frozen=True, slots=True)
class Parts:
    """The loaded inputs of a job, which fit each other."""

    model: PreTrainedModel  # float32, with a row for every token, on the job's device
    tokenizer: PreTrainedTokenizerBase  # includes the audio tokens
    tokens: AudioTokens
    sequences: list[TokenSequence]
    espeak: str | None  # the voice that phonemised the dataset
    snac: Path


def load_parts(job: Job, seed: int) -> Parts:
    """Load the inputs of a job; the rows of new tokens are drawn from `seed`.

    Raises:
        DatasetError, ModelFilesError, UnsupportedModel: an input is missing or damaged.
    """
    next(
        preparing.lines(job.data, dataset.PREPARE), None
    )  # raises for a missing dataset before any download
    hub_options: dict[str, Any] = {"local_files_only": job.local_files_only}
    snac = find_snac(job.snac, progress=job.progress, **hub_options)
    codebook_size = read_snac_config(snac).codebook_size
    samples = dataset.read(job.data, codebook_size)
    is_random = job.base_model == random_models.BASE_MODEL
    base_model = random_models.base_model() if is_random else job.base_model
    tokenizer = model_folder.load_tokenizer(base_model, **hub_options)
    tokens = add_audio_tokens(tokenizer, codebook_size)
    model = model_folder.load_language_model(base_model, **hub_options)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        resize_embeddings(model, tokenizer)
    model.to(find_device(job.device))  # type: ignore[arg-type]  # transformers hides its self
    return Parts(
        model,
        tokenizer,
        tokens,
        [encode(sample, tokenizer, tokens) for sample in samples],
        samples[0].espeak,
        snac,
    )


def train_voice(job: Job, options: TrainOptions, watch: Watch = NO_WATCH) -> Trainer:
    """Train a voice, and write it every `save_steps` steps, at the end, and on an interrupt.

    Returns:
        The trainer, at its last step.
    Raises:
        UsageError: the output holds another training, or none to resume.
        DatasetError, ModelFilesError, OutputError, GenerationError: an input cannot be used, the
            output cannot be written, or the loss is not a number.
    """
    job.check_output()
    parts = load_parts(job, options.seed)
    trainer = Trainer(parts.model, parts.sequences, parts.tokenizer.pad_token_id, options)
    config = SheenConfig(max_length=options.max_length, espeak=parts.espeak)

    def write_voice() -> None:
        model_folder.save(
            job.output, parts.model, parts.tokenizer, parts.tokens, config, parts.snac
        )

    run_job(trainer, job, write_voice, watch)
    return trainer
