"""One request being spoken, read from the engine ahead of its client.

The server keeps audio for a slow client up to a limit; beyond it, only that client's stream waits.
"""

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import asdict, replace
from typing import Any, Self

import numpy as np

from qwen_megakernel.audio import joined, to_float32, to_int16
from qwen_megakernel.errors import DeadlineExceeded
from qwen_megakernel.marking import Marking
from qwen_megakernel.records import AudioChunk
from qwen_megakernel.server.admission import Newest, Ticket
from qwen_megakernel.server.encoders import AudioFormat, Encoder
from qwen_megakernel.server.error_responses import ApiError
from qwen_megakernel.server.metrics import SpeechRecord
from qwen_megakernel.server.schemas import SpeechPlan
from qwen_megakernel.server.settings import ServerSettings
from qwen_megakernel.sound.loudness import at_loudness
from qwen_megakernel.timing.words import Segment, TimedWord

# Characters of text that are read as words, divided and encoded at once on the event loop, in some
# milliseconds. A long text takes up to a second, in which no other speech would be sent.
MAX_CHARS_AT_ONCE = 200


class ActiveSpeech:
    """One admitted request, being spoken; its chunks wait here for the client.

    The sender uses it as a `with` block, whose end stops the speech; a draining server waits for
    that end.

    Args:
        plan: also has the conversation, which forgets what was said if the speech is stopped.
        ticket: released when the engine is done with the stream.
        finished: gets the end of the speech, when the client has taken it or has left.
    """

    def __init__(
        self,
        stream: Any,
        plan: SpeechPlan,
        ticket: Ticket,
        record: SpeechRecord,
        encoder: Encoder,
        request_id: str,
        *,
        settings: ServerSettings,
        mark: Marking,
        finished: Newest,
    ):
        self.stream, self.record, self.request_id = stream, record, request_id
        self.settings, self.mark = settings, mark
        self.plan = plan
        self._reason: str | None = None  # why the engine has ended it
        self._ticket, self._finished, self._encoder = ticket, finished, encoder
        self._limit = int(self.settings.buffer_s * record.sample_rate)
        self._chunks: deque[AudioChunk] = deque()
        self._kept: list[np.ndarray] = []  # samples for `file`
        self._num_dropped = 0  # samples
        self._changed = asyncio.Event()  # what waits for the client, or whether one is there
        self._error: Exception | None = None
        self._closed = False
        self._task = asyncio.create_task(self._read())

    @property
    def warnings(self) -> list[str]:
        """What the client should know about its request and its text."""
        return self.plan.warnings + self.stream.text.warnings

    @property
    def finish_reason(self) -> str | None:
        """Why the speech ended; None: it has not."""
        is_cut = self._num_dropped and self._reason in ("eos", "length")
        return "cancelled" if is_cut else self._reason

    @property
    def length_s(self) -> float:
        """Seconds of audio that the engine has made."""
        return self.record.num_samples / self.record.sample_rate

    async def feed(self, text: str) -> None:
        """Give the stream more text; other speeches continue meanwhile."""
        for start in range(0, len(text), MAX_CHARS_AT_ONCE):
            self.stream.feed(text[start : start + MAX_CHARS_AT_ONCE])
            await asyncio.sleep(0)

    async def chunks(self, *, keep: bool = False) -> AsyncIterator[AudioChunk]:
        """Yield every chunk of the speech, in order.

        Args:
            keep: keep the samples for `file`.
        Raises:
            Exception: the error that ended the stream, after the chunks before it.
        """
        while True:
            await self._until(lambda: self._chunks or self._reason)
            if not self._chunks:
                break
            chunk = self._chunks.popleft()
            self._changed.set()
            if keep:
                self._kept.append(chunk.samples)
            yield chunk
        if self._error:
            raise self._error

    def close(self) -> None:
        """Stop speaking, without waiting for the engine; may be called after the end.

        Chunks that wait for the client are dropped.
        """
        self._closed = True
        if self._chunks and (talk := self.plan.options.get("conversation")):
            talk.forget()  # the client lacks what the engine has said
        self._num_dropped += self._num_buffered
        self._chunks.clear()
        self._changed.set()
        self.stream.close()

    def __enter__(self) -> Self:
        self._ticket.admission.open_responses += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._ticket.admission.open_responses -= 1

    @contextlib.asynccontextmanager
    async def limited(self) -> AsyncIterator[None]:
        """Raise `DeadlineExceeded` if the block does not end in time, from the arrival on."""
        seconds = self.settings.deadline_s
        try:
            async with asyncio.timeout(seconds - self.record.elapsed_ms / 1000) as deadline:
                yield
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise DeadlineExceeded(f"The speech did not end within {seconds:g} s.") from error

    @property
    def _num_buffered(self) -> int:
        return sum(len(chunk.samples) for chunk in self._chunks)

    async def _until(self, is_true: Callable[[], Any]) -> None:
        while not is_true():
            self._changed.clear()
            await self._changed.wait()

    async def _read(self) -> None:
        reason = "error"
        try:
            async for chunk in self.stream:
                self.record.add(len(chunk.samples), chunk.num_frames)
                if self._closed:
                    self._num_dropped += len(chunk.samples)
                    continue
                self._chunks.append(chunk)
                self._changed.set()
                await self._until(lambda: self._closed or self._num_buffered < self._limit)
            reason = self.stream.finish_reason or reason
        except Exception as error:  # `chunks` raises it
            self._error = error
        finally:
            self._reason = reason
            self._ticket.release()
            self.record.end()
            self._changed.set()
        await self._until(lambda: not self._chunks)  # the client takes them, or leaves
        self.record.count(self.finish_reason or reason, self.stream.text.drifts)
        self._finished[self.request_id] = self.facts()

    # ---- audio -----------------------------------------------------------------------------------

    async def encoded(self, samples: np.ndarray | None) -> bytes:
        """Return the stream's next bytes for [num_samples] int16; None ends it."""
        encoder = self._encoder
        work = encoder.finish if samples is None else functools.partial(encoder.encode, samples)
        return await asyncio.to_thread(work) if encoder.blocks else work()

    async def audio(self) -> AsyncIterator[bytes]:
        """Yield the speech as one file; a piece is empty while the encoder holds samples back."""
        async for chunk in self.chunks():
            yield await self.encoded(chunk.samples)
        yield await self.encoded(None)

    async def file_at_end(self, loudness: float | None = None) -> AsyncIterator[bytes]:
        """Yield an empty piece for each chunk, then one complete file; see `file`."""
        async for _ in self.chunks(keep=True):
            yield b""
        yield await self.file(loudness)

    async def file(self, loudness: float | None = None, **form: Any) -> bytes:
        """Return the kept samples as one complete file, with its lengths and marks.

        Args:
            loudness: the loudness in LUFS; None: unchanged.
            form: fields of the `AudioFormat` that are not those of the plan.
        """
        return await asyncio.to_thread(self._file, loudness, replace(self.plan.audio, **form))

    def _file(self, loudness: float | None, audio: AudioFormat) -> bytes:
        whole = joined(self._kept)
        if loudness is not None:
            rate = self.record.sample_rate
            whole = to_int16(at_loudness(to_float32(whole), rate, loudness))
        return audio.file(whole, self.mark)

    # ---- what is known about it ------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """Return the report on the speech so far; it is complete when the speech is over."""
        record, text = self.record, self.stream.text
        facts = {
            "finish_reason": self.finish_reason,
            "seed": self.stream.seed,
            "parts": text.num_parts,
            "n_steps": record.num_frames,
            "n_samples": record.num_samples,
            "sample_rate": record.sample_rate,
            "elapsed_ms": round(record.elapsed_ms, 3),
            "first_audio_ms": record.first_audio_ms and round(record.first_audio_ms, 3),
            "engine_ms": {name: round(ms, 3) for name, ms in self.stream.timings.items()},
        }
        if text.is_normalized:
            facts["spoken_text"] = text.spoken
        if text.warnings:
            facts["warnings"] = text.warnings
        if drifts := text.drifts:
            facts["drifts"] = [asdict(drift) for drift in drifts]
        if self._error:
            facts["error"] = ApiError.of(self._error).facts
        return facts

    async def timestamps(self, granularities: Collection[str]) -> dict[str, list[dict[str, Any]]]:
        """Return the times of `words` and `segments` that have become final since the last call.

        Args:
            granularities: "word", "segment" or both; the result has only their lists, and no empty
                list.
        """
        if not granularities:
            return {}
        words, segments = await self._times()
        return {
            f"{name}s": [each.facts() for each in times]
            for name, times in (("word", words), ("segment", segments))
            if name in granularities and times
        }

    async def words(self) -> list[TimedWord]:
        """Return the words whose times have become final since the last call."""
        return (await self._times())[0]

    async def _times(self) -> tuple[list[TimedWord], list[Segment]]:
        """Return the final times, but not those of audio that was dropped."""
        # In a thread, since looking at the samples takes some milliseconds.
        words, segments = await asyncio.to_thread(self.stream.times.take)
        if self._num_dropped:
            end_s = self.length_s - self._num_dropped / self.record.sample_rate
            words = [word for word in words if word.end <= end_s]
            segments = [segment for segment in segments if segment.end <= end_s]
        return words, segments

    @property
    def usage(self) -> dict[str, int]:
        """OpenAI's count of tokens: text tokens, and one for each frame of audio."""
        given, drawn = self.stream.text.num_tokens, self.record.num_frames
        return {"input_tokens": given, "output_tokens": drawn, "total_tokens": given + drawn}
