"""The calls of the official package's `Qwen3TTSModel`, for scripts that already use them.

Prompts are the official ones: no silence after the reference, text in one part, and
`max_new_tokens=N` gives at most N - 1 frames, because the official code drops the last token.
Source: QwenLM/Qwen3-TTS, inference/qwen3_tts_model.py (qwen-tts 0.1.1).
"""

import base64
import io
import os
import re
import reprlib
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qwen_megakernel.audio import to_float32
from qwen_megakernel.checkpoint.config import ModelConfig
from qwen_megakernel.cloning import recordings
from qwen_megakernel.cloning.voice_library import Recording, samples_of
from qwen_megakernel.engine.speech import Speech
from qwen_megakernel.engine.speech_engine import SpeechEngine
from qwen_megakernel.engine.stream import SpeechStream
from qwen_megakernel.errors import RecordingError, TaskError, UsageError, plain_number
from qwen_megakernel.speech_options import OFFICIAL_NAMES
from qwen_megakernel.voice import Voice

# Official spelling -> spelling of this package.
GENERATION = {theirs: ours for ours, theirs in OFFICIAL_NAMES.items()} | {
    "seed": "seed"  # not official: torch.manual_seed does not affect the draws of this package
}
MIN_NEW_TOKENS = 2  # fixed in the official generate()

FETCH_TIMEOUT_S = 60  # without a byte from the server of a recording
_BASE64_CHARS = 256  # a longer string without a dot is base64 audio, unless it is a file's path


@dataclass
class VoiceClonePromptItem:
    """An encoded reference, with the fields of the official record of that name."""

    ref_code: Tensor | None  # [num_frames, num_code_groups] int64
    ref_spk_embedding: Tensor  # [enc_dim] float32
    x_vector_only_mode: bool
    icl_mode: bool
    ref_text: str | None = None


