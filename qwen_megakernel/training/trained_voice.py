"""The folder of a trained voice: what it adds to its base model.

voice.json                           base model, hash of its weights, method, speaker's name
speaker.voice.safetensors            the speaker's row: the mean of all x-vectors, or the only one
adapter_config.json, adapter_model.safetensors     as peft writes them (--method lora)
tensors.safetensors                  the trained tensors (--method full)
trainer.pt, losses.jsonl, loss.png, held_out.jsonl     of the training
sample-STEP.wav, tensorboard/                          of the training, too
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from qwen_megakernel.checkpoint.config import parse_model_config
from qwen_megakernel.checkpoint.config_fields import read_json
from qwen_megakernel.checkpoint.loading import CONFIG, Checkpoint
from qwen_megakernel.choices import TRAINED_VOICE
from qwen_megakernel.cloning.voice_library import VoiceLibrary
from qwen_megakernel.errors import ModelFilesError, UsageError, check_type
from qwen_megakernel.voice import VOICE_SUFFIX, Voice

VOICE, SPEAKER, HELD_OUT = TRAINED_VOICE, "speaker.voice.safetensors", "held_out.jsonl"
ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
TENSORS = "tensors.safetensors"
PEFT_PREFIX = "base_model.model."  # in front of every name in peft's files
SPEAKER_ID = 3000  # of the official script, for a Base model
_TABLE = "model.codec_embedding.weight"


@dataclass(frozen=True, slots=True)
class TrainedVoice:
    """A voice of `train run`, to be merged with the model that it was trained on."""

    folder: Path
    model: str  # the name of the base model when it was trained
    weights: str | None  # `weights_digest` of the base model; None: of an earlier version
    speaker: Voice
    scale: float | None  # of the adapters; None: the tensors themselves were trained

    @staticmethod
    def read(place: str | Path) -> TrainedVoice:
        """Read the small files of a voice, and check that the others are there.

        Args:
            place: the folder, or "NAME=FOLDER" for a speaker of another name.
        Raises:
            ModelFilesError, RecordingError: the folder is no voice, lacks a file, or one is
                damaged.
            UsageError: NAME cannot be a name, or there is no FOLDER.
        """
        check_type("adapter", place, str | os.PathLike, "a folder, or NAME=FOLDER")
        name, is_named, rest = str(place).partition("=")
        if os.path.isdir(place):
            is_named, rest = "", str(place)
        if not (rest if is_named else place):
            raise UsageError(
                f"adapter is {str(place)!r}, which names no folder.",
                hint="Name a folder that `train run` wrote, as FOLDER or NAME=FOLDER.",
            )
        folder = Path(os.path.expanduser(rest if is_named else place))
        if not os.path.isfile(folder / VOICE):
            why, hint = f"it has no {VOICE}", "Name a folder that `train run` wrote."
            if folder.name.endswith(VOICE_SUFFIX) and os.path.isfile(folder):
                why, hint = "it is a voice file", "Give it as the voice, without adapter."
            elif not os.path.isdir(folder):
                why = "there is no such folder"
            raise ModelFilesError(f"{folder} is no trained voice: {why}.", hint=hint)
        described = read_json(folder / VOICE)
        try:
            method, scale = described["method"], None
            needed = [SPEAKER, TENSORS]
            if method == "lora":
                needed = [SPEAKER, ADAPTER_CONFIG, ADAPTER]
            elif method != "full":
                raise ValueError(f"its method is {method!r}")
            if missing := [each for each in needed if not (folder / each).is_file()]:
                raise ValueError(f"the folder has no {', '.join(missing)}")
            if method == "lora":
                adapter = read_json(folder / ADAPTER_CONFIG)
                scale = adapter["lora_alpha"] / adapter["r"]
            model, own = str(described["model"]), str(described["name"])
            weights = described.get("weights")
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else error
            raise ModelFilesError(
                f"{folder / VOICE} cannot be used: {what}.", hint="Train the voice again."
            ) from error
        speaker = replace(Voice.load(folder / SPEAKER), name=name if is_named else own)
        return TrainedVoice(folder, model, weights, speaker, scale)

    def merge_into(self, base: Checkpoint) -> dict[str, Any]:
        """Merge the voice into its base model; see `merge_tensors`.

        Raises:
            UsageError, ModelFilesError: it is not the model that the voice was trained on, or a
                file of the voice is damaged.
        """
        return merge_tensors(base, self.tensors(base), self.speaker.name)

    def tensors(self, base: Checkpoint) -> dict[str, Tensor]:
        """Return the tensors of the talker that the voice changes, float32, by name.

        Raises:
            UsageError, ModelFilesError: as `merge_into` does.
        """
        _check_original(base)
        found, wanted = VoiceLibrary(base).fingerprint, self.speaker.fingerprint
        if self.weights is not None:
            found, wanted = f"{found}, {weights_digest(base)}", f"{wanted}, {self.weights}"
        if found != wanted:
            raise UsageError(
                f"{self.folder} was trained on {self.model} ({wanted}), not on {base.files.name} "
                f"({found}).",
                hint=f"Use --model {self.model}",
            )
        check_trainable(base)
        path = self.folder / (TENSORS if self.scale is None else ADAPTER)
        try:
            return changed_tensors(base, load_file(path), self.scale, self.speaker)
        except Exception as error:  # safetensors raises its own errors for damaged files
            raise ModelFilesError(f"{path} cannot be merged: {error}.") from error


def as_saved(learned: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that a model has learned as a file has them: on the CPU, peft's names."""
    return {
        PEFT_PREFIX + name.replace(".default.", ".") if "lora_" in name else name: (
            value.cpu().contiguous()
        )
        for name, value in learned.items()
    }


