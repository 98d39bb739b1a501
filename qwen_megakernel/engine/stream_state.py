"""What a stream is: its text, its phase, and the audio that it delivers to its reader."""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from queue import SimpleQueue
from typing import Any

import numpy as np

from qwen_megakernel.audio import to_int16
from qwen_megakernel.engine.conversation import Said, Turn
from qwen_megakernel.engine.drift_guard import KEPT_S
from qwen_megakernel.engine.runaway_guard import RunawayGuard
from qwen_megakernel.records import AS_REQUESTED, AudioChunk, Drift, FinishReason, Manner
from qwen_megakernel.sound.chunks import HeardChunks
from qwen_megakernel.speech_options import SpeechOptions
from qwen_megakernel.text.intake import TextIntake
from qwen_megakernel.text.parts import TextPart
from qwen_megakernel.voice import Voice

OutboxItem = AudioChunk | FinishReason | Exception  # the last two end the stream


class Outbox(SimpleQueue[OutboxItem]):
    """A queue of chunks for one reader, which may be a thread (`get`) or a coroutine."""

    _waiter: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def __len__(self) -> int:
        return self.qsize()

    def put(self, item: OutboxItem, *_: Any) -> None:
        """Add an item without blocking; the engine looks at `len` before it decodes more."""
        super().put(item)
        if waiter := self._waiter:
            with contextlib.suppress(RuntimeError):  # its event loop is closed: no reader waits
                waiter[0].call_soon_threadsafe(waiter[1].set)

    async def get_async(self) -> OutboxItem:
        """Await an item without blocking the event loop."""
        event = asyncio.Event()
        self._waiter = asyncio.get_running_loop(), event  # from here on, no item is missed
        try:
            while not self.qsize():
                await event.wait()
                event.clear()
        finally:
            self._waiter = None
        return self.get()


# A reader that is this many chunks behind pauses its stream: 8 s at the default chunk of 10 frames.
MAX_QUEUED_CHUNKS = 10

# Speech has 3 to 4 text tokens per second, so text that comes more slowly makes a speaker wait.
SECONDS_PER_TEXT_TOKEN = 0.25

# Added to the number of a part that is drawn again, by which its random numbers are addressed.
REDRAW = 1 << 30


class Phase(Enum):
    """The phase that a stream is in; only the methods of `StreamState` change it."""

    WAITING = auto()  # for a slot; or for text or its reader, which it needs before a slot
    BETWEEN_PARTS = auto()  # it holds a slot; the prompt of its next part has not run
    SPEAKING = auto()  # frames of a part are drawn
    DRAINING = auto()  # a part is over; the pending frames become audio
    OVER = auto()


