"""Finds the files of a model by its name, and loads its checked tensors.

`resolve` finds the files, `load` reads them: every tensor is compared with what the config files
imply before any is used, and no model is loaded in part.
"""

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from qwen_megakernel import PACKAGE_FOLDER
from qwen_megakernel.checkpoint import drawn_weights, hub, packed_form, safetensors_file
from qwen_megakernel.checkpoint.codec_config import CodecConfig, parse_codec_config
from qwen_megakernel.checkpoint.codec_layout import assumptions, layout_of
from qwen_megakernel.checkpoint.config import ModelConfig, parse_model_config
from qwen_megakernel.checkpoint.config_fields import Keys, Limits, read_json
from qwen_megakernel.checkpoint.packed_form import PackedForm
from qwen_megakernel.checkpoint.random_configs import RECIPES
from qwen_megakernel.checkpoint.random_weights import (
    CODEC_FOLDER,
    RECIPE_VERSION,
    write_checkpoint,
    write_small_files,
)
from qwen_megakernel.checkpoint.tensor_shapes import (
    CODEC_DECODER_PREFIX,
    CODEC_ENCODER_PREFIX,
    SPEAKER_ENCODER_PREFIX,
    TALKER_PREFIX,
    codec_tensors,
    model_tensors,
)
from qwen_megakernel.choices import TRAINED_VOICE
from qwen_megakernel.errors import ModelFilesError, OutputError, UsageError, did_you_mean
from qwen_megakernel.output_files import cache_folder, check_folder
from qwen_megakernel.printable import get_logger
from qwen_megakernel.records import Files
from qwen_megakernel.speech_options import Sampling

logger = get_logger(__name__)

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHTS = "model.safetensors"
NEEDED_FILES = (CONFIG, "vocab.json", "merges.txt", "tokenizer_config.json", WEIGHTS)
# Releases have this file, too; a folder that was put together by hand may lack it.
MODEL_FILES = (*NEEDED_FILES, GENERATION_CONFIG)
CODEC_FILES = (CONFIG, WEIGHTS)
CODEC_SIBLINGS = ("Qwen3-TTS-Tokenizer-12Hz", CODEC_FOLDER)  # several models may share one codec

DEMO_VOICE = "demo-voice"
DEMO_VOICE_FOLDER = PACKAGE_FOLDER / "assets" / DEMO_VOICE
BUILT_IN = (DEMO_VOICE, *RECIPES)

NUM_FILES_SHOWN = 10


@dataclass(frozen=True, slots=True)
class GenerationLimits:
    """The limit of speech in generation_config.json; the default is the official wrapper's."""

    max_new_tokens: Annotated[int, Limits(2, 2**24)] = 2048  # allows max_new_tokens - 1 frames


@dataclass(frozen=True, slots=True)
class ModelFiles(Files):
    """The files of a Qwen3-TTS checkpoint."""

    speech_tokenizer: Path = field(kw_only=True)
    is_drawn: bool = False  # `load` draws the weights; no file holds them


@dataclass(slots=True)
class Checkpoint:
    """A model with all of its files read and checked. Tensors are views of the mapped files, on
    CPU; those that were drawn are on the GPU, if there is one."""

    config: ModelConfig
    codec_config: CodecConfig
    sampling: Sampling  # generation_config.json
    max_new_tokens: int  # generation_config.json; allows max_new_tokens - 1 frames
    files: ModelFiles
    talker: dict[str, Tensor]  # names without "talker.", dtype as stored
    codec_decoder: dict[str, Tensor]  # names without "decoder.", float32
    has_codec_encoder: bool  # False: the codec decodes but cannot encode
    form: PackedForm | None = None  # the form of the matrices that the files hold packed

    def load_prefix(self, prefix: str) -> dict[str, Tensor]:
        """Read the tensors of `speaker_encoder.` or of the codec's `encoder.`, if there are any.

        They have names without the prefix, and the stored dtype, or float32 for the codec.
        """
        if prefix == SPEAKER_ENCODER_PREFIX:
            return safetensors_file.MappedTensors(self.files.folder / WEIGHTS, prefix)
        if prefix == CODEC_ENCODER_PREFIX:
            path = self.files.speech_tokenizer / WEIGHTS
            return _in_float32(safetensors_file.MappedTensors(path, prefix))
        raise ValueError(f"No tensors are loaded by the prefix {prefix!r}.")


