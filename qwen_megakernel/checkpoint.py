"""From a model's name to its checked tensors.

`resolve` finds the files, `load` reads them: every tensor is compared with what the config files
imply before any is used, and nothing is ever loaded in part.
"""

import json
import logging
import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from qwen_megakernel.config import (
    CodecConfig,
    ModelConfig,
    parse_codec_config,
    parse_model_config,
    read_json,
)
from qwen_megakernel.errors import ModelFilesError, OutputError
from qwen_megakernel.inventory import (
    CODEC_DECODER_PREFIX,
    CODEC_ENCODER_PREFIX,
    SPEAKER_ENCODER_PREFIX,
    TALKER_PREFIX,
    Shape,
    codec_tensors,
    model_tensors,
)
from qwen_megakernel.synthetic import RECIPE_VERSION, write_checkpoint
from qwen_megakernel.synthetic_config import RECIPES
from qwen_megakernel.utterance import Sampling

logger = logging.getLogger(__name__)

WEIGHTS = "model.safetensors"
MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    WEIGHTS,
)
CODEC_FILES = ("config.json", WEIGHTS)
CODEC_FOLDER = "speech_tokenizer"
CODEC_SIBLINGS = ("Qwen3-TTS-Tokenizer-12Hz", CODEC_FOLDER)

# max_new_tokens where generation_config.json is silent (the official wrapper's default).
DEFAULT_MAX_NEW_TOKENS = 2048

# The exponent bits of each storage dtype: all ones mean NaN or Inf.
EXPONENT_MASKS = {
    "BF16": (np.dtype("<u2"), 0x7F80),
    "F16": (np.dtype("<u2"), 0x7C00),
    "F32": (np.dtype("<u4"), 0x7F800000),
}
SCAN_BYTES = 2**20
NUM_NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model's files are. They exist; their contents are not checked yet."""

    folder: Path
    speech_tokenizer: Path
    name: str  # as the user gave it
    is_synthetic: bool = False  # random weights
    banner: str | None = None  # what the user should know before listening


@dataclass(slots=True)
class Checkpoint:
    """A model whose files were read and checked. Tensors are views of the mapped files, on CPU."""

    config: ModelConfig
    codec_config: CodecConfig
    sampling: Sampling  # generation_config.json
    max_new_tokens: int  # the same; at most max_new_tokens - 1 frames
    files: ModelFiles
    talker: dict[str, Tensor]  # names without "talker.", dtype as stored
    codec_decoder: dict[str, Tensor]  # names without "decoder.", float32
    has_codec_encoder: bool  # False: the codec can speak but not listen

    def load_prefix(self, prefix: str) -> dict[str, Tensor]:
        """Read the tensors of `speaker_encoder.` or of the codec's `encoder.`.

        Returns:
            Names without the prefix; dtype as stored, except the codec's, which is float32. Empty
            if the checkpoint has none.
        """
        if prefix == SPEAKER_ENCODER_PREFIX:
            return _read(self.files.folder / WEIGHTS, prefix)
        if prefix == CODEC_ENCODER_PREFIX:
            return _read(self.files.speech_tokenizer / WEIGHTS, prefix, torch.float32)
        raise ValueError(f"No tensors are loaded by the prefix {prefix!r}.")


def resolve(model: str, *, local_files_only: bool = False, progress: bool = True) -> ModelFiles:
    """Find a model's files.

    Args:
        model: a built-in name or a folder.
        local_files_only: never ask the network (downloads are still to come).
        progress: show what is downloaded (downloads are still to come).
    Raises:
        ModelFilesError: no such model, or files are missing.
        UnsupportedModel: the folder holds a model that this package does not run.
    """
    if model in RECIPES:
        files = _materialise(model)
    else:
        files = _local_files(Path(model).expanduser(), model)
    if files.banner:
        logger.warning(files.banner)
    return files


