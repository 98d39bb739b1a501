"""`train run` and `train merge`: recordings become a trained voice, and that a checkpoint."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from qwen_megakernel.audio import write_wav
from qwen_megakernel.checkpoint import loading
from qwen_megakernel.checkpoint.config_fields import read_json
from qwen_megakernel.checkpoint.loading import CODEC_FOLDER, CONFIG, WEIGHTS, Checkpoint
from qwen_megakernel.checkpoint.tensor_shapes import TALKER_PREFIX
from qwen_megakernel.choices import SAMPLE_TEXT
from qwen_megakernel.cloning.voice_library import VoiceLibrary
from qwen_megakernel.errors import UsageError
from qwen_megakernel.gpu.driver import find_device
from qwen_megakernel.marking import Marking
from qwen_megakernel.output_files import replacing, writing
from qwen_megakernel.speech_options import SpeechOptions
from qwen_megakernel.text.tokenizer import TextTokenizer
from qwen_megakernel.training import own_speech, speech_data, trained_voice
from qwen_megakernel.training.job import BaseJob, run_job
from qwen_megakernel.training.speech_data import TrainingSample
from qwen_megakernel.training.speech_model import SpeechModel
from qwen_megakernel.training.speech_trainer import SpeechTrainer, Spoken, TuneOptions, add_adapters
from qwen_megakernel.training.trained_voice import TrainedVoice, as_saved
from qwen_megakernel.training.trainer import NO_WATCH, StepRecord, Watch
from qwen_megakernel.voice import Voice

SAMPLE_SECONDS = 12.0  # at most


@dataclass(frozen=True, slots=True)
class TuneJob(BaseJob):
    """The inputs and the output of a fine-tuning.

    Attributes:
        model: the Base model: hub id, folder or built-in name.
        name: the speaker's name in the merged checkpoint.
        held_out: share of the recordings, one at least, that are not learned from, to measure the
            loss on; 0: all are learned from.
        sample_text: is spoken at each evaluation, into a file of the output; "": nothing is.
    """

    model: str
    name: str = "speaker"
    held_out: float = 0.1
    sample_text: str = SAMPLE_TEXT

    def __post_init__(self) -> None:
        BaseJob.__post_init__(self)
        if not 0 <= self.held_out < 1:
            raise UsageError(f"held_out is {self.held_out}; it must be from 0 to below 1.")
        Voice(self.name)  # raises for what cannot be a name

    def check_output(self) -> None:
        """Raise as `BaseJob` does, and for another name than that of the voice to resume."""
        BaseJob.check_output(self)
        described = self.output / trained_voice.VOICE
        # A training that was killed at its first save may have a state alone.
        name = read_json(described)["name"] if self.resume and described.is_file() else self.name
        if name != self.name:
            raise UsageError(
                f"{self.output} has the voice of {name!r}, and name is {self.name!r}.",
                hint=f"Give --name {shlex.quote(str(name))}, or train into another folder.",
            )


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
    num_held_out = max(round(len(samples) * job.held_out), job.held_out > 0)
    if num_held_out == len(samples):
        raise UsageError(
            f"held_out is {job.held_out} of {len(samples)} recordings, which leaves none to learn "
            "from.",
            hint="Learn from all of them with --held-out 0.",
        )
    parts = Parts.load(job)
    if parts.base.files.folder == Path(job.model).expanduser():
        job = replace(job, model=os.path.abspath(parts.base.files.folder))  # for any directory
    spoken = [parts.spoken(parts.fitting(each)) for each in samples]
    sample_ids = parts.tokenizer.encode(job.sample_text) if job.sample_text else None
    voice = Voice(job.name, speech_data.mean_x_vector(samples), fingerprint=parts.fingerprint)
    held_out, training = spoken[:num_held_out], spoken[num_held_out:]
    trainer = SpeechTrainer(
        parts.new_model(options), training, held_out, parts.speaker(voice), options
    )

    def after(record: StepRecord) -> None:
        watch.step(record)
        if sample_ids and trainer.is_measured(record.step):
            # With the weights of the last step, as a merged checkpoint would speak.
            merged = replace(parts.base, talker=dict(parts.base.talker))
            learned = as_saved(trainer.current())
            changed = trained_voice.changed_tensors(parts.base, learned, options.scale, voice)
            trained_voice.merge_tensors(merged, changed, voice.name)
            request = SpeechOptions(voice=voice.name.lower(), sampling=merged.sampling)
            dtype = trainer.model.codec_head.weight.dtype
            samples = own_speech.speak(
                merged, sample_ids, request, SAMPLE_SECONDS, parts.device, dtype
            )
            path = job.output / f"sample-{record.step:06}.wav"
            write_wav(path, samples, merged.codec_config.sample_rate, mark=Marking())

    described = {"name": voice.name, "model": job.model, "method": options.method}
    described["weights"] = trained_voice.weights_digest(parts.base)
    write_voice = partial(_write_voice, job, options, trainer, voice, described)
    run_job(trainer, job, write_voice, Watch(watch.start, after))
    return trainer


@dataclass(frozen=True, slots=True)
class Parts:
    """What a training needs of its base model."""

    base: Checkpoint
    tokenizer: TextTokenizer
    fingerprint: str  # of the encoders
    device: torch.device

    @staticmethod
    def load(job: TuneJob) -> Parts:
        """Load the base model of a job.

        Raises:
            ModelFilesError, TaskError, UsageError: it is missing, damaged, or cannot be trained.
        """
        files = loading.resolve(
            job.model, local_files_only=job.local_files_only, progress=job.progress
        )
        base = loading.load(files)
        trained_voice.check_trainable(base)
        tokenizer = TextTokenizer(files.folder, base.config)
        return Parts(base, tokenizer, VoiceLibrary(base).fingerprint, find_device(job.device))

    def fitting(self, sample: TrainingSample) -> TrainingSample:
        """Return a recording; raises a DatasetError if the model cannot be trained on it."""
        return speech_data.fitting(sample, self.base.config, self.fingerprint)

    def spoken(self, sample: TrainingSample) -> Spoken:
        """Return the ids and the codes of a recording that fits."""
        return Spoken(self.tokenizer.encode(sample.text), torch.tensor(sample.audio_codes))

    def speaker(self, voice: Voice) -> str | Voice:
        """Return whom the base model speaks with in training: its only speaker, or a voice."""
        if self.base.config.only_speaker_id is None:
            return voice
        return next(iter(self.base.config.talker.speakers))

    def new_model(self, options: TuneOptions) -> SpeechModel:
        """Return the base model, ready to be trained.

        Raises:
            MissingPackageError: the method is lora, and peft is not installed.
        """
        # Bf16 weights are enough where they are frozen; updates of trained ones would be rounded
        # away.
        is_half = options.method == "lora" and options.precision == "bf16"
        model = SpeechModel(self.base, self.device, torch.bfloat16 if is_half else torch.float32)
        if options.method == "lora":
            add_adapters(model, options)
        return model


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
    with writing(output, SafetensorError), loading.new_folder(output) as draft:
        draft.mkdir(parents=True)
        for path in base.files.folder.iterdir():
            if path.is_file() and path.name not in (CONFIG, WEIGHTS):
                shutil.copy(path, draft)
        shutil.copytree(base.files.speech_tokenizer, draft / CODEC_FOLDER)
        (draft / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_file(stored, draft / WEIGHTS, {"format": "pt"})


def _write_voice(
    job: TuneJob, options: TuneOptions, trainer: SpeechTrainer, voice: Voice, described: object
) -> None:
    texts = {trained_voice.VOICE: json.dumps(described, indent=2) + "\n"}
    texts[trained_voice.HELD_OUT] = "".join(
        json.dumps({"step": step, "losses": losses}) + "\n" for step, losses in trainer.evaluations
    )
    if options.method == "lora":
        config = trainer.adapter_config(job.model)
        texts[trained_voice.ADAPTER_CONFIG] = json.dumps(config, indent=2) + "\n"
    with writing(job.output, SafetensorError):
        for name, text in texts.items():
            with replacing(job.output / name) as draft:
                draft.write_text(text, encoding="utf-8")
        tensors = trained_voice.TENSORS if options.scale is None else trained_voice.ADAPTER
        with replacing(job.output / tensors) as draft:
            save_file(as_saved(trainer.learned()), draft, {"format": "pt"})
    voice.save(job.output / trained_voice.SPEAKER)