def resolve(
    model: str | os.PathLike[str], *, local_files_only: bool = False, progress: bool = True
) -> ModelFiles:
    """Find a model's files; downloads the files of a hub model, and writes those of a random one.

    Args:
        model: a built-in name (`BUILT_IN`), a folder, or a hub id "owner/name"; tried in this
            order. If "drawn:" precedes the name of a random model, `load` draws its weights, on the
            GPU if there is one, and no file holds them.
        local_files_only: use only local and cached files, without network access.
        progress: show progress bars of a download, on stderr.
    Raises:
        UsageError: `model` is not a name.
        ModelFilesError: there is no such model, files are missing, or the hub cannot be reached.
        UnsupportedModel: this package does not run the model; raised before its weights are
            downloaded.
        OutputError: the files cannot be written.
    """
    model = os.fspath(model) if isinstance(model, os.PathLike) else model
    if not isinstance(model, str) or not model:
        raise UsageError(
            f"model is {model!r}; it must be a hub id, a folder, or a built-in name.",
            hint=f"For example {DEMO_VOICE!r}, or {next(iter(hub.RELEASED))!r}.",
        )
    if model == DEMO_VOICE:
        files = _files_in(DEMO_VOICE_FOLDER, model)
    elif model in RECIPES:
        files = _files_in(random_checkpoint(model), model)
    elif (recipe := model.removeprefix(drawn_weights.PREFIX)) in RECIPES:
        write = partial(write_small_files, recipe)
        folder = write_once(model.replace(":", "-"), RECIPE_VERSION, write)
        files = ModelFiles(
            folder,
            model,
            is_synthetic=True,
            banner=f"{model}: RANDOM WEIGHTS. Its output is noise, not speech.",
            speech_tokenizer=folder / CODEC_FOLDER,
            is_drawn=True,
        )
    elif os.path.isdir(folder := Path(os.path.expanduser(model))):
        files = _files_in(folder, model)
    elif hub.is_repo_id(model):
        names = (*MODEL_FILES, *(f"{CODEC_FOLDER}/{name}" for name in CODEC_FILES))
        folder = hub.fetch(
            model,
            names,
            accept=_read_model_config,
            local_files_only=local_files_only,
            progress=progress,
        )
        files = _files_in(folder, model)
    elif os.path.isfile(folder):
        raise ModelFilesError(f"{model} is a file.", hint="Pass the folder that contains it.")
    else:
        raise ModelFilesError(
            f"There is no folder {model} and no built-in model of that name.",
            f"Built-in: {', '.join(BUILT_IN)}. On the hub: {', '.join(hub.RELEASED)}.",
            did_you_mean(model, [*BUILT_IN, *hub.RELEASED]),
        )
    if files.banner:
        _announce(files.banner)
    return files


@cache
def _announce(banner: str) -> None:
    """Log what a model is, once in a process."""
    logger.warning(banner)


