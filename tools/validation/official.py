"""The official package as an oracle: qwen-tts 0.1.1 on the CPU, imported without its audio extras.

Install it for comparisons only: the extra `reference` of this package, then qwen-tts==0.1.1 without
its dependencies (--no-deps).
"""

import contextlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qwen_megakernel.checkpoint.hub import without_advice
from qwen_megakernel.errors import MissingPackageError
from qwen_megakernel.installing import install_command
from qwen_megakernel.speech_options import OFFICIAL_NAMES, Sampling

# Packages that qwen_tts imports at once, but uses only in its 25 Hz tokenizer.
_ONLY_FOR_25_HZ = (
    "torchaudio",
    "torchaudio.compliance",
    "torchaudio.compliance.kaldi",
    "sox",
    "onnxruntime",
)


def package() -> types.ModuleType:
    """Import the module `qwen_tts`.

    Raises:
        MissingPackageError: it, or a package it needs, is not installed or fails when imported.
    """
    try:
        if importlib.util.find_spec("qwen_tts") is None:  # checked before the packages it needs
            raise ModuleNotFoundError("No module named 'qwen_tts'")
        # transformers looks for torchaudio's metadata, so it must come before an empty torchaudio.
        importlib.import_module("transformers.utils.import_utils")
        for name in _ONLY_FOR_25_HZ:
            try:
                importlib.import_module(name)
            except ImportError:
                sys.modules[name] = types.ModuleType(name)
        with contextlib.redirect_stdout(None):  # the package prints advice when it is imported
            return importlib.import_module("qwen_tts")
    except Exception as error:  # other versions of its dependencies raise any error
        raise MissingPackageError(
            f"The official package cannot be imported: {error}.",
            "It is the oracle of this comparison.",
            f"{install_command('reference')}; pip install --no-deps qwen-tts==0.1.1",
        ) from error


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """Load the `Qwen3TTSModel` of a checkpoint folder, with eager attention on the CPU."""
    qwen_tts = package()
    with without_advice():
        model = qwen_tts.Qwen3TTSModel.from_pretrained(
            str(folder), dtype=dtype, attn_implementation="eager", local_files_only=True
        )
    model.model.eval()
    return model


@contextlib.contextmanager
def _quick_masks() -> Iterator[None]:
    """Let transformers make its causal masks as it does on older releases of PyTorch.

    The masks are the same. Making them otherwise takes most of the time of a small model's frame.
    """
    from transformers import masking_utils

    before = masking_utils.sdpa_mask
    masking_utils.sdpa_mask = masking_utils.sdpa_mask_older_torch
    try:
        yield
    finally:
        masking_utils.sdpa_mask = before


@dataclass(slots=True)
class OfficialRun:
    """The inputs, logits and codes of one official generate() call."""

    codes: np.ndarray  # [num_frames, num_code_groups] int32
    prefill: Tensor  # [num_positions, hidden_size]: the talker's input embeddings
    trailing_text: Tensor  # [num_trailing, hidden_size]
    talker_logits: list[Tensor] = field(default_factory=list)  # each [vocab_size], a draw of code 0
    predictor_logits: list[Tensor] = field(default_factory=list)  # each [codebook_size], in order


def generate(
    model: Any,
    sampling: Sampling,
    max_frames: int,
    *,
    on_frames: Callable[[int], None] = lambda count: None,
    **prompt: Any,
) -> OfficialRun:
    """Run the official low-level generate() and record inputs, logits and codes.

    Args:
        model: the result of `load`.
        sampling: passed on with the official names.
        max_frames: maximum number of frames; the official limit is one draw more.
        on_frames: called with 1 after each frame.
        prompt: input_ids, languages, speakers, voice_clone_prompt and others of generate().
    """
    talker = model.model.talker
    run = OfficialRun(np.empty(0), torch.empty(0), torch.empty(0))
    hooks = [
        talker.codec_head.register_forward_hook(
            lambda _m, _i, out: run.talker_logits.append(out[0, -1].float())
        )
    ]
    hooks += [
        head.register_forward_hook(
            lambda _m, _i, out: run.predictor_logits.append(out[0, -1].float())
        )
        for head in talker.code_predictor.lm_head
    ]
    last_head = talker.code_predictor.lm_head[-1]  # this head runs last in each frame
    hooks.append(last_head.register_forward_hook(lambda _m, _i, _out: on_frames(1)))
    inner = talker.generate

    def recording(*args: Any, **kwargs: Any) -> Any:
        run.prefill = kwargs["inputs_embeds"][0]
        run.trailing_text = kwargs["trailing_text_hidden"][0]
        return inner(*args, **kwargs)

    talker.generate = recording
    try:
        with without_advice(), _quick_masks():
            draws = {OFFICIAL_NAMES[name]: value for name, value in sampling.values().items()}
            codes, _ = model.model.generate(max_new_tokens=max_frames + 1, **draws, **prompt)
    finally:
        talker.generate = inner
        for hook in hooks:
            hook.remove()
    run.codes = codes[0].to(torch.int32).numpy()
    return run