def merge_tensors(base: Checkpoint, tensors: dict[str, Tensor], speaker: str) -> dict[str, Any]:
    """Change a checkpoint into that of a CustomVoice model with one speaker, in place.

    Each tensor of `changed_tensors` is rounded to the format that the base model stores it in.

    Returns:
        The contents of its config.json.
    """
    for name, value in tensors.items():
        base.talker[name] = value.to(base.talker[name].dtype)
    values, speaker = read_json(base.files.folder / CONFIG), speaker.lower()
    values["tts_model_type"] = "custom_voice"
    spk_id = {speaker: _speaker_id(base)}
    values["talker_config"] |= {"spk_id": spk_id, "spk_is_dialect": {speaker: False}}
    values.pop("speaker_encoder_config", None)
    base.config = parse_model_config(values)
    return values


def changed_tensors(
    base: Checkpoint, learned: dict[str, Tensor], scale: float | None, speaker: Voice
) -> dict[str, Tensor]:
    """Return the tensors of the talker that a voice changes, float32, by name.

    Args:
        learned: the tensors of `ADAPTER`, or of `TENSORS`.
        scale: as `TrainedVoice.scale`.
        speaker: the speaker's row.
    Raises:
        KeyError, ValueError: they are of another model.
    """
    tensors = learned
    if scale is not None:
        tensors, names = {}, [name for name in learned if name.endswith("lora_A.weight")]
        if not names or len(learned) != 2 * len(names):
            raise ValueError(f"it has {len(learned)} tensors, of which {len(names)} are lora_A")
        for name in names:
            into, out = learned[name], learned[name.replace("lora_A", "lora_B")]
            target = name.removeprefix(PEFT_PREFIX).replace("lora_A.", "")
            change = scale * (out.float() @ into.float())
            tensors[target] = base.talker[target].float() + change
    for name, tensor in tensors.items():
        if tensor.shape != base.talker[name].shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}")
    table = tensors.get(_TABLE, base.talker[_TABLE]).float().clone()
    table[_speaker_id(base)] = torch.from_numpy(speaker.x_vector)
    return tensors | {_TABLE: table}


def _speaker_id(base: Checkpoint) -> int:
    """Return the id of a trained speaker, who takes the place of an only one."""
    only = base.config.only_speaker_id
    return SPEAKER_ID if only is None else only


def weights_digest(base: Checkpoint) -> str:
    """Return a hash of two of the talker's tensors, of which every training changes one or both:
    the table with the speakers' rows, and a matrix of its last layer."""
    digest = hashlib.sha256()
    last = base.config.talker.stack.num_layers - 1
    for name in (_TABLE, f"model.layers.{last}.mlp.down_proj.weight"):
        digest.update(base.talker[name].view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def _check_original(base: Checkpoint) -> None:
    if base.form or base.files.is_drawn:
        kind = "packed" if base.form else "drawn"
        raise UsageError(
            f"{base.files.name} has {kind} weights, which cannot be trained.",
            hint="Use the files of the original model.",
        )


def check_trainable(base: Checkpoint) -> None:
    """Raise an error for a model that no voice can be trained on, or merged with.

    Raises:
        TaskError: see `VoiceLibrary.check_encoders`.
        UsageError: its weights are packed or drawn, or no row is left for a speaker.
    """
    _check_original(base)
    name, num_rows = base.files.name, base.config.talker.vocab_size
    VoiceLibrary(base).check_encoders()
    if num_rows <= _speaker_id(base):
        raise UsageError(
            f"{name} has {num_rows} codec ids; a trained speaker has id {SPEAKER_ID}.",
            hint="Use a model with as many ids as the released ones, 3072.",
        )