def load(files: ModelFiles, device: torch.device | None = None) -> Checkpoint:
    """Read a checkpoint's configs, check its tensors and map them.

    Args:
        device: where weights are drawn that no file holds; None: on the GPU, if there is one.
    Raises:
        ModelFilesError: a file is damaged, the tensors are not those of the config (see
            `safetensors_file.check`), or talker and codec belong to different models.
    """
    config = _read_model_config(files.folder)
    codec_config = _read_codec_config(files.speech_tokenizer)
    drawn = (config.talker.num_code_groups, config.predictor.vocab_size)
    decoded = (codec_config.decoder.num_quantizers, codec_config.decoder.codebook_size)
    if drawn != decoded:
        raise ModelFilesError(
            f"{files.folder} draws {drawn[0]} codes of {drawn[1]} per frame, but the speech "
            f"tokenizer in {files.speech_tokenizer} decodes {decoded[0]} of {decoded[1]}.",
            "They come from different models.",
        )
    sampling, max_new_tokens = _read_generation_config(files.folder / GENERATION_CONFIG)
    form: PackedForm | None = None
    if files.is_drawn:
        device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        talker = drawn_weights.talker(config, device)
        codec_decoder = drawn_weights.codec_decoder(codec_config, device)
        has_codec_encoder = False
    else:
        weights, codec_weights = files.folder / WEIGHTS, files.speech_tokenizer / WEIGHTS
        form = packed_form.read(weights)
        talker = packed_form.load(weights, form, model_tensors(config), TALKER_PREFIX)
        codec_decoder, has_codec_encoder = _load_codec(codec_weights, codec_config, form)
    return Checkpoint(
        config=config,
        codec_config=codec_config,
        sampling=sampling,
        max_new_tokens=max_new_tokens,
        files=files,
        talker=talker,
        codec_decoder=codec_decoder,
        has_codec_encoder=has_codec_encoder,
        form=form,
    )


def random_checkpoint(name: str) -> Path:
    """Return the folder of a built-in random checkpoint, after writing it if it is missing."""
    return write_once(name, RECIPE_VERSION, partial(write_checkpoint, name))


