"""The engine that callers hold, without the parts that differ between families of models."""

from __future__ import annotations

import os
import reprlib
import secrets
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, Self, Unpack

import numpy as np
import torch

from qwen_megakernel.engine.codes_file import CodesDump
from qwen_megakernel.engine.conversation import Conversation
from qwen_megakernel.engine.drift_guard import Identify
from qwen_megakernel.engine.speech import Speech
from qwen_megakernel.engine.stages import Stages
from qwen_megakernel.engine.step_loop import StepLoop
from qwen_megakernel.engine.stream import SpeechStream
from qwen_megakernel.engine.stream_state import StreamState
from qwen_megakernel.errors import QwenTTSError, TaskError, UnknownVoice, UsageError, check_type
from qwen_megakernel.marking import Marking, MarkKey
from qwen_megakernel.native.cpu_threads import single_threads
from qwen_megakernel.printable import printable
from qwen_megakernel.records import AudioChunk, Files, Manner
from qwen_megakernel.sound.chunks import new_chunks
from qwen_megakernel.sound.loudness import at_loudness, check_loudness
from qwen_megakernel.speech_options import (
    LOUDNESS,
    OPTIONS,
    SpeechKeywords,
    SpeechOptions,
    check_text,
)
from qwen_megakernel.text.cleaning import MAX_CHARS
from qwen_megakernel.text.intake import new_intake
from qwen_megakernel.text.parts import TextEncoding
from qwen_megakernel.text.reading.reader import Reading
from qwen_megakernel.voice import VOICE_SUFFIX, Voice