class OfficialNames(SpeechEngine):
    """The official package's methods for an engine, built on its `stream` and `create_voice`."""

    config: ModelConfig
    max_new_tokens: int  # from generation_config.json

    def generate_voice_clone(
        self,
        text: str | list[str],
        language: str | list[str] | None = None,
        ref_audio: Recording | list[Recording] | None = None,
        ref_text: str | list[str | None] | None = None,
        x_vector_only_mode: bool | list[bool] = False,
        voice_clone_prompt: list[VoiceClonePromptItem] | dict[str, list] | None = None,
        non_streaming_mode: bool = False,
        **generation: Any,
    ) -> tuple[list[np.ndarray], int]:
        """Speak in the voice of a recording; see `create_voice_clone_prompt`.

        Args:
            text, language: one value, or a list with one for each utterance.
            voice_clone_prompt: replaces ref_audio, ref_text and x_vector_only_mode.
            non_streaming_mode: put the text into the prompt instead of feeding it stepwise.
            generation: max_new_tokens, seed, and the names of `GENERATION`.
        Returns:
            One [num_samples] float32 for each text, and the sample rate.
        """
        self._require_type("base", "generate_voice_clone")
        if voice_clone_prompt is None:
            if ref_audio is None:
                raise UsageError("Either voice_clone_prompt or ref_audio must be given.")
            voice_clone_prompt = self.create_voice_clone_prompt(
                ref_audio, ref_text, x_vector_only_mode
            )
        voices = [voice_of(item) for item in items_of(voice_clone_prompt)]
        return self._speak_all(
            text, non_streaming_mode, generation, language=language, voice=voices
        )

    def generate_custom_voice(
        self,
        text: str | list[str],
        speaker: str | list[str],
        language: str | list[str] | None = None,
        instruct: str | list[str] | None = None,
        non_streaming_mode: bool = True,
        **generation: Any,
    ) -> tuple[list[np.ndarray], int]:
        """Speak as a speaker of a CustomVoice checkpoint; see `generate_voice_clone`."""
        self._require_type("custom_voice", "generate_custom_voice")
        how = {"language": language, "voice": speaker, "instruct": instruct}
        return self._speak_all(text, non_streaming_mode, generation, **how)

    def generate_voice_design(
        self,
        text: str | list[str],
        instruct: str | list[str],
        language: str | list[str] | None = None,
        non_streaming_mode: bool = True,
        **generation: Any,
    ) -> tuple[list[np.ndarray], int]:
        """Speak in a voice described in words; see `generate_voice_clone`."""
        self._require_type("voice_design", "generate_voice_design")
        return self._speak_all(
            text, non_streaming_mode, generation, language=language, instruct=instruct
        )

    def create_voice_clone_prompt(
        self,
        ref_audio: Recording | list[Recording],
        ref_text: str | list[str | None] | None = None,
        x_vector_only_mode: bool | list[bool] = False,
    ) -> list[VoiceClonePromptItem]:
        """Encode references once, for many calls of `generate_voice_clone`.

        Args:
            ref_audio: a file, URL, base64 audio, or (samples, rate); or a list of them. URLs are
                fetched and paths are opened, so do not pass strings from untrusted users.
            ref_text: exact transcript; required unless x_vector_only_mode.
            x_vector_only_mode: use only the x-vector.
        Raises:
            UsageError: a transcript is missing, or the lists differ in length.
        """
        audios = _as_list(ref_audio)
        texts = _spread(ref_text, len(audios), "ref_text")
        modes = _spread(x_vector_only_mode, len(audios), "x_vector_only_mode")
        items = []
        for recording, transcript, x_vector_only in zip(audios, texts, modes, strict=True):
            if not x_vector_only and not transcript:
                raise UsageError("ref_text is required unless x_vector_only_mode is True.")
            samples, rate = open_recording(recording)
            voice = self.create_voice(
                samples, None if x_vector_only else transcript, rate=rate, silence_tail=0
            )
            items.append(_item_of(voice, transcript))
        return items

    def get_supported_speakers(self) -> list[str]:
        return sorted(name.lower() for name in self.config.talker.speakers)

    def get_supported_languages(self) -> list[str]:
        return sorted(name.lower() for name in self.languages)

    def _speak_all(
        self, text: str | list[str], non_streaming_mode: bool, generation: dict, **options: Any
    ) -> tuple[list[np.ndarray], int]:
        texts = _as_list(text)
        options = {name: _spread(value, len(texts), name) for name, value in options.items()}
        streams = []
        for index, each in enumerate(texts):
            own = {name: values[index] for name, values in options.items()}
            streams.append(self._start_one(each, non_streaming_mode, generation, **own))
        return [Speech.collect(stream).audio for stream in streams], self.sample_rate

    def _start_one(
        self,
        text: str,
        non_streaming_mode: bool,
        generation: dict[str, Any],
        *,
        chunk_frames: int = 10,
        language: str | None = None,
        **options: Any,
    ) -> SpeechStream:
        known: dict[str, Any] = {own: generation.get(name) for name, own in GENERATION.items()}
        limit = generation.get("max_new_tokens")
        limit = self.max_new_tokens if limit is None else limit
        limit = plain_number(int, "max_new_tokens", limit)
        if limit < MIN_NEW_TOKENS:
            raise UsageError(
                f"max_new_tokens is {limit}; it must be {MIN_NEW_TOKENS} or more.",
                "The last token drawn is no frame, so N tokens make at most N - 1 frames.",
            )
        unknown = generation.keys() - GENERATION.keys() - {"max_new_tokens", "min_new_tokens"}
        if unknown or generation.get("min_new_tokens", MIN_NEW_TOKENS) != MIN_NEW_TOKENS:
            names = ", ".join(sorted(unknown)) or "min_new_tokens other than 2"
            raise UsageError(
                f"Not supported: {names}.", hint=f"Known: max_new_tokens, {', '.join(GENERATION)}."
            )
        if "voice" in options and not options["voice"]:
            raise UsageError("speaker is empty.", hint=", ".join(self.get_supported_speakers()))
        return self.stream(
            text,
            language=language or "auto",
            text_feed="full" if non_streaming_mode else "stepwise",
            split="off",
            max_frames=limit - 1,
            first_chunk_frames=chunk_frames,
            chunk_frames=chunk_frames,
            **options,
            **known,
        )

    def _require_type(self, model_type: str, call: str) -> None:
        if self.config.model_type != model_type:
            raise TaskError(
                f"{call} needs a {model_type} model; this one is {self.config.model_type}."
            )


