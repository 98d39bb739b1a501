"""Reads and writes the folder of a trained voice, which is complete and needs no network.

config.json, model.safetensors, tokenizer files, ...    as transformers writes them
sheen.json                                              what it was trained on
snac/                                                   the codec, as published
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from safetensors import SafetensorError

from qwen_megakernel.checkpoint.config_fields import Keys, Limits, read_json
from qwen_megakernel.errors import ModelFilesError, UnsupportedModel
from qwen_megakernel.output_files import writing
from qwen_megakernel.records import Files
from qwen_megakernel.sheen.codec import CONFIG, WEIGHTS, find_snac, read_snac_config
from qwen_megakernel.sheen.tokens import AudioTokens, find_audio_tokens
from qwen_megakernel.speech_options import Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DEFAULT_BASE_MODEL = "Qwen/Qwen2.5-0.5B"
MODEL_TYPE = "qwen2"
SHEEN_CONFIG = "sheen.json"
SNAC_FOLDER = "snac"


@dataclass(frozen=True, slots=True)
class SheenConfig:
    """The contents of sheen.json."""

    # tokens of the longest sequence it was trained on
    max_length: Annotated[int, Limits(1, 2**20)]
    espeak: str | None  # the espeak-ng voice that phonemises its texts; None: texts are phonemes


def is_sheen(model: str) -> bool:
    """Return whether `model` is the folder of a trained voice of this family."""
    return os.path.isfile(os.path.join(os.path.expanduser(model), SHEEN_CONFIG))


def find(model: str) -> Files:
    """Return the files of a trained voice.

    Raises:
        ModelFilesError: `model` is no folder that `sheen train` wrote.
    """
    folder = Path(os.path.expanduser(model))
    if not is_sheen(model):
        is_folder = os.path.isdir(folder)
        what = f"{folder} has no {SHEEN_CONFIG}." if is_folder else f"No folder {folder}."
        raise ModelFilesError(
            what,
            "A voice of this family is a folder that `sheen train` wrote.",
            "docs/sheen.md describes how to make one from recordings.",
        )
    find_snac(str(folder / SNAC_FOLDER))
    return Files(folder, model)


def read_config(folder: Path) -> SheenConfig:
    path = folder / SHEEN_CONFIG
    return Keys(read_json(path), str(path)).read(SheenConfig)


def load_tokenizer(source: str | Path, **options: Any) -> PreTrainedTokenizerBase:
    """Load a Qwen2 tokenizer from a folder or the hub, or raise ModelFilesError."""
    from transformers import AutoTokenizer

    with readable(source, Exception):  # tokenizers has no narrower error for damaged files
        return AutoTokenizer.from_pretrained(str(source), **options)


def load_language_model(
    source: str | Path, dtype: torch.dtype = torch.float32, **options: Any
) -> PreTrainedModel:
    """Load a complete Qwen2 language model from a folder or the hub.

    Raises:
        ModelFilesError: the model is missing, damaged, or lacks weights.
        UnsupportedModel: the model is of another kind.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    with readable(source, OSError, ValueError):
        config = AutoConfig.from_pretrained(str(source), **options)
    if config.model_type != MODEL_TYPE:
        raise UnsupportedModel(
            f"{source} is a {config.model_type!r} model; Sheen is built on Qwen2.5, whose "
            f"model_type is {MODEL_TYPE!r}."
        )
    with readable(source, Exception):  # safetensors and torch raise their own for damaged files
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(source), dtype=dtype, output_loading_info=True, **options
        )
    model, info = loaded
    absent = sorted(info["missing_keys"]) or sorted(str(key) for key in info["mismatched_keys"])
    if absent:
        raise ModelFilesError(
            f"{source} lacks {len(absent)} weights: {', '.join(absent[:5])}.",
            "With random weights in their place the model could not speak.",
        )
    return model


def save(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    tokens: AudioTokens,
    config: SheenConfig,
    snac: Path,
) -> None:
    """Write a voice into `folder`, where it replaces another one.

    A run that is killed leaves the other voice, or none, but never files of both.

    Raises:
        OutputError: the folder cannot be written.
    """
    from transformers import GenerationConfig

    # The engine's settings, so that transformers' own generate() samples like the engine.
    model.generation_config = GenerationConfig(
        eos_token_id=tokens.end_id, pad_token_id=tokenizer.pad_token_id, **asdict(Sampling().talker)
    )
    model.config.eos_token_id = tokens.end_id
    draft = folder / ".new"
    with writing(folder, SafetensorError), ExitStack() as cleanup:
        shutil.rmtree(draft, ignore_errors=True)  # of a run that was killed
        cleanup.callback(shutil.rmtree, draft, ignore_errors=True)
        model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        for place in (draft, folder):
            (place / SNAC_FOLDER).mkdir(exist_ok=True)
        for name in (CONFIG, WEIGHTS):
            shutil.copyfile(snac / name, draft / SNAC_FOLDER / name)
        (draft / SHEEN_CONFIG).write_text(json.dumps(asdict(config), indent=2) + "\n", "utf-8")
        # sheen.json makes the folder a voice, so it is the first to go and the last to come.
        files = [path for path in draft.rglob("*") if path.is_file()]
        files.sort(key=lambda path: path.name == SHEEN_CONFIG)
        (folder / SHEEN_CONFIG).unlink(missing_ok=True)
        for path in files:
            os.replace(path, folder / path.relative_to(draft))


def audio_tokens(folder: Path, tokenizer: PreTrainedTokenizerBase) -> AudioTokens:
    """Return the audio tokens of a trained voice, as many as its codec has codes."""
    return find_audio_tokens(tokenizer, read_snac_config(folder / SNAC_FOLDER).codebook_size)


def check_rows(source: str | Path, model: PreTrainedModel, tokens: AudioTokens) -> None:
    """Raise a ModelFilesError if a model has no row for some of the audio tokens."""
    num_rows = len(model.get_input_embeddings().get_parameter("weight"))
    if num_rows <= tokens.end_id:
        raise ModelFilesError(
            f"{source} has {num_rows} embeddings; the last audio token has id {tokens.end_id}.",
            "Model and tokenizer belong to different trainings.",
        )


@contextmanager
def readable(source: str | Path, *errors: type[Exception]) -> Iterator[None]:
    """Turn these errors of the block, which loads files, into a ModelFilesError."""
    try:
        yield
    except errors as error:
        raise ModelFilesError(
            f"{source} cannot be loaded: {str(error).splitlines()[0]}",
            "It is neither a folder with the files of a Qwen2.5 model nor one on a reachable hub.",
            "Give the folder of a downloaded model, or set HF_ENDPOINT to a mirror.",
        ) from error