class SpeechEngine(ABC):
    """Turns text into streamed speech.

    Args:
        build: makes the stages, on the loop's thread.
        mark: what `Marking.of` takes.
    """

    files: Files
    backend: str  # name of the decoder's backend
    why: str  # the reason for this backend
    device: torch.device
    dtype: torch.dtype
    predictor_dtype: torch.dtype | None = None  # the code predictor's dtype; None: `dtype`
    max_frames: int  # most frames of one part of a text
    num_slots: int  # streams spoken at the same time
    real_time_factor: float | None = None  # as the warm-up measured it, of one stream
    weights: str | None = None  # the form of 8-bit weights; None: as the checkpoint stores them
    vocoder_weights = "float32"  # or "float16", in a converted model
    max_chars = MAX_CHARS  # most characters of a request's text
    _defaults: SpeechOptions  # what requests begin with
    _identify: Identify | None = None  # of `drift_guard`; None: speakers are not compared
    _high_pass: float | None = None  # cutoff of a filter on every stream, in Hz; None: no filter
    format_option = "text_format"  # as warnings name it; a command sets its own name of it
    ignores_instruct = False  # the model was not trained with instructions, but may be given one
    _read_languages: Sequence[str] | None = None  # languages that the model reads; None: unknown
    _open_text_feed = "auto"  # `text_feed` of a text that arrives in pieces
    can_clone = False  # `create_voice` works
    takes_phonemes = False  # texts are phonemes

    def __init__(
        self,
        build: Callable[[], Stages],
        *,
        sample_rate: int,
        seconds_per_frame: float,
        reading: Reading,
        mark: Marking | MarkKey | str | Path | None,
    ) -> None:
        self.mark = Marking.of(mark)
        self.sample_rate, self.seconds_per_frame = sample_rate, seconds_per_frame
        self._reading = reading
        self._codes_dump = dump = CodesDump()
        # Streams that coroutines read change their sound in these threads: an event loop would wait
        # for threads of its own when it ends, even after Ctrl-C. Each leaves cores to the decoder.
        self._workers = single_threads(None, "sound")
        self._loop = StepLoop(build, on_finished=lambda state: dump.add(state.codes))
        # PyTorch's number of CPU threads in the loop's thread, which computes; here it may differ.
        self.num_threads: int = self._loop.run(torch.get_num_threads)
        # Also called when the engine is collected, and at exit, while threads still run.
        self._close = weakref.finalize(self, self._loop.close)

    def __repr__(self) -> str:
        what = f"{self.files.name}, {self.backend} on {self.device}, {self.dtype_name}"
        return f"{type(self).__name__}({what}, num_slots={self.num_slots})"

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            f"A {type(self).__name__} cannot be pickled or copied.",
            "It has threads, and a model in memory.",
            "Create one in each process, or share this one by threads.",
        )

    @property
    def dtype_name(self) -> str:
        """The dtype as `dtype=` takes it: "bfloat16", "talker=bfloat16,predictor=float32"."""
        name = str(self.dtype).removeprefix("torch.")
        if self.predictor_dtype is None:
            return name
        return f"talker={name},predictor={str(self.predictor_dtype).removeprefix('torch.')}"

    @property
    def normalizes(self) -> bool:
        """Whether numbers are read as words in requests that leave normalize at "auto"."""
        return self._reading.is_on

    # ---- what a family defines -------------------------------------------------------------------

    @property
    @abstractmethod
    def voices(self) -> list[str]:
        """Names that `voice=` accepts."""

    @property
    @abstractmethod
    def languages(self) -> list[str]:
        """Languages that `language=` accepts, "auto" first."""

    @property
    @abstractmethod
    def default_voice(self) -> str | None:
        """The voice of a request that names none; None: there is no default."""

    @abstractmethod
    def find_voice(self, voice: str | Voice | None, style: str | None = None) -> str | Voice | None:
        """Return the voice that `voice=` means, in a style of its own; None: the default style.

        Raises:
            UnknownVoice, UsageError: there is no such voice, or it has no such style.
        """

    @abstractmethod
    def _encoding(self, request: SpeechOptions) -> TextEncoding:
        """Return how a request's text becomes ids, or raise if the model cannot speak it.

        Args:
            request: its voice is from `find_voice`; text None: the text comes through `feed`.
        """

    @abstractmethod
    def create_voice(self, audio: Any, *args: Any, **options: Any) -> Voice:
        """Clone a voice; raises `TaskError` if the model cannot."""

    def check_continuity(self) -> list[str]:
        """Return warnings about `continuity="context"` with this model.

        Raises:
            TaskError: the model was not trained to continue speech.
        """
        raise TaskError(
            f'continuity is "context", and {self.files.name} was not trained to continue speech.',
            "Leave it out, or load a Qwen3-TTS model, for example Qwen/Qwen3-TTS-12Hz-0.6B-Base.",
        )

    @property
    def reference_cache_hits(self) -> int:
        """Number of calls of `create_voice` that found their recording in a cache."""
        return 0

    # ---- what families share ---------------------------------------------------------------------

    def stream(
        self,
        text: str | None = None,
        *,
        text_open: bool = False,
        conversation: Conversation | None = None,
        find_voice: Callable[[str], str | Voice | None] | None = None,
        **options: Unpack[SpeechKeywords],
    ) -> SpeechStream:
        """Start speaking; returns at once.

        Args:
            text: what to say (for some trained voices, phonemes); None with `text_open=True`: the
                text comes through `feed`.
            conversation: with `continuity="context"`, what the first part of the text continues;
                None: only later parts continue something.
            find_voice: returns the voice that a name in the text means, or raises a `UsageError`;
                None: names are those of `voices`.
            options: those of `SpeechOptions`, by their flat names. None, or leaving one out, is the
                default: `default_voice` (a Base checkpoint has none and then speaks without a
                speaker row), a seed drawn at random, which the stream has as `seed`, and for the
                draws and the silences what the checkpoint's config files have.
        Raises:
            UsageError: the request can never work, or an option does not exist; no stream was
                started. A `MarkupError` names the line and column where the markup of `text` is
                broken. If the text comes through `feed`, the stream raises it after the speech of
                the text before the error.
            SetupError: espeak-ng, which the text of a trained voice needs, or soxr, which
                sample_rate needs, is not installed.
            EngineClosed: the engine is closed.
        """
        values: dict[str, Any] = {**options}
        if values.pop(LOUDNESS.name, None) is not None:
            raise UsageError(
                "A stream has no option loudness.",
                "The loudness of a speech is known only when it is complete.",
                "Call synthesize(loudness=...), or give the stream volume=, in dB.",
            )
        voice = values.get("voice")
        if isinstance(voice, os.PathLike):
            voice = os.fspath(voice)
        check_type("voice", voice, str | Voice | None, "a name, a path or a Voice")
        check_type("conversation", conversation, Conversation | None, "a Conversation")
        check_text(text=text, style=values.get("style"))
        if (text is None) != text_open:
            raise UsageError(
                f"text is {reprlib.repr(text)} and text_open is {text_open}.",
                "A request has either a text or text_open=True.",
            )
        values["voice"] = self.find_voice(voice, values.get("style"))
        if values.get("seed") is None:
            values["seed"] = secrets.randbits(63)
        if text_open and values.get("text_feed") in (None, "auto"):
            values["text_feed"] = self._open_text_feed
        request = self._defaults.override(**values)
        encoding_of = self._encodings(request, find_voice)
        own = self._defaults.sampling
        warnings = [] if request.sampling is own else request.sampling.cold_warnings(own)
        if request.continuity == "context":
            warnings += self.check_continuity()
            conversation = conversation or Conversation()
            plain, after_first = encoding_of, not conversation.is_begun
            encoding_of = cache(lambda manner: plain(manner).waiting(after_first=after_first))
        elif conversation:
            raise UsageError(
                'A conversation was given, and continuity is "off".',
                hint='Give continuity="context", too.',
            )
        intake = new_intake(
            *(request, encoding_of, self._reading),
            is_whole=text is not None,
            languages=self.languages,
            read_languages=self._read_languages,
            takes_phonemes=self.takes_phonemes,
            max_chars=self.max_chars,
            format_option=self.format_option,
        )
        if text is not None:
            intake.feed(text)
            intake.end()
        heard = new_chunks(
            *(request.sound, self.sample_rate, self._high_pass, self.mark.key),
            has_parts=request.text_format != "plain",
        )
        loop = self._loop
        state = StreamState(
            *(request, intake, loop.wake, loop.interrupt, self.sample_rate), heard=heard
        )
        if conversation:
            state.turn = conversation.join(
                self._workers, loop.wake, identify=self._identify, prepare=loop.prepare
            )
        try:
            loop.submit(state)
        except QwenTTSError:
            state.end("error")  # the next stream of the conversation does not wait for this one
            raise
        return SpeechStream(state, self, self._workers, warnings, self.mark)

    def _encodings(
        self, request: SpeechOptions, find_voice: Callable[[str], str | Voice | None] | None
    ) -> Callable[[Manner], TextEncoding]:
        """Return a function that returns the encoding of a request's parts of a manner."""

        @cache
        def encoding(voice: str | None, style: str | None, language: str | None) -> TextEncoding:
            own = request
            if language is not None:
                own = replace(own, language=language)
            if voice is not None and VOICE_SUFFIX in voice:  # a client's text opens no file
                raise UnknownVoice(
                    f'Unknown voice "{printable(voice)}".', "A text names voices, not their files."
                )
            if voice is not None or style is not None:
                named = find_voice(voice) if voice and find_voice else voice or request.voice
                own = replace(own, voice=self.find_voice(named, style))
            return self._encoding(own)

        return lambda manner: encoding(manner.voice, manner.style, manner.language)

    @property
    def spent_ms(self) -> dict[str, float]:
        """Milliseconds of `prefill`, `decode` and `vocoder` work since the engine was made."""
        return dict(self._loop.spent_ms)

    @property
    def failure(self) -> QwenTTSError | None:
        """The error for which the engine takes no more requests; None while it takes them."""
        return self._loop.table.failure

    @property
    def num_active(self) -> int:
        """Number of streams that are spoken or wait for a slot."""
        return self._loop.table.num_streams

    async def astream(
        self,
        text: str | None = None,
        *,
        text_open: bool = False,
        conversation: Conversation | None = None,
        **options: Unpack[SpeechKeywords],
    ) -> AsyncIterator[AudioChunk]:
        """Yield the chunks of `stream`; leaving the generator cancels the stream."""
        with self.stream(text, text_open=text_open, conversation=conversation, **options) as chunks:
            async for chunk in chunks:
                yield chunk

    def synthesize(
        self,
        text: str,
        *,
        loudness: float | None = None,
        conversation: Conversation | None = None,
        **options: Unpack[SpeechKeywords],
    ) -> Speech:
        """Speak `text` and return all of it; the other options are those of `stream`.

        Args:
            loudness: loudness of the whole speech in LUFS, -40 .. -5; needs the extra `loudness`.
        """
        if options.get("first_chunk_frames") is None:  # there is nothing to hurry for
            most = options.get("chunk_frames")
            most = self._defaults.chunk_frames if most is None else most
            options["first_chunk_frames"] = OPTIONS["chunk_frames"].check(most)
        target = None if loudness is None else check_loudness(loudness)
        speech = Speech.collect(self.stream(text, conversation=conversation, **options))
        if target is None:
            return speech
        return replace(speech, audio=at_loudness(speech.audio, speech.sample_rate, target))

    def _speak_both_ways(self, text: str, max_frames: int, **options: Any) -> float:
        """Warm up: speak two frames greedily, then up to `max_frames` at random.

        Returns:
            The real-time factor at random: seconds of decoding and of the vocoder for a second of
            speech. The greedy speech, the first one, waits for memory and for files.
        """
        with self._codes_dump.paused():
            for at_random, most in ((False, 2), (True, max_frames)):
                options |= {"do_sample": at_random, "subtalker_do_sample": at_random}
                spent_before = self.spent_ms
                speech = self.synthesize(text, seed=0, max_frames=most, **options)
        stages = ("decode", "vocoder")
        spent = sum(self.spent_ms[stage] - spent_before[stage] for stage in stages)
        return spent / 1000 / (max(1, len(speech.codes)) * self.seconds_per_frame)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Turn [num_frames, num_code_groups] codes into [num_samples] float32 at `sample_rate`."""
        vocoder = self._loop.stages.vocoder
        return self._loop.run(lambda: vocoder.decode(codes))

    def close(self) -> None:
        """Cancel every stream, stop the worker and wait for it. A second call does nothing."""
        self._close()
        self._workers.shutdown(wait=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
