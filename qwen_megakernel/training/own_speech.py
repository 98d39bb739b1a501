"""Speech of a model that is trained, drawn as generation draws it."""

from __future__ import annotations

import numpy as np
import torch

from qwen_megakernel.checkpoint.loading import Checkpoint
from qwen_megakernel.decoders.plain import PlainDecoder, Taps
from qwen_megakernel.decoders.prompt import PromptBuilder
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.records import StepResult, TextIds
from qwen_megakernel.speech_options import SpeechOptions
from qwen_megakernel.vocoder.vocoder import Vocoder

_PROMPT_ROWS = 32  # more than a prompt has beside its text


def draw(
    model: Checkpoint,
    ids: TextIds,
    request: SpeechOptions,
    num_frames: int,
    device: torch.device,
    dtype: torch.dtype,
    taps: Taps | None = None,
) -> StepResult:
    """Draw the frames of a text with the plain decoder, at most `num_frames`.

    Args:
        ids, request: as `SpeechModel.forward` takes them.
        device, dtype: of the decoder.
        taps: filled with the logits of each draw, as `FrameDecoder.step` does.
    """
    size = len(ids.body) + num_frames + _PROMPT_ROWS
    decoder = PlainDecoder(model, DecoderSizes(1, size, device, dtype))
    prompts = PromptBuilder(model.config, decoder.embeddings)
    request = prompts.resolve(request)
    decoder.prefill(0, prompts.build(ids, request), request.sampling, seed=0, part=0)
    return decoder.step([0], num_frames, taps=taps)


def speak(
    model: Checkpoint,
    ids: TextIds,
    request: SpeechOptions,
    seconds: float,
    device: torch.device,
    dtype: torch.dtype,
) -> np.ndarray:
    """Return the speech of what `draw` takes, [num_samples] float32, at most `seconds` long."""
    most = round(seconds / model.codec_config.frame_seconds)
    drawn = draw(model, ids, request, most, device, dtype)
    vocoder = Vocoder(model.codec_config, model.codec_decoder, device)
    return vocoder.decode(drawn.codes[0, : drawn.num_frames[0]])