def load(files: ModelFiles) -> Checkpoint:
    """Read a checkpoint's configs and map its tensors.

    Weights are scanned once for NaN and Inf with plain reads (0.6B: 2.5 GB in 0.3 s from the page
    cache), so that the mapped pages become resident only as they are used.

    Raises:
        ModelFilesError: a file is damaged; a tensor is missing, unknown, of another shape, of a
            dtype other than bf16, f16 or f32, or not finite.
    """
    config_path = files.folder / "config.json"
    codec_config_path = files.speech_tokenizer / "config.json"
    config = parse_model_config(read_json(config_path), str(config_path))
    codec_config = parse_codec_config(read_json(codec_config_path), str(codec_config_path))
    generation = read_json(files.folder / "generation_config.json")
    _check(files.folder / WEIGHTS, model_tensors(config))
    has_codec_encoder = _check_codec(files.speech_tokenizer / WEIGHTS, codec_config)
    return Checkpoint(
        config=config,
        codec_config=codec_config,
        sampling=Sampling.from_generation_config(generation),
        max_new_tokens=generation.get("max_new_tokens", DEFAULT_MAX_NEW_TOKENS),
        files=files,
        talker=_read(files.folder / WEIGHTS, TALKER_PREFIX),
        codec_decoder=_read(files.speech_tokenizer / WEIGHTS, CODEC_DECODER_PREFIX, torch.float32),
        has_codec_encoder=has_codec_encoder,
    )


def cache_folder() -> Path:
    """Where built-in checkpoints go: $QWEN_MEGAKERNEL_CACHE or ~/.cache/qwen_megakernel."""
    return Path(
        os.environ.get("QWEN_MEGAKERNEL_CACHE") or Path.home() / ".cache" / "qwen_megakernel"
    )


def _materialise(name: str) -> ModelFiles:
    """Write a built-in random checkpoint once per recipe version.

    It is written beside its place and renamed: a reader sees all of it or nothing, and of two
    writers the later one drops its copy.
    """
    folder = cache_folder() / f"{name}-v{RECIPE_VERSION}"
    if not folder.is_dir():
        draft = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
        logger.info("Writing %s to %s", name, folder)
        try:
            write_checkpoint(name, draft)
            draft.rename(folder)
        except OSError as error:
            if not folder.is_dir():
                raise OutputError(
                    f"Cannot write {name} to {folder}: {error.strerror}.",
                    cure="Free some space there, or set QWEN_MEGAKERNEL_CACHE to another folder.",
                ) from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return ModelFiles(
        folder,
        folder / CODEC_FOLDER,
        name,
        is_synthetic=True,
        banner=f"{name}: RANDOM WEIGHTS from a seed. What it says is noise, not speech.",
    )


def _local_files(folder: Path, name: str) -> ModelFiles:
    if not folder.is_dir():
        raise ModelFilesError(
            f"There is no folder {folder} and no built-in model of that name.",
            f"Built-in: {', '.join(RECIPES)}.",
        )
    _require(folder, MODEL_FILES[:1])
    config_path = folder / "config.json"
    parse_model_config(read_json(config_path), str(config_path))
    _require(folder, MODEL_FILES)
    return ModelFiles(folder, _find_codec(folder), name)


def _find_codec(folder: Path) -> Path:
    places = [
        folder / CODEC_FOLDER,
        *(folder.resolve().parent / sibling for sibling in CODEC_SIBLINGS),
    ]
    for place in places:
        if place.is_dir():
            _require(place, CODEC_FILES)
            return place
    raise ModelFilesError(
        f"{folder} has no speech tokenizer.",
        f"Looked for {', '.join(str(place) for place in places)}.",
        "Copy the folder speech_tokenizer/ of the same download there.",
    )


def _require(folder: Path, names: tuple[str, ...]) -> None:
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        found = ", ".join(sorted(entry.name for entry in folder.iterdir())) or "nothing"
        raise ModelFilesError(
            f"{folder} has no {', '.join(missing)}.", f"Looked for Qwen3-TTS files; found: {found}."
        )


