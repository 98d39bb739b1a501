"""From a model's name to its checked tensors.

`resolve` finds the files, `load` reads them: every tensor is compared with what the config files
imply before any is used, and nothing is ever loaded in part.
"""

import difflib
import logging
import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from qwen_megakernel import PACKAGE_FOLDER
from qwen_megakernel.checkpoint import hub, safetensors_file
from qwen_megakernel.checkpoint.codec_config import CodecConfig, parse_codec_config
from qwen_megakernel.checkpoint.codec_layout import assumptions, layout_of
from qwen_megakernel.checkpoint.config import ModelConfig, parse_model_config, read_json
from qwen_megakernel.checkpoint.random_configs import RECIPES
from qwen_megakernel.checkpoint.random_weights import RECIPE_VERSION, write_checkpoint
from qwen_megakernel.checkpoint.tensor_shapes import (
    CODEC_DECODER_PREFIX,
    CODEC_ENCODER_PREFIX,
    SPEAKER_ENCODER_PREFIX,
    TALKER_PREFIX,
    codec_tensors,
    model_tensors,
)
from qwen_megakernel.errors import ModelFilesError, OutputError, UsageError
from qwen_megakernel.records import Sampling

logger = logging.getLogger(__name__)

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHTS = "model.safetensors"
NEEDED_FILES = (CONFIG, "vocab.json", "merges.txt", "tokenizer_config.json", WEIGHTS)
# Releases have these, too; a folder that was put together by hand may lack them.
MODEL_FILES = (*NEEDED_FILES, GENERATION_CONFIG)
CODEC_FILES = (CONFIG, WEIGHTS)
CODEC_FOLDER = "speech_tokenizer"
CODEC_SIBLINGS = ("Qwen3-TTS-Tokenizer-12Hz", CODEC_FOLDER)  # several models may share one codec

DEMO_VOICE = "demo-voice"
DEMO_VOICE_FOLDER = PACKAGE_FOLDER / "assets" / DEMO_VOICE
BUILT_IN = (DEMO_VOICE, *RECIPES)

# max_new_tokens where generation_config.json is silent (the official wrapper's default).
DEFAULT_MAX_NEW_TOKENS = 2048

NUM_FILES_SHOWN = 10


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
            return safetensors_file.read(self.files.folder / WEIGHTS, prefix)
        if prefix == CODEC_ENCODER_PREFIX:
            return safetensors_file.read(
                self.files.speech_tokenizer / WEIGHTS, prefix, torch.float32
            )
        raise ValueError(f"No tensors are loaded by the prefix {prefix!r}.")


