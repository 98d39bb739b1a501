"""`train run` and `train merge`: recordings become a trained voice, and that a checkpoint."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from qwen_megakernel.checkpoint import loading
from qwen_megakernel.checkpoint.loading import CODEC_FOLDER, CONFIG, WEIGHTS
from qwen_megakernel.checkpoint.tensor_shapes import TALKER_PREFIX
from qwen_megakernel.cloning.voice_library import VoiceLibrary
from qwen_megakernel.errors import OutputError, UsageError
from qwen_megakernel.gpu.driver import find_device
from qwen_megakernel.output_files import replacing
from qwen_megakernel.text.tokenizer import TextTokenizer
from qwen_megakernel.training import speech_data
from qwen_megakernel.training.job import BaseJob, run_job
from qwen_megakernel.training.speech_model import SpeechModel
from qwen_megakernel.training.speech_trainer import SpeechTrainer, Spoken, TuneOptions, add_adapters
from qwen_megakernel.training.trained_voice import (
    ADAPTER,
    ADAPTER_CONFIG,
    HELD_OUT,
    PEFT_PREFIX,
    SPEAKER,
    TENSORS,
    VOICE,
    TrainedVoice,
    check_trainable,
)
from qwen_megakernel.training.trainer import NO_WATCH, Watch
from qwen_megakernel.voice import Voice


@dataclass(frozen=True, slots=True)
class TuneJob(BaseJob):
    """The inputs and the output of a fine-tuning.

    Attributes:
        model: the Base model: hub id, folder or built-in name.
        name: the speaker's name in the merged checkpoint.
        held_out: share of the recordings that are not learned from, to measure the loss on.
    """

    model: str
    name: str = "speaker"
    held_out: float = 0.1

    def __post_init__(self) -> None:
        BaseJob.__post_init__(self)
        if not 0 <= self.held_out < 1:
            raise UsageError(f"held_out is {self.held_out}; it must be from 0 to below 1.")
        Voice(self.name)  # raises for what cannot be a name


def tune(job: TuneJob, options: TuneOptions, watch: Watch = NO_WATCH) -> SpeechTrainer:
    """Train a voice, and write it as `job.run_job` does.

    Returns:
        The trainer, at its last step.
    Raises:
        UsageError: the output holds another training, or none to resume.
        MissingPackageError: the method is lora, and peft is not installed.
        DatasetError, ModelFilesError, OutputError, GenerationError: an input cannot be used, the
            output cannot be written, or the loss is not a number.
    """
    job.check_output()
    samples = speech_data.read(job.data)
    files = loading.resolve(job.model, local_files_only=job.local_files_only, progress=job.progress)
    checkpoint = loading.load(files)
    check_trainable(checkpoint)
    fingerprint = VoiceLibrary(checkpoint).fingerprint
    for each in samples:
        speech_data.check_fit(each, checkpoint.config, fingerprint)
    tokenizer = TextTokenizer(files.folder, checkpoint.config)
    spoken = [
        Spoken(tokenizer.encode(each.text), torch.tensor(each.audio_codes)) for each in samples
    ]
    num_held_out = round(len(spoken) * job.held_out)
    # Bf16 weights are enough where they are frozen; updates of trained ones would be rounded away.
    is_half = options.method == "lora" and options.precision == "bf16"
    dtype = torch.bfloat16 if is_half else torch.float32
    model = SpeechModel(checkpoint, find_device(job.device), dtype)
    if options.method == "lora":
        add_adapters(model, options)
    voice = Voice(job.name, speech_data.mean_x_vector(samples), fingerprint=fingerprint)
    held_out, training = spoken[:num_held_out], spoken[num_held_out:]
    trainer = SpeechTrainer(model, training, held_out, voice, options)
    run_job(trainer, job, lambda: _write_voice(job, options, trainer, voice), watch)
    return trainer


def merge(
    voice: Path, output: Path, *, dtype: torch.dtype | None = None, local_files_only: bool = False
) -> None:
    """Write a voice as a CustomVoice checkpoint of the official layout, with its speaker's name.

    Args:
        voice: the folder of `tune`.
        output: a new folder.
        dtype: of the talker's tensors; None: as the base model stores them.
    Raises:
        UsageError, ModelFilesError: see `TrainedVoice`.
        OutputError: the output exists or cannot be written.
    """
    loading.check_new(output)
    trained = TrainedVoice.read(voice)
    base = loading.load(loading.resolve(trained.model, local_files_only=local_files_only))
    tensors = trained.tensors(base) if dtype else {}
    config = trained.merge_into(base)
    stored = {
        TALKER_PREFIX + key: tensors.get(key, value).to(dtype or value.dtype).contiguous()
        for key, value in base.talker.items()
    }
    try:
        with loading.new_folder(output) as draft:
            draft.mkdir(parents=True)
            for path in base.files.folder.iterdir():
                if path.is_file() and path.name not in (CONFIG, WEIGHTS):
                    shutil.copy(path, draft)
            shutil.copytree(base.files.speech_tokenizer, draft / CODEC_FOLDER)
            (draft / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            save_file(stored, draft / WEIGHTS, {"format": "pt"})
    except (OSError, SafetensorError) as error:  # safetensors has its own for a full disk
        raise OutputError(f"Cannot write {output}: {error}.") from error


def _write_voice(job: TuneJob, options: TuneOptions, trainer: SpeechTrainer, voice: Voice) -> None:
    learned = {name: value.cpu().contiguous() for name, value in trainer.learned().items()}
    described = {"name": voice.name, "model": job.model, "method": options.method}
    texts = {VOICE: json.dumps(described, indent=2) + "\n"}
    texts[HELD_OUT] = "".join(
        json.dumps({"step": step, "losses": losses}) + "\n" for step, losses in trainer.evaluations
    )
    if options.method == "lora":
        texts[ADAPTER_CONFIG] = json.dumps(trainer.adapter_config(job.model), indent=2) + "\n"
        learned = {
            PEFT_PREFIX + name.replace(".default.", "."): value for name, value in learned.items()
        }
    try:
        for name, text in texts.items():
            with replacing(job.output / name) as partial:
                partial.write_text(text, encoding="utf-8")
        with replacing(job.output / (ADAPTER if options.method == "lora" else TENSORS)) as partial:
            save_file(learned, partial, {"format": "pt"})
    except (OSError, SafetensorError) as error:  # safetensors has its own for a full disk
        raise OutputError(f"Cannot write {job.output}: {error}.") from error
    voice.save(job.output / SPEAKER)
