"""What every family of models looks like to those who speak with it."""

from __future__ import annotations

import contextlib
import logging
import os
import reprlib
import secrets
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import torch

from qwen_megakernel import choices
from qwen_megakernel.engine import codes_file
from qwen_megakernel.engine.stages import Stages
from qwen_megakernel.engine.step_loop import StepLoop
from qwen_megakernel.engine.stream import Speech, SpeechStream, StreamState
from qwen_megakernel.errors import OutputError, QwenTTSError, UsageError
from qwen_megakernel.records import AudioChunk, Sampling, SpeechRequest
from qwen_megakernel.text.languages import AUTO
from qwen_megakernel.text.parts import EncodedText, PartCutter, TextPart
from qwen_megakernel.text.unreadable import TextWatch
from qwen_megakernel.voice import Voice

logger = logging.getLogger(__name__)

# Names the file that the codes of every utterance go to, one row a frame.
DUMP_CODES_VARIABLE = "TTS_DUMP_CODES"

DTYPES = {name: getattr(torch, name) for name in choices.DTYPES}


class Files(Protocol):
    """Where a model came from."""

    name: str  # as the user gave it
    folder: Path
    is_synthetic: bool  # random weights
    banner: str | None  # what the user should know before listening


class SpeechEngine(ABC):
    """Text in, speech out, streamed.

    Args:
        build: makes the stages, on the loop's thread.
        sample_rate: of the audio, in Hz.
        seconds_per_frame: how long one frame of codes sounds.
    """

    files: Files
    backend: str  # what decodes, and why it was chosen
    why: str
    device: torch.device
    dtype: torch.dtype
    predictor_dtype: torch.dtype | None = None  # where it is not dtype
    max_frames: int  # of one part of a text
    num_slots: int  # streams spoken at the same time
    _sampling: Sampling  # of requests that say nothing else
    ignores_instruct = False  # of models that were trained with none, but are often given one
    _read_languages: Sequence[str] | None = None  # that texts may be in; None: not known
    _open_text_feed = "auto"  # of a text that arrives in pieces
    can_clone = False  # voices can be made of recordings
    reference_cache_hits = 0  # of families that clone: how often a recording was known already

    def __init__(
        self, build: Callable[[], Stages], *, sample_rate: int, seconds_per_frame: float
    ) -> None:
        self.sample_rate, self.seconds_per_frame = sample_rate, seconds_per_frame
        self._codes_dump = _CodesDump()
        self._loop = StepLoop(build, on_finished=self._codes_dump)
        # Threads that compute where the device is a CPU: of the loop, not of this thread.
        self.num_threads: int = self._loop.run(torch.get_num_threads)
        # Also runs when the engine is dropped, and before the interpreter takes its threads down.
        self._close = weakref.finalize(self, self._loop.close)

    @property
    def dtype_name(self) -> str:
        """What computes, as `dtype=` takes it: "bfloat16", "talker=bfloat16,predictor=float32"."""
        name = str(self.dtype).removeprefix("torch.")
        if self.predictor_dtype is None:
            return name
        return f"talker={name},predictor={str(self.predictor_dtype).removeprefix('torch.')}"

    # ---- what a family defines -------------------------------------------------------------------

    @property
    @abstractmethod
    def voices(self) -> list[str]:
        """Names `voice=` accepts."""

    @property
    @abstractmethod
    def languages(self) -> list[str]:
        """Languages `language=` accepts, "auto" first."""

    @property
    @abstractmethod
    def default_voice(self) -> str | None:
        """Who speaks when no voice is asked for; None: nobody in particular."""

    @abstractmethod
    def find_voice(self, voice: str | Voice | None) -> str | Voice | None:
        """Who `voice=` means; raises `UnknownVoice` for anybody else."""

    @abstractmethod
    def _encode(self, request: SpeechRequest) -> EncodedText:
        """Refuse what the model cannot do, and encode the text.

        Args:
            request: its voice is found; no text: it comes through `feed`.
        """

    @abstractmethod
    def create_voice(self, audio: Any, text: str | None = None, **options: Any) -> Voice:
        """Clone a voice, or raise `TaskError` where the model cannot."""

    # ---- what they share -------------------------------------------------------------------------

    def stream(
        self,
        text: str | None = None,
        *,
        voice: str | os.PathLike[str] | Voice | None = None,
        language: str | None = AUTO,
        instruct: str | None = None,
        seed: int | None = None,
        max_frames: int | None = None,
        text_feed: str = "auto",
        split: str = "auto",
        first_chunk_frames: int = 1,
        chunk_frames: int = 10,
        text_open: bool = False,
        **sampling: Any,
    ) -> SpeechStream:
        """Start speaking; returns at once.

        Args:
            text: what to say (a trained voice may want its phonemes); None with `text_open=True`,
                whose text comes through `feed`.
            voice: a name from `voices`, the path of a voice file, a `Voice`, or None for
                `default_voice` (a Base checkpoint has none and then speaks without a speaker row).
            language: name, BCP-47 code or "auto", which None means, too.
            instruct: how to speak, where the model takes it.
            seed: 0 .. 2**64 - 1; None draws one, which the stream tells.
            max_frames: stop after this many frames (of 80 ms), over the whole utterance.
            text_feed: "stepwise" adds a text row to each frame, "full" puts the text into the
                prompt, "auto" is the official choice for the checkpoint.
            split: "auto" cuts long text at sentences; "off" never.
            first_chunk_frames, chunk_frames: chunks double from the first to the second.
            sampling: do_sample, temperature, top_k, top_p, repetition_penalty and their
                subtalker_ forms; None or absent: generation_config.json.
        Raises:
            UsageError: something in the request can never work, or an option does not exist;
                nothing was started.
            SetupError: a trained voice's text needs espeak-ng, which is not installed.
            EngineClosed: the engine is closed.
        """
        if isinstance(voice, os.PathLike):
            voice = os.fspath(voice)
        if not isinstance(voice, str | Voice | None):
            raise UsageError(
                f"voice is {reprlib.repr(voice)}; it must be a name, a path or a Voice."
            )
        if (text is None) != text_open:
            raise UsageError("Give either a text or text_open=True, not both and not neither.")
        if text_open and text_feed == "auto":
            text_feed = self._open_text_feed
        request = SpeechRequest(
            text=text,
            voice=self.find_voice(voice),
            language=language,
            instruct=instruct,
            sampling=self._sampling.override(**sampling),
            seed=secrets.randbits(63) if seed is None else seed,
            max_frames=max_frames,
            text_feed=text_feed,
            split=split,
            first_chunk_frames=first_chunk_frames,
            chunk_frames=chunk_frames,
        )
        encoded, loop = self._encode(request), self._loop
        state = StreamState(
            *(request, encoded.prompt_ids, loop.wake, loop.interrupt, self.sample_rate),
            text_closed=not text_open,
            parts=deque(map(TextPart.whole, encoded.parts)),
            planned_parts=len(encoded.parts) or None,
            watch=TextWatch(self._read_languages),
        )
        state.warn(request.sampling.cold_warnings(self._sampling))
        if text is not None:
            state.look(text)
        loop.submit(state)
        if not text_open:
            return SpeechStream(state, self)
        cutter = PartCutter(state.parts, encoded.new_part, encoded.part_chars)
        return SpeechStream(state, self, cutter)

    @property
    def spent_ms(self) -> dict[str, float]:
        """Milliseconds of `prefill`, `decode` and `vocoder` work since the engine was made."""
        return self._loop.spent_ms

    @property
    def failure(self) -> QwenTTSError | None:
        """Why no request is taken any more, for good; None while they are."""
        return self._loop.failure

    @property
    def num_active(self) -> int:
        """Streams being spoken or waiting for a slot."""
        return self._loop.num_active

    async def astream(self, text: str | None = None, **options: Any) -> AsyncIterator[AudioChunk]:
        """`stream` as an async generator; leaving it cancels the stream."""
        with self.stream(text, **options) as chunks:
            async for chunk in chunks:
                yield chunk

    def synthesize(self, text: str, **options: Any) -> Speech:
        """Speak `text` and wait for all of it; options as in `stream`."""
        options.setdefault("first_chunk_frames", options.get("chunk_frames", 10))
        return Speech.collect(self.stream(text, **options))

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """[num_frames, num_code_groups] codes -> [num_samples] float32 audio at `sample_rate`."""
        vocoder = self._loop.stages.vocoder
        return self._loop.run(lambda: vocoder.decode(codes))

    def close(self) -> None:
        """Cancel every stream and stop the worker; waits for it. Safe to call twice."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def dtype_of(
    name: str | torch.dtype | None, known: Iterable[str] = choices.DTYPES
) -> torch.dtype | None:
    """The dtype a caller asks for, by its name or itself; None: the engine's choice.

    Args:
        known: the names that an error tells.
    Raises:
        UsageError: no engine computes in it.
    """
    if name is None or name in DTYPES.values():
        return name
    if name not in DTYPES:
        raise UsageError(f"dtype is {name!r}; known: {', '.join(known)}.")
    return DTYPES[name]


def dtypes_of(name: str | torch.dtype | None) -> tuple[torch.dtype | None, torch.dtype | None]:
    """The dtypes of talker and code predictor that a caller asks for, as `dtype_of` reads them.

    The second is None where it is the first.
    """
    if name in choices.DTYPES_BY_PART:
        talker, predictor = (DTYPES[part.partition("=")[2]] for part in name.split(","))
        return talker, predictor
    return dtype_of(name, (*choices.DTYPES, *choices.DTYPES_BY_PART)), None


class _CodesDump:
    """Writes the codes of utterances that are over where the variable says, oldest first.

    The first one takes the place of what another engine left there, later ones are appended.
    """

    def __init__(self) -> None:
        self._begun: str | None = None  # the file that has codes of ours
        self._is_paused = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Dump nothing meanwhile: a warm-up is no utterance that anybody asked for."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def __call__(self, state: StreamState) -> None:
        path = os.environ.get(DUMP_CODES_VARIABLE)
        if not path or not state.codes or self._is_paused:
            return
        try:
            codes_file.write(Path(path), np.array(state.codes), append=path == self._begun)
            self._begun = path
        except OutputError as error:  # a debugging aid must not end the speech it watches
            logger.error("%s", error)