def resolve(
    model: str | os.PathLike[str], *, local_files_only: bool = False, progress: bool = True
) -> ModelFiles:
    """Find a model's files; those of a hub model are downloaded, those of a random one written.

    Args:
        model: a built-in name (`BUILT_IN`), a folder, or a hub id "owner/name"; tried in this
            order.
        local_files_only: never ask the network; what is cached is used either way.
        progress: show progress bars while downloading, on stderr.
    Raises:
        UsageError: this is no name.
        ModelFilesError: no such model, files are missing, or the hub cannot be reached.
        UnsupportedModel: a model that this package does not run; found before its weights are
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
        files = _files_in(
            DEMO_VOICE_FOLDER,
            model,
            banner=f"{model}: a small demonstration voice of this project, not Qwen's. The real "
            f"model: --model {next(iter(hub.RELEASED))}.",
        )
    elif model in RECIPES:
        files = _files_in(
            random_checkpoint(model),
            model,
            is_synthetic=True,
            banner=f"{model}: RANDOM WEIGHTS from a seed. What it says is noise, not speech.",
        )
    elif (folder := Path(model).expanduser()).is_dir():
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
    else:
        raise _unknown_model(model)
    if files.banner:
        logger.warning(files.banner)
    return files


def load(files: ModelFiles) -> Checkpoint:
    """Read a checkpoint's configs, check its tensors and map them.

    Raises:
        ModelFilesError: a file is damaged, the tensors are not those of the config (see
            `safetensors_file.check`), or talker and codec do not belong together.
    """
    config = _read_model_config(files.folder)
    codec_config = _read_codec_config(files.speech_tokenizer)
    _check_match(config, codec_config, files)
    sampling, max_new_tokens = _read_generation_config(files.folder / GENERATION_CONFIG)
    safetensors_file.check(files.folder / WEIGHTS, model_tensors(config))
    has_codec_encoder = _check_codec(files.speech_tokenizer / WEIGHTS, codec_config)
    return Checkpoint(
        config=config,
        codec_config=codec_config,
        sampling=sampling,
        max_new_tokens=max_new_tokens,
        files=files,
        talker=safetensors_file.read(files.folder / WEIGHTS, TALKER_PREFIX),
        codec_decoder=safetensors_file.read(
            files.speech_tokenizer / WEIGHTS, CODEC_DECODER_PREFIX, torch.float32
        ),
        has_codec_encoder=has_codec_encoder,
    )


def cache_folder() -> Path:
    """Where built-in checkpoints go: $QWEN_MEGAKERNEL_CACHE or ~/.cache/qwen_megakernel."""
    return Path(
        os.environ.get("QWEN_MEGAKERNEL_CACHE") or Path.home() / ".cache" / "qwen_megakernel"
    )


def random_checkpoint(name: str) -> Path:
    """Return the folder of a built-in random checkpoint, written now if it is not there."""
    return write_once(name, RECIPE_VERSION, partial(write_checkpoint, name))


def write_once(name: str, version: int, write: Callable[[Path], None]) -> Path:
    """Return the cache's folder of a built-in random model, written now if it is not there.

    It is written beside its place and renamed: a reader sees all of it or nothing, and of two
    writers the later one drops its copy.

    Args:
        name: of the model.
        version: of what is written; another one has another folder.
        write: makes the folder that it is given and writes all files into it.
    Raises:
        OutputError: the files cannot be written.
    """
    folder = cache_folder() / f"{name}-v{version}"
    if folder.is_dir():
        return folder
    draft = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    logger.info("Writing %s to %s", name, folder)
    try:
        write(draft)
        draft.rename(folder)
    except OSError as error:
        if not folder.is_dir():
            raise OutputError(
                f"Cannot write {name} to {folder}: {error.strerror}.",
                hint="Free some space there, or set QWEN_MEGAKERNEL_CACHE to another folder.",
            ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _files_in(
    folder: Path, name: str, *, is_synthetic: bool = False, banner: str | None = None
) -> ModelFiles:
    _require(folder, (CONFIG,))
    _read_model_config(folder)
    _require(folder, NEEDED_FILES)
    return ModelFiles(folder, _find_codec(folder), name, is_synthetic, banner)


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
        f"{folder} has no {', '.join(missing)}.", f"Looked for Qwen3-TTS files; found: {shown}."
    )


def _unknown_model(model: str) -> ModelFilesError:
    if Path(model).expanduser().is_file():
        return ModelFilesError(f"{model} is a file.", hint="Pass the folder it lies in.")
    near = difflib.get_close_matches(model, [*BUILT_IN, *hub.RELEASED], n=1)
    return ModelFilesError(
        f"There is no folder {model} and no built-in model of that name.",
        f"Built-in: {', '.join(BUILT_IN)}. On the hub: {', '.join(hub.RELEASED)}.",
        f"Did you mean --model {near[0]}?" if near else "",
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
        "%s has no %s: sizes are those of its tensors, and official are %s.",
        folder,
        CONFIG,
        assumptions(values),
    )
    return parse_codec_config(values, str(folder / WEIGHTS))


def _read_generation_config(path: Path) -> tuple[Sampling, int]:
    if not path.is_file():
        sampling = Sampling()
        logger.warning(
            "There is no %s: codes are drawn as the official package does by default, %s, "
            "max_new_tokens %d.",
            path,
            ", ".join(f"{name} {value}" for name, value in asdict(sampling).items()),
            DEFAULT_MAX_NEW_TOKENS,
        )
        return sampling, DEFAULT_MAX_NEW_TOKENS
    values = read_json(path)
    try:
        sampling = Sampling.from_generation_config(values)
    except UsageError as error:
        raise ModelFilesError(f"{path}: {error.what}", hint=error.hint) from error
    return sampling, values.get("max_new_tokens", DEFAULT_MAX_NEW_TOKENS)


def _check_match(config: ModelConfig, codec: CodecConfig, files: ModelFiles) -> None:
    talker = (config.talker.num_code_groups, config.predictor.vocab_size)
    decoder = (codec.decoder.num_quantizers, codec.decoder.codebook_size)
    if talker != decoder:
        raise ModelFilesError(
            f"{files.folder} draws {talker[0]} codes of {talker[1]} per frame, but the speech "
            f"tokenizer in {files.speech_tokenizer} decodes {decoder[0]} of {decoder[1]}.",
            "They come from different models.",
        )


def _check_codec(path: Path, config: CodecConfig) -> bool:
    """Check the codec's tensors; True if it has an encoder, which is all there or not at all."""
    expected = codec_tensors(config)
    has_encoder = any(
        name.startswith(CODEC_ENCODER_PREFIX) for name in safetensors_file.describe(path)
    )
    if not has_encoder:
        expected = {n: s for n, s in expected.items() if not n.startswith(CODEC_ENCODER_PREFIX)}
    is_told = (path.parent / CONFIG).is_file()
    layout = "its config.json" if is_told else "the official codec, and it has no config.json"
    safetensors_file.check(path, expected, layout)
    return has_encoder
