"""`train run` and `train merge`: recordings become the folder of a voice, and that a checkpoint.

voice.json                           base model, method, speaker's name, options of the adapter
speaker.voice.safetensors            the speaker's row: the mean of all x-vectors
adapter_config.json, adapter_model.safetensors     as peft writes them (--method lora)
tensors.safetensors                  the trained tensors (--method full)
trainer.pt, losses.jsonl, loss.png, held_out.jsonl     of the training
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from qwen_megakernel.checkpoint import loading
from qwen_megakernel.checkpoint.config_fields import read_json
from qwen_megakernel.checkpoint.loading import CODEC_FOLDER, CONFIG, WEIGHTS, Checkpoint
from qwen_megakernel.checkpoint.tensor_shapes import TALKER_PREFIX
from qwen_megakernel.cloning.voice_library import VoiceLibrary
from qwen_megakernel.errors import DatasetError, ModelFilesError, OutputError, UsageError
from qwen_megakernel.gpu.driver import find_device
from qwen_megakernel.output_files import replacing
from qwen_megakernel.printable import get_logger
from qwen_megakernel.text.tokenizer import TextTokenizer
from qwen_megakernel.training import speech_data
from qwen_megakernel.training.job import check_output, run_job
from qwen_megakernel.training.speech_model import SpeechModel
from qwen_megakernel.training.speech_trainer import SpeechTrainer, Spoken, TuneOptions, add_adapters
from qwen_megakernel.training.trainer import StepRecord
from qwen_megakernel.voice import Voice

logger = get_logger(__name__)

VOICE, SPEAKER, HELD_OUT = "voice.json", "speaker.voice.safetensors", "held_out.jsonl"
ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
TENSORS = "tensors.safetensors"
PEFT_PREFIX = "base_model.model."  # in front of every name in peft's files
SPEAKER_ID = 3000  # of the official script


@dataclass(frozen=True, slots=True)
class TuneJob:
    """The inputs and the output of a fine-tuning.

    Attributes:
        data: the JSONL file of `train prepare`.
        output: the folder of the voice.
        model: the Base model: hub id, folder or built-in name.
        name: the speaker's name in the merged checkpoint.
        held_out: share of the recordings that are not learned from, to measure the loss on.
    """

    data: Path
    output: Path
    model: str
    name: str = "speaker"
    device: str | None = None
    save_steps: int = 100
    held_out: float = 0.1
    resume: bool = False
    local_files_only: bool = False
    progress: bool = True

    def __post_init__(self) -> None:
        if self.save_steps < 1:
            raise UsageError(f"save_steps is {self.save_steps}; it must be 1 or more.")
        if not 0 <= self.held_out < 1:
            raise UsageError(f"held_out is {self.held_out}; it must be from 0 to below 1.")
        Voice(self.name)  # raises for what cannot be a name


def tune(
    job: TuneJob,
    options: TuneOptions,
    *,
    on_start: Callable[[SpeechTrainer], None] = lambda trainer: None,
    on_step: Callable[[StepRecord], None] = lambda record: None,
) -> SpeechTrainer:
    """Train a voice, and write it as `job.run_job` does.

    Returns:
        The trainer, at its last step.
    Raises:
        UsageError: the output holds another training, or none to resume.
        MissingPackageError: the method is lora, and peft is not installed.
        DatasetError, ModelFilesError, OutputError, GenerationError: an input cannot be used, the
            output cannot be written, or the loss is not a number.
    """
    check_output(job.output, resume=job.resume)
    utterances = speech_data.read(job.data)
    files = loading.resolve(job.model, local_files_only=job.local_files_only, progress=job.progress)
    checkpoint = loading.load(files)
    _check_data(job.data, utterances[0], checkpoint)
    tokenizer = TextTokenizer(files.folder, checkpoint.config)
    spoken = [
        Spoken(tokenizer.encode(each.text), torch.tensor(each.audio_codes)) for each in utterances
    ]
    num_held_out = round(len(spoken) * job.held_out)
    # Bf16 weights are enough where they are frozen; updates of trained ones would be rounded away.
    is_half = options.method == "lora" and options.precision == "bf16"
    dtype = torch.bfloat16 if is_half else torch.float32
    model = SpeechModel(checkpoint, find_device(job.device), dtype)
    if options.method == "lora":
        add_adapters(model, options)
    voice = Voice(job.name, speech_data.mean_x_vector(utterances), fingerprint=utterances[0].model)
    held_out, training = spoken[:num_held_out], spoken[num_held_out:]
    trainer = SpeechTrainer(model, training, held_out, voice, options)
    if trainer.num_skipped:
        logger.warning(
            "%d of %d recordings are left out, because they have more than %d frames.",
            trainer.num_skipped,
            len(training),
            options.max_length,
        )
    run_job(
        trainer,
        job.output,
        lambda: _write_voice(job, options, trainer, voice),
        save_steps=job.save_steps,
        resume=job.resume,
        on_start=lambda: on_start(trainer),
        on_step=on_step,
    )
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
        ModelFilesError: the folder is no voice, or its files are damaged.
        OutputError: the output exists or cannot be written.
    """
    loading.check_new(output)
    described = read_json(voice / VOICE)
    if missing := {"model", "name", "method", "rank", "alpha"} - described.keys():
        raise ModelFilesError(
            f"{voice / VOICE} has no {', '.join(sorted(missing))}.", hint="Train the voice again."
        )
    base = loading.load(loading.resolve(described["model"], local_files_only=local_files_only))
    tensors = merged_tensors(voice, described, base)
    config = read_json(base.files.folder / CONFIG)
    name = described["name"].lower()
    config["tts_model_type"] = "custom_voice"
    config["talker_config"] |= {"spk_id": {name: SPEAKER_ID}, "spk_is_dialect": {name: False}}
    config.pop("speaker_encoder_config", None)
    stored = {
        TALKER_PREFIX + key: value.to(dtype or base.talker[key].dtype).contiguous()
        for key, value in tensors.items()
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


def merged_tensors(voice: Path, described: dict, base: Checkpoint) -> dict[str, Tensor]:
    """Return the talker's tensors of a voice, float32: the base's, changed as it was trained.

    Raises:
        ModelFilesError: a file is missing, or does not fit the base model.
    """
    tensors = {name: value.float() for name, value in base.talker.items()}
    speaker = Voice.load(voice / SPEAKER)
    assert speaker.x_vector is not None
    lora = described["method"] == "lora"
    path = voice / (ADAPTER if lora else TENSORS)
    try:
        learned = load_file(path)
        for name, value in learned.items():
            if not lora:
                tensors[name] = value
            elif name.endswith("lora_A.weight"):
                other = learned[name.replace("lora_A", "lora_B")]
                target = name.removeprefix(PEFT_PREFIX).replace("lora_A.", "")
                scale = described["alpha"] / described["rank"]
                tensors[target] = tensors[target] + scale * (other.float() @ value.float())
    except Exception as error:  # safetensors raises its own errors for damaged files
        raise ModelFilesError(f"{path} cannot be merged: {error}.") from error
    table = tensors["model.codec_embedding.weight"].clone()
    table[SPEAKER_ID] = torch.from_numpy(speaker.x_vector)
    tensors["model.codec_embedding.weight"] = table
    return tensors


def _check_data(path: Path, first: speech_data.Utterance, checkpoint: Checkpoint) -> None:
    fingerprint = VoiceLibrary(checkpoint)
    fingerprint.check_encoders()
    if first.model != fingerprint.fingerprint:
        raise DatasetError(
            f"{path} was prepared with another model ({first.model}).",
            hint=f"Prepare it anew with --model {checkpoint.files.name}.",
        )


def _write_voice(job: TuneJob, options: TuneOptions, trainer: SpeechTrainer, voice: Voice) -> None:
    learned = {name: value.cpu().contiguous() for name, value in trainer.learned().items()}
    values = asdict(options)
    chosen = {key: values[key] for key in ("method", "rank", "alpha")}
    described = {"name": voice.name, "model": job.model, **chosen}
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
