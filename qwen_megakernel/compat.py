"""The classes of qwen-tts and of faster-qwen3-tts: change the import and a script runs here.

    from qwen_megakernel.compat import Qwen3TTSModel     # was: from qwen_tts import ...
    from qwen_megakernel.compat import FasterQwen3TTS    # was: from faster_qwen3_tts import ...

Both are a `TTSEngine` whose options have the names of those packages.
"""

from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch

from qwen_megakernel.cloning.voice_library import SILENCE_TAIL_SECONDS
from qwen_megakernel.errors import UsageError
from qwen_megakernel.official_api import (
    Recording,
    VoiceClonePromptItem,
    items_of,
    open_recording,
    stream_chunks,
    voice_of,
)
from qwen_megakernel.tts_engine import TTSEngine

__all__ = ["FasterQwen3TTS", "Qwen3TTSModel", "VoiceClonePromptItem"]

# The default of faster-qwen3-tts, which ignores generation_config.json.
DEFAULT_MAX_NEW_TOKENS = 2048

T = TypeVar("T")
Chunks = Iterator[tuple[np.ndarray, int, dict[str, Any]]]


class Qwen3TTSModel(TTSEngine):
    """The official package's model class."""

    @classmethod
    def from_pretrained(  # type: ignore[override]  # the signature of qwen-tts
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        device_map: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        torch_dtype: str | torch.dtype | None = None,
        attn_implementation: str | None = None,
        **options: Any,
    ) -> Self:
        """Load a model.

        Args:
            device_map: a device; "auto" or None: a GPU if there is one.
            dtype, torch_dtype: bfloat16 or float32; None: `TTSEngine` chooses.
            attn_implementation: ignored, since each backend has one attention.
        """
        del attn_implementation
        dtype = _unless_auto(dtype if dtype is not None else torch_dtype)
        options = {"device": _unless_auto(device_map), "dtype": dtype} | options
        return super().from_pretrained(pretrained_model_name_or_path, **options)


def _collected(stream: Callable[..., Chunks]) -> Callable[..., tuple[list[np.ndarray], int]]:
    """Return the method of whole speeches for one that streams: its results are ([audio], rate)."""

    @wraps(stream)
    def generate(self: TTSEngine, *args: Any, **options: Any) -> tuple[list[np.ndarray], int]:
        audio = [samples for samples, _, _ in stream(self, *args, **options)]
        return [np.concatenate(audio or [np.empty(0, np.float32)])], self.sample_rate

    return generate


class FasterQwen3TTS(TTSEngine):
    """faster-qwen3-tts' class. Cloning is by x-vector unless `xvec_only=False`.

    Source of names and defaults: andimarafioti/faster-qwen3-tts, faster_qwen3_tts/model.py.
    """

    @classmethod
    def from_pretrained(  # type: ignore[override]  # the signature of faster-qwen3-tts
        cls,
        model_name: str | Path,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        attn_implementation: str | None = None,
        max_seq_len: int = 2048,
        **options: Any,
    ) -> Self:
        """Load a model; the other arguments are those of `Qwen3TTSModel.from_pretrained`.

        Args:
            max_seq_len: maximum number of frames of an utterance.
        """
        del attn_implementation
        options = {"dtype": _unless_auto(dtype), "max_frames": max_seq_len} | options
        return super().from_pretrained(model_name, device=_unless_auto(device), **options)

    def generate_voice_clone_streaming(
        self,
        text: str,
        language: str,
        ref_audio: Recording = "",
        ref_text: str = "",
        *,
        chunk_size: int = 12,
        xvec_only: bool = True,
        non_streaming_mode: bool = True,
        append_silence: bool = True,
        voice_clone_prompt: list[VoiceClonePromptItem] | dict[str, list] | None = None,
        **generation: Any,
    ) -> Chunks:
        """Speak in the voice of a recording: yields (audio, rate, figures) of `chunk_size` frames.

        Args:
            xvec_only: clone by x-vector alone, without the transcript.
            append_silence: put half a second of silence after a recording with a transcript.
            voice_clone_prompt: result of `create_voice_clone_prompt`, instead of a recording.
            generation: see `OfficialNames.generate_voice_clone`.
        """
        self._require_type("base", "generate_voice_clone")
        if voice_clone_prompt:
            voice = voice_of(items_of(voice_clone_prompt)[0])
        elif ref_audio is None or (isinstance(ref_audio, str) and not ref_audio):
            raise UsageError("ref_audio is required unless voice_clone_prompt is given.")
        else:
            samples, rate = open_recording(ref_audio)
            voice = self.create_voice(
                samples,
                None if xvec_only else ref_text,
                rate=rate,
                silence_tail=SILENCE_TAIL_SECONDS if append_silence else 0,
            )
        return self._chunks(
            text, chunk_size, non_streaming_mode, generation, language=language, voice=voice
        )

    def generate_custom_voice_streaming(
        self,
        text: str,
        speaker: str,
        language: str,
        instruct: str | None = None,
        *,
        chunk_size: int = 12,
        **generation: Any,
    ) -> Chunks:
        """Speak as a speaker of a CustomVoice checkpoint."""
        self._require_type("custom_voice", "generate_custom_voice")
        return self._chunks(
            text, chunk_size, False, generation, language=language, voice=speaker, instruct=instruct
        )

    def generate_voice_design_streaming(
        self, text: str, instruct: str, language: str, *, chunk_size: int = 12, **generation: Any
    ) -> Chunks:
        """Speak in a voice described in words."""
        self._require_type("voice_design", "generate_voice_design")
        return self._chunks(
            text, chunk_size, False, generation, language=language, instruct=instruct
        )

    # The signatures are those of faster-qwen3-tts.
    generate_voice_clone = _collected(generate_voice_clone_streaming)
    generate_custom_voice = _collected(generate_custom_voice_streaming)
    generate_voice_design = _collected(generate_voice_design_streaming)

    def _chunks(
        self, text: str, chunk_size: int, non_streaming_mode: bool, generation: dict, **options: Any
    ) -> Chunks:
        generation = {"max_new_tokens": DEFAULT_MAX_NEW_TOKENS} | generation
        return stream_chunks(
            self._start_one(
                text, non_streaming_mode, generation, chunk_frames=chunk_size, **options
            )
        )


def _unless_auto(value: T) -> T | None:
    return None if value == "auto" else value