@dataclass(slots=True, eq=False)
class StreamState:
    """One utterance, shared by its caller and the engine. Compared by identity."""

    request: SpeechOptions
    text: TextIntake
    wake: Callable[[], None]  # makes the engine's thread check the streams again
    interrupt: Callable[[], None]  # `wake`, and the running step ends after its current frame
    sample_rate: int  # of the codec, in Hz
    cancelled: bool = False
    started: float = field(default_factory=time.perf_counter)
    outbox: Outbox = field(default_factory=Outbox)
    codes: list[np.ndarray] = field(default_factory=list)  # delivered frames
    num_parts: int = 0
    spoken_parts: list[TextPart] = field(default_factory=list)  # the parts that have begun
    num_text_tokens: int = 0  # of the parts begun so far
    finish_reason: FinishReason | None = None
    timings: dict[str, float] = field(default_factory=dict)  # milliseconds
    heard: HeardChunks | None = None  # changes the samples; None: nothing changes them
    delivered_s: float = 0.0  # seconds of samples and pauses that were put into the outbox
    turn: Turn | None = None  # the place in a conversation; None: every part begins anew
    drifts: list[Drift] = field(default_factory=list)  # parts that differ from the first one

    # Of the engine's thread, from here on.
    phase: Phase = Phase.WAITING
    index: int = -1  # the slot's index
    vocoder: Any = None  # the stream's state in the vocoder
    lookahead: int = 0  # frames the vocoder must see after those it turns into audio
    chunk_frames: int = 0  # size of the current chunk; it doubles up to the request's size
    part: TextPart | None = None  # None: between parts
    text_open: bool = False  # more text of the part will come
    text_due: float = 0.0  # perf_counter() when a speaker would need more text than has come
    guard: RunawayGuard = field(default_factory=lambda: RunawayGuard(0))  # one for each part
    pending: list[np.ndarray] = field(default_factory=list)  # frames not yet turned into audio
    # Frames and samples of a part that is not delivered until it was compared with the first one.
    held: list[tuple[list[np.ndarray], np.ndarray]] = field(default_factory=list)
    holds: bool = False  # chunks of the current part are held back
    draw: int = 0  # `REDRAW` if the part is drawn again
    num_told: int = 0  # those of `drifts` that chunks have reported
    part_end: FinishReason = "eos"  # the reason why a draining part has ended
    finish: FinishReason = "eos"  # the first reason that was not eos, over all parts

    @property
    def num_frames(self) -> int:
        """Frames of this utterance so far, delivered or pending."""
        return len(self.codes) + sum(len(codes) for codes, _ in self.held) + len(self.pending)

    @property
    def is_over(self) -> bool:
        """Whether the stream has ended; another stream may hold its slot."""
        return self.phase is Phase.OVER

    @property
    def is_reader_behind(self) -> bool:
        """Whether the reader leaves so many chunks that it needs no more now."""
        return len(self.outbox) >= MAX_QUEUED_CHUNKS

    @property
    def is_ready(self) -> bool:
        """Whether the next part can begin: there is text, and the reader keeps up."""
        if self.turn and not self.turn.is_due:
            return False
        parts = self.text.parts
        has_text = bool(parts and parts[0].ids and not parts[0].pause_s)
        return has_text and not self.is_reader_behind

    @property
    def is_spoken(self) -> bool:
        """Whether all parts are over, and no text will come."""
        text = self.text
        # A writer appends its last part, then closes the text, so `parts` is read again.
        return not text.parts and text.is_closed and not text.parts

    @property
    def late_text_s(self) -> float:
        """Seconds by which the text is behind a speaker, who says a few tokens per second."""
        return time.perf_counter() - self.text_due

    @property
    def frames_until_due(self) -> int:
        """Number of frames that the next chunk still lacks."""
        if self.phase is Phase.DRAINING:
            return 0
        return self.chunk_frames + self.lookahead - len(self.pending)

    @property
    def num_ready(self) -> int:
        """Pending frames that can be turned into audio."""
        return len(self.pending) - (0 if self.phase is Phase.DRAINING else self.lookahead)

    # ---- transitions -----------------------------------------------------------------------------

    def enter(self, index: int, lookahead: int) -> None:
        """Take slot `index`; `lookahead` is the vocoder's."""
        self.index, self.lookahead = index, lookahead
        self.chunk_frames = self.chunk_frames or self.request.first_chunk_frames
        self.phase = Phase.BETWEEN_PARTS

    def leave(self) -> None:
        """Give up the slot between two parts; the vocoder's state is of no further use."""
        self.index, self.vocoder, self.phase = -1, None, Phase.WAITING

    def skip_to_text(self) -> None:
        """Between parts, drop the parts that are over, and deliver pauses, up to the next text."""
        parts = self.text.parts
        if self.turn and not self.turn.is_found:
            return
        can_redraw = self.can_redraw
        if self.turn and (changes := self.turn.settle(can_redraw=can_redraw)):
            self.drifts.append(Drift(self.num_parts - 1, changes, can_redraw))
            if can_redraw:
                self._redraw(parts[0])
        self.release()
        # `closed` is read before `ids`, as in `StepLoop._feed_part`: a writer appends, then closes.
        while parts:
            if pause_s := parts[0].take_pause():
                silence = np.empty(0, dtype=np.int16)
                self.deliver(silence, len(self.codes), 0, pause_s=pause_s)
            if not parts[0].closed or parts[0].ids:
                break
            part = parts.popleft()
            if self.spoken_parts and self.spoken_parts[-1] is part:
                part.end(len(self.codes), self.part_end)

    @property
    def can_redraw(self) -> bool:
        """Whether the last part is held back, and its reader has enough to play meanwhile."""
        return self.holds and self.buffered_s() > KEPT_S

    def _redraw(self, part: TextPart) -> None:
        """Let the last part begin again."""
        part.add((part.encoding or self.text.encoding).encode(part.text))
        self.held.clear()
        self.draw, self.chunk_frames = REDRAW, self.request.first_chunk_frames
        self.num_parts -= 1
        self.num_text_tokens -= self.guard.num_text_tokens

    def release(self) -> None:
        """Deliver the chunks that were held back; those that follow are not."""
        held, self.held, self.holds = self.held, [], False
        for codes, samples in held:
            first, manner = len(self.codes), self.spoken_parts[-1].manner
            self.codes.extend(codes)
            self.timings.setdefault("first_chunk", self.elapsed_ms())
            self.deliver(samples, first, len(codes), manner=manner)

    def recall(self, voice: str | Voice | None) -> Said | None:
        """Return what the next part continues; `voice` is the part's. None: it begins anew."""
        if not self.turn:
            return None
        goes_on = self.spoken_parts[-1:] == [self.text.parts[0]] and not self.draw
        return self.turn.begin_part(voice, goes_on=goes_on)

    def begin_part(
        self, part: TextPart, num_tokens: int, *, text_open: bool, max_frames: int, vocoder: Any
    ) -> None:
        """Begin a part after its prompt has run.

        Args:
            num_tokens: text tokens of the part so far.
            text_open: more text of the part will come.
            max_frames: hard limit for this part.
            vocoder: the state of the vocoder before its first frame.
        """
        self.part, self.text_open, self.vocoder = part, text_open, vocoder
        self.holds = bool(self.turn and self.turn.is_guarded) and not (text_open or self.draw)
        self.draw = 0
        self.guard = RunawayGuard(max_frames)
        self.text_due = time.perf_counter()
        self.add_text(num_tokens)
        self.num_parts += 1
        if part.first_frame < 0:  # else it goes on after an early end
            part.first_frame = len(self.codes)
            self.spoken_parts.append(part)
        self.phase = Phase.SPEAKING

    def add_text(self, num_tokens: int) -> None:
        """Count text tokens that the decoder has received."""
        self.guard.num_text_tokens += num_tokens
        self.num_text_tokens += num_tokens
        due = self.text_due + num_tokens * SECONDS_PER_TEXT_TOKEN
        self.text_due = min(due, time.perf_counter())

    def take_frames(self, codes: np.ndarray, ended: bool) -> None:
        """Take drawn frames [num_frames, num_code_groups]; the guard may cut them.

        Args:
            ended: the decoder drew the end token after them.
        """
        reason: FinishReason | None = None
        for frame in codes:
            if reason := self.guard.check_codes(frame):
                break
            self.pending.append(frame)
        if not reason and ended:
            reason = "eos"
        if not reason and self.guard.frames_left <= 0:
            reason = "length"
        if reason:
            self.part_end, self.phase = reason, Phase.DRAINING

    def take_chunk(self) -> list[np.ndarray]:
        """Take the ready frames out of the pending ones, and double the next chunk's length."""
        codes, self.pending = self.pending[: self.num_ready], self.pending[self.num_ready :]
        self.chunk_frames = min(2 * self.chunk_frames, self.request.chunk_frames)
        return codes

    def deliver_frames(self, codes: list[np.ndarray], pcm: np.ndarray) -> None:
        """Deliver a chunk to the reader; the guard may cut it, which ends the part.

        Args:
            codes: [num_code_groups] for each frame.
            pcm: [num_samples] float32, the samples of all frames.
        """
        frames = pcm.reshape(len(codes), -1)
        for index, frame in enumerate(frames):
            if reason := self.guard.check_audio(frame):
                frames = frames[:index]
                self.pending.clear()
                self.part_end, self.phase = reason, Phase.DRAINING
                break
        if len(frames):
            samples = to_int16(frames.reshape(-1))
            self.held.append((codes[: len(frames)], samples))
            if self.turn:
                self.turn.hear(samples, self.sample_rate)
            if not self.holds:
                self.release()

    def end_part(self) -> bool:
        """End the part; returns True if the request's limit leaves no frame for another."""
        if self.finish == "eos":
            self.finish = self.part_end
        limit, part = self.request.max_frames, self.part
        is_last = limit is not None and self.num_frames >= limit
        if self.turn and part:
            # A part whose text was late, or which a limit has cut, has not said all of it.
            is_said = self.part_end == "eos" and part.closed and not (part.ids or is_last)
            if not is_said:
                self.release()
            said = self.codes[self.spoken_parts[-1].first_frame :]
            said += [frame for codes, _ in self.held for frame in codes]
            self.turn.end_part(part.text if is_said else None, said, self.sample_rate)
        self.part, self.phase = None, Phase.BETWEEN_PARTS
        return is_last

    # ---- audio to the reader ---------------------------------------------------------------------

    def deliver(
        self,
        samples: np.ndarray,
        frame_index: int,
        num_frames: int,
        *,
        manner: Manner = AS_REQUESTED,
        pause_s: float = 0.0,
    ) -> None:
        """Put a chunk into the outbox: [num_samples] int16 of `num_frames` frames.

        Args:
            manner: manner of the part that the samples belong to.
            pause_s: length of a pause, which has no samples yet.
        """
        start_s, drifts = self.delivered_s, tuple(self.drifts[self.num_told :])
        self.num_told += len(drifts)
        self.delivered_s += pause_s + len(samples) / self.sample_rate
        self.outbox.put(
            AudioChunk(
                samples=samples,
                sample_rate=self.sample_rate,
                frame_index=frame_index,
                num_frames=num_frames,
                t_ms=self.elapsed_ms(),
                start_s=start_s,
                manner=manner,
                pause_s=pause_s,
                drifts=drifts,
            )
        )

    def end(self, reason: FinishReason, error: Exception | None = None) -> None:
        """End the stream for its reader, with the reason or with an error; only once."""
        if self.finish_reason is not None:
            return
        self.finish_reason, self.phase, self.vocoder = reason, Phase.OVER, None
        self.pending.clear()
        self.held.clear()
        self.timings["total"] = self.elapsed_ms()
        self.outbox.put(error or reason)
        if self.turn:
            self.turn.end(is_good=reason not in ("cancelled", "error"))

    def buffered_s(self) -> float:
        """Return for how many seconds the reader can go on playing; -inf if it has nothing to play.

        If a sound chain changes the samples, the chain's output counts.
        """
        if self.heard is not None:
            return self.heard.buffered_s(self.delivered_s, self.request.sound.speed)
        begun_ms = self.timings.get("first_chunk")
        if begun_ms is None:
            return -math.inf
        return self.delivered_s - (self.elapsed_ms() - begun_ms) / 1000

    def elapsed_ms(self) -> float:
        """Return the milliseconds since the request was made."""
        return (time.perf_counter() - self.started) * 1000

    def cancel(self, *, is_heard: bool = False) -> None:
        """Stop after the frame that is being drawn, without waiting, unless the stream is over.

        Args:
            is_heard: the reader has received all of the speech, which is not interrupted then.
        """
        self.cancelled = True
        if self.turn and not is_heard:
            self.turn.interrupt()
        if self.finish_reason is None:
            self.interrupt()