def stream_chunks(stream: SpeechStream) -> Iterator[tuple[np.ndarray, int, dict[str, Any]]]:
    """Yield chunks as faster-qwen3-tts does: [num_samples] float32, sample rate, figures."""
    chunks, index, last_ms = iter(stream), 0, 0.0
    chunk = next(chunks, None)
    while chunk:
        following = next(chunks, None)
        figures = {
            "chunk_index": index,
            "chunk_steps": chunk.num_frames,
            "prefill_ms": stream.timings["prefill"] if index == 0 else 0.0,
            "decode_ms": chunk.t_ms - last_ms,
            "total_steps_so_far": chunk.frame_index + chunk.num_frames,
            "is_final": following is None,
        }
        yield to_float32(chunk.samples), chunk.sample_rate, figures
        index, last_ms, chunk = index + 1, chunk.t_ms, following


def _as_list(value: Any) -> list:
    return value if isinstance(value, list) else [value]


def _spread(value: Any, count: int, name: str) -> list:
    """Return `count` values: those of a list, or a single value repeated."""
    values = _as_list(value)
    if len(values) == 1:
        values = values * count
    if len(values) != count:
        counts = " or ".join(map(str, sorted({1, count})))
        raise UsageError(f"{name} has {len(values)} entries; it must have {counts}.")
    return values


def open_recording(recording: Recording) -> tuple[np.ndarray, int]:
    """Return a recording of any kind as [num_samples] float32 mono, and its rate."""
    if not isinstance(recording, str | Path):
        return samples_of(recording, None)
    source = str(recording)
    if re.match(r"https?://", source):
        try:
            with urllib.request.urlopen(source, timeout=FETCH_TIMEOUT_S) as response:
                return recordings.read(io.BytesIO(response.read()), name=source)
        except RecordingError:
            raise
        except (OSError, ValueError, HTTPException) as error:
            raise RecordingError(f"{source} cannot be fetched: {error}.") from error
    is_data_url = source.startswith("data:audio")
    is_base64 = len(source) > _BASE64_CHARS and "." not in source and not os.path.isfile(source)
    if is_data_url or is_base64:
        try:
            data = base64.b64decode(source.partition(",")[2] if is_data_url else source)
        except ValueError as error:
            raise RecordingError(f"The base64 reference is damaged: {error}.") from error
        return recordings.read(io.BytesIO(data), name="The base64 reference")
    return recordings.read(recording)


def _item_of(voice: Voice, transcript: str | None) -> VoiceClonePromptItem:
    codes = torch.from_numpy(voice.codes).long() if voice.in_context else None
    return VoiceClonePromptItem(
        ref_code=codes,
        ref_spk_embedding=torch.from_numpy(voice.x_vector),
        x_vector_only_mode=not voice.in_context,
        icl_mode=voice.in_context,
        ref_text=transcript,
    )


def items_of(prompt: list[VoiceClonePromptItem] | dict[str, list]) -> list[VoiceClonePromptItem]:
    """Return a prompt as a list of items; a prompt that is a dict of lists has x-vectors only."""
    if not isinstance(prompt, dict):
        items = _as_list(prompt)
        if wrong := [item for item in items if not hasattr(item, "ref_spk_embedding")]:
            raise UsageError(
                f"voice_clone_prompt has {reprlib.repr(wrong[0])}; it must be what "
                "create_voice_clone_prompt returned."
            )
        return items
    if "ref_spk_embedding" not in prompt:
        raise UsageError(
            f"voice_clone_prompt has the keys {list(prompt)}; it needs ref_spk_embedding."
        )
    if any(prompt.get("icl_mode", [])):
        raise UsageError(
            "A voice_clone_prompt given as a dict cannot be used in context.",
            "It has no transcript.",
            "Pass the list that create_voice_clone_prompt returned.",
        )
    return [
        VoiceClonePromptItem(None, x_vector, True, False)
        for x_vector in prompt["ref_spk_embedding"]
    ]


def voice_of(item: VoiceClonePromptItem) -> Voice:
    codes = None if item.ref_code is None else torch.as_tensor(item.ref_code).cpu().numpy()
    return Voice(
        "reference",
        x_vector=torch.as_tensor(item.ref_spk_embedding).detach().float().cpu().numpy(),
        codes=codes if item.icl_mode else None,
        transcript=item.ref_text if item.icl_mode else None,
    )