def write_once(name: str, version: int, write: Callable[[Path], None]) -> Path:
    """Return the cache's folder of a built-in random model, after writing it if it is missing.

    The folder is written under another name and renamed, so that a reader sees all of it or
    nothing; the later of two writers drops its copy.

    Args:
        version: the version of the files; each one has its own folder.
        write: creates the folder that it is given, and writes all files into it.
    Raises:
        OutputError: the files cannot be written.
    """
    folder = cache_folder() / f"{name}-v{version}"
    if os.path.isdir(folder):
        return folder
    logger.info("Writing %s to %s", name, folder)
    try:
        with new_folder(folder) as draft:
            write(draft)
    except (OSError, OutputError) as error:  # that of a `write` names the draft
        if not os.path.isdir(folder):
            reason = getattr(error.__cause__ or error, "strerror", None) or error
            raise OutputError(
                f"Cannot write {name} to {folder}: {reason}.",
                hint="Free some space there, or set QWEN_MEGAKERNEL_CACHE to another folder.",
            ) from error
    return folder


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield the path of a draft of `folder`, which gets that name when the block ends.

    A reader sees all of the folder or nothing; of two writers, the later one gets an `OSError`.
    """
    draft = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    try:
        yield draft
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def check_new(folder: Path) -> None:
    """Raise an OutputError if a folder that is to be written exists, or cannot be made."""
    check_folder(folder.parent)
    if os.path.lexists(folder):  # a link to nothing cannot be replaced by a folder, either
        raise OutputError(f"{folder} exists.", hint="Name a new folder, or delete this one.")


def _files_in(folder: Path, name: str) -> ModelFiles:
    _require(folder, (CONFIG,))
    _read_model_config(folder)
    _require(folder, NEEDED_FILES)
    form = packed_form.read(folder / WEIGHTS)
    source = form.source if form else name
    is_random = source in RECIPES
    banner = None
    if is_random:
        banner = f"{name}: RANDOM WEIGHTS from a seed. Its output is noise, not speech."
    elif source == DEMO_VOICE:
        official = next(iter(hub.RELEASED))
        banner = (
            f"{name} is a small demonstration voice of this project, not Qwen's model {official}."
        )
    return ModelFiles(folder, name, is_random, banner, speech_tokenizer=_find_codec(folder))


def _find_codec(folder: Path) -> Path:
    shelf = folder.resolve().parent
    places = [folder / CODEC_FOLDER, *(shelf / sibling for sibling in CODEC_SIBLINGS)]
    for place in places:
        if place.is_dir():
            _require(place, (WEIGHTS,))
            return place
    raise ModelFilesError(
        f"{folder} has no speech tokenizer.",
        f"Looked for {', '.join(str(place) for place in places)}.",
        f"Copy the folder {CODEC_FOLDER}/ of the download there, or Qwen3-TTS-Tokenizer-12Hz.",
    )


def _require(folder: Path, names: tuple[str, ...]) -> None:
    missing = [name for name in names if not (folder / name).is_file()]
    if not missing:
        return
    found = sorted(entry.name for entry in folder.iterdir())
    shown = ", ".join(found[:NUM_FILES_SHOWN]) or "nothing"
    if len(found) > NUM_FILES_SHOWN:
        shown += f" and {len(found) - NUM_FILES_SHOWN} more"
    raise ModelFilesError(
        f"{folder} has no {', '.join(missing)}.",
        f"Looked for Qwen3-TTS files; found: {shown}.",
        "It is a voice of `train run`: give it as the adapter, or use `train merge`."
        if TRAINED_VOICE in found
        else "",
    )


def _read_model_config(folder: Path) -> ModelConfig:
    path = folder / CONFIG
    return parse_model_config(read_json(path), str(path))


def _read_codec_config(folder: Path) -> CodecConfig:
    path = folder / CONFIG
    if path.is_file():
        return parse_codec_config(read_json(path), str(path))
    tensors = safetensors_file.describe(folder / WEIGHTS)
    values = layout_of({name: shape for name, (_, shape) in tensors.items()})
    logger.warning(
        "%s has no %s: sizes come from its tensors, and these values from the official codec: %s.",
        folder,
        CONFIG,
        assumptions(values),
    )
    return parse_codec_config(values, str(folder / WEIGHTS))


def _read_generation_config(path: Path) -> tuple[Sampling, int]:
    values = read_json(path) if path.is_file() else {}
    try:
        sampling = Sampling.from_generation_config(values)
    except UsageError as error:
        raise ModelFilesError(f"{path}: {error.what}", hint=error.hint) from error
    max_new_tokens = Keys(values, str(path)).read(GenerationLimits).max_new_tokens
    if not path.is_file():
        drawn = ", ".join(f"{name} {value}" for name, value in sampling.values().items())
        logger.warning(
            "There is no %s: codes are drawn with the defaults of the official package, %s, "
            "max_new_tokens %d.",
            *(path, drawn, max_new_tokens),
        )
    return sampling, max_new_tokens


def _load_codec(
    path: Path, config: CodecConfig, model_form: PackedForm | None
) -> tuple[dict[str, Tensor], bool]:
    """Check the codec's tensors; return those of its decoder, and whether it has an encoder, which
    is complete or absent."""
    found = safetensors_file.describe(path)
    has_encoder = any(name.startswith(CODEC_ENCODER_PREFIX) for name in found)
    expected = codec_tensors(config, has_encoder=has_encoder)
    has_config = (path.parent / CONFIG).is_file()
    layout = "its config.json" if has_config else "the official codec, and it has no config.json"
    form = packed_form.read(path)
    if form and not model_form:
        raise ModelFilesError(
            f"{path} is part of a converted model, and the file of the model's own weights is not.",
            hint="Use the files of one download, or convert the original model again.",
        )
    tensors = packed_form.load(path, form, expected, CODEC_DECODER_PREFIX, layout)
    return _in_float32(tensors), has_encoder


def _in_float32(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Convert tensors, but not packed ones, in place. Those of releases are float32 already."""
    for name, tensor in tensors.items():
        if not name.startswith(packed_form.PREFIX):
            tensors[name] = tensor.to(torch.float32)
    return tensors
