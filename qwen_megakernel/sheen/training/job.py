"""`sheen train`: trains a voice from a dataset and a language model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from qwen_megakernel.errors import UsageError
from qwen_megakernel.gpu.driver import find_device
from qwen_megakernel.printable import get_logger
from qwen_megakernel.sheen import model_folder, random_models
from qwen_megakernel.sheen.codec import DEFAULT_SNAC, find_snac, read_snac_config
from qwen_megakernel.sheen.model_folder import DEFAULT_BASE_MODEL, SheenConfig
from qwen_megakernel.sheen.tokens import AudioTokens, add_audio_tokens, resize_embeddings
from qwen_megakernel.sheen.training import dataset
from qwen_megakernel.sheen.training.sequences import TokenSequence, encode
from qwen_megakernel.sheen.training.trainer import Trainer
from qwen_megakernel.training.job import check_output, run_job
from qwen_megakernel.training.trainer import StepRecord, TrainOptions

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """The inputs and the output of a training.

    Attributes:
        data: the JSONL file of `prepare`.
        output: the folder of the voice.
        base_model: folder or hub id of a Qwen2.5 model, or "tiny-random-qwen2.5".
        snac: folder or hub id of the SNAC that made the dataset, or "tiny-random-snac".
        device: the device to train on; None: a GPU if there is one.
        save_steps: number of steps between two saves of the voice and the training state.
        resume: whether to continue the training in `output`.
    """

    data: Path
    output: Path
    base_model: str = DEFAULT_BASE_MODEL
    snac: str = DEFAULT_SNAC
    device: str | None = None
    save_steps: int = 500
    resume: bool = False
    local_files_only: bool = False
    progress: bool = True  # whether downloads show their progress

    def __post_init__(self) -> None:
        if self.save_steps < 1:
            raise UsageError(f"save_steps is {self.save_steps}; it must be 1 or more.")


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
    next(dataset.lines(job.data), None)  # raises for a missing dataset before any download
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


def train_voice(
    job: Job,
    options: TrainOptions,
    *,
    on_start: Callable[[Trainer], None] = lambda trainer: None,
    on_step: Callable[[StepRecord], None] = lambda record: None,
) -> Trainer:
    """Train a voice, and write it every `save_steps` steps, at the end, and on an interrupt.

    Args:
        on_start: called before the first step.
        on_step: called after each step.
    Returns:
        The trainer, at its last step.
    Raises:
        UsageError: the output holds another training, or none to resume.
        DatasetError, ModelFilesError, OutputError, GenerationError: an input cannot be used, the
            output cannot be written, or the loss is not a number.
    """
    check_output(job.output, resume=job.resume)
    parts = load_parts(job, options.seed)
    trainer = Trainer(parts.model, parts.sequences, parts.tokenizer.pad_token_id, options)
    if trainer.num_skipped:
        logger.warning(
            "%d of %d recordings are left out, because they are longer than %d tokens.",
            trainer.num_skipped,
            len(parts.sequences),
            options.max_length,
        )
    config = SheenConfig(max_length=options.max_length, espeak=parts.espeak)

    def write_voice() -> None:
        model_folder.save(
            job.output, parts.model, parts.tokenizer, parts.tokens, config, parts.snac
        )

    run_job(
        trainer,
        job.output,
        write_voice,
        save_steps=job.save_steps,
        resume=job.resume,
        on_start=lambda: on_start(trainer),
        on_step=on_step,
    )
    return trainer