def _check_codec(path: Path, config: CodecConfig) -> bool:
    """Check the codec's tensors; True if it has an encoder (all of it or none)."""
    expected = codec_tensors(config)
    has_encoder = any(name.startswith(CODEC_ENCODER_PREFIX) for name in _describe(path))
    if not has_encoder:
        expected = {
            name: shape
            for name, shape in expected.items()
            if not name.startswith(CODEC_ENCODER_PREFIX)
        }
    _check(path, expected)
    return has_encoder


def _describe(path: Path) -> dict[str, tuple[str, Shape]]:
    """Dtype and shape of every tensor of a safetensors file."""
    try:
        with safe_open(path, framework="pt") as file:
            slices = ((name, file.get_slice(name)) for name in file.keys())  # noqa: SIM118
            return {name: (s.get_dtype(), tuple(s.get_shape())) for name, s in slices}
    except (SafetensorError, OSError) as error:
        raise ModelFilesError(
            f"{path} is damaged: {error}.",
            "A download or a copy that was cut short looks like this.",
            "Delete it and fetch it again.",
        ) from error


def _check(path: Path, expected: dict[str, Shape]) -> None:
    found = _describe(path)
    missing = [f"{name} {list(expected[name])} missing" for name in expected if name not in found]
    extra = [f"{name} {list(found[name][1])} unknown" for name in found if name not in expected]
    misshaped = [
        f"{name} {list(found[name][1])} should be {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name][1] != shape
    ]
    if missing or extra or misshaped:
        raise ModelFilesError(
            f"{path} does not fit its config.json: {len(missing)} tensors missing, "
            f"{len(extra)} unknown, {len(misshaped)} of another shape.",
            _first(misshaped + missing + extra),
            "Use the config.json and the weights of one download.",
        )
    unknown = [f"{n} is {dtype}" for n, (dtype, _) in found.items() if dtype not in EXPONENT_MASKS]
    if unknown:
        raise ModelFilesError(
            f"{path}: {len(unknown)} tensors are stored in a dtype that is not supported.",
            _first(unknown),
            f"Known: {', '.join(EXPONENT_MASKS)}.",
        )
    damaged = list(_non_finite(path))
    if damaged:
        raise ModelFilesError(
            f"{path}: {len(damaged)} tensors hold NaN or Inf.",
            _first(damaged),
            "Fetch the file again; if it stays so, the checkpoint is broken.",
        )


def _first(lines: list[str]) -> str:
    rest = len(lines) - NUM_NAMES_SHOWN
    return "; ".join(lines[:NUM_NAMES_SHOWN]) + (f"; and {rest} more." if rest > 0 else ".")


def _non_finite(path: Path) -> Iterator[str]:
    """Names of the tensors that hold NaN or Inf.

    Reads the data with a small buffer of its own instead of through the mapping, because 1.8 GB of
    touched pages would count as this process's memory. `_describe` has validated the header.
    """
    buffer = bytearray(SCAN_BYTES)
    with path.open("rb", buffering=0) as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_bytes))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            start, end = entry["data_offsets"]
            file.seek(8 + header_bytes + start)
            dtype, mask = EXPONENT_MASKS[entry["dtype"]]
            while start < end:
                part = memoryview(buffer)[: min(SCAN_BYTES, end - start)]
                start += file.readinto(part)
                if ((np.frombuffer(part, dtype) & mask) == mask).any():
                    yield name
                    break


def _read(path: Path, prefix: str, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Tensors whose name starts with `prefix`, without it; converted to `dtype` if given."""
    tensors = {}
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a dict
            if name.startswith(prefix):
                tensor = file.get_tensor(name)
                tensors[name.removeprefix(prefix)] = tensor if dtype is None else tensor.to(dtype)
    return tensors
