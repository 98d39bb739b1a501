"""Finds the times of the words of one speech, in the samples that its reader receives.

The timer knows the text of each part, and its end to the sample. Inside a part, it finds the words
in the samples (`alignment`). If a part is still being spoken, or was cut off, the samples hold only
its beginning; the timer then estimates from the pace of earlier parts how many words were heard.
"""

import asyncio
import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import numpy as np

from qwen_megakernel.records import AudioChunk
from qwen_megakernel.text.cleaning import REMOVED, SEPARATORS, visible
from qwen_megakernel.text.parts import TextPart
from qwen_megakernel.text.request_text import RequestText
from qwen_megakernel.text.sentences import sentence_spans
from qwen_megakernel.timing.alignment import align, speech_hops
from qwen_megakernel.timing.loudness import Loudness
from qwen_megakernel.timing.sounds import sounds_of
from qwen_megakernel.timing.words import Segment, TimedWord, spoken_spans, word_spans

DEFAULT_PACE_S = 0.075  # length of a sound of weight 1, until a part has been heard to its end

# The timer aligns a part that is still being spoken when FIRST_LOOK_S of it have been heard, and
# again each time that this has doubled. All of these together cost no more than one or two
# alignments of the whole part. Words that end SETTLED_AFTER_S before the end of what was heard then
# keep their times.
FIRST_LOOK_S, SETTLED_AFTER_S = 1.5, 0.7

KEPT_S = 20  # seconds of sound, a megabyte at 24 kHz


@dataclass(slots=True)
class _Heard:
    """The timer's record of one part that its reader hears."""

    begin_s: float
    end_s: float | None = None  # where a pause after it begins; None: where the next part begins
    next_look_s: float = FIRST_LOOK_S
    # [num_visible_chars, 2]: the seconds in which each character is heard, NaN for a silent one.
    # None until the whole part has been heard.
    times: np.ndarray | None = None


class SpeechTimer:
    """The times of one stream's words, which are found in the samples that its reader received.

    One thread may append to `received` while another requests times. While a part of the text is
    being spoken, the times of its words are an estimate. Chunks stay in `received` until times are
    requested or `catch_up` is called, which a stream does when they have `KEPT_S` of sound.

    Args:
        parts: the parts that the engine has begun, in order; the engine appends to this list.
        text: the stream's text, which may grow.
        received: the chunks that the reader has received, then None; they are taken out.
        workers: they look at the samples for coroutines; None: the event loop's threads.
        are_heard_apart: whether each part has a chain (`sound.chain`) of its own, whose held
            samples follow after the part's last frame.
    """

    def __init__(
        self,
        parts: Sequence[TextPart],
        text: RequestText,
        received: deque[AudioChunk | None],
        workers: Executor | None = None,
        *,
        are_heard_apart: bool = False,
    ) -> None:
        self._parts, self._text, self._workers = parts, text, workers
        self._are_heard_apart = are_heard_apart
        self.received = received
        self._lock = threading.Lock()  # for the thread that takes chunks out of `received`
        self._loudness = Loudness()
        self._heard: list[_Heard] = []
        self._num_frames = 0
        self._pace_s = DEFAULT_PACE_S
        self._settled: list[TimedWord] = []
        self._num_parts_over = 0  # when `take` was last called
        self._is_settled = False  # whether all of the speech is settled
        self._num_settled_segments = 0
        self._heard_s = 0.0
        self._is_over = False

    def __getstate__(self) -> dict[str, Any]:
        """Return what the copy of a whole speech needs: neither threads nor encoders."""
        self.catch_up()
        text = self._text
        said = {"written": text.written, "spoken": text.spoken, "speakers": text.speakers}
        parts = [replace(part, encoding=None) for part in self._parts]
        return vars(self) | {
            "_text": SimpleNamespace(**said),
            "_parts": parts,
            "_workers": None,
            "_lock": None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state | {"_lock": threading.Lock()})

    def catch_up(self) -> bool:
        """Look at the chunks received; returns whether they are all of the speech."""
        with self._lock:
            while self.received:
                chunk = self.received.popleft()
                if chunk:
                    self._hear(chunk)
                else:
                    self._is_over = True
            return self._is_over

    def _hear(self, chunk: AudioChunk) -> None:
        seconds = len(chunk.samples) / chunk.sample_rate
        if chunk.num_frames:
            for part in self._parts[len(self._heard) :]:
                # A chunk of the engine belongs to one part. A chunk for the reader may combine
                # frames of two parts.
                share = max(0, part.first_frame - chunk.frame_index) / chunk.num_frames
                if share >= 1:
                    break
                self._heard.append(_Heard(self._heard_s + share * seconds))
        if chunk.pause_s and self._heard and self._heard[-1].end_s is None:
            self._heard[-1].end_s = self._heard_s
        if len(chunk.samples):
            self._loudness.add(chunk.samples, chunk.sample_rate)
            self._heard_s += seconds
        # Set last, because a thread that requests times reads it first.
        if chunk.num_frames:
            self._num_frames = chunk.frame_index + chunk.num_frames

    # ---- words and sentences ---------------------------------------------------------------------

    @property
    def words(self) -> list[TimedWord]:
        """The words of the user's text heard so far; offsets count in the text without markup."""
        self.catch_up()
        written, pieces = self._text.written, self._text.spoken.pieces
        spans = word_spans(written)
        spoken = "".join(piece.text for piece in pieces)
        places = _places(spoken)
        last_letter = max((at for at, char in enumerate(spoken) if char.isalnum()), default=-1)
        times = self._times()
        sounding = np.flatnonzero(~np.isnan(times[:, 0])).tolist()  # the characters with a sound
        seconds = times[sounding].tolist()
        last_sounding = sounding[-1] if sounding else -1
        found: list[TimedWord] = []
        silent: list[tuple[int, int]] = []  # words without a sound since the last one with a time
        end_s = 0.0
        for (begin, end), (low, high) in zip(spans, spoken_spans(pieces, spans), strict=True):
            first, stop = (bisect_left(sounding, places[at]) for at in (low, high))
            if first >= stop:
                if places[low] > last_sounding and low <= last_letter:
                    break
                silent.append((begin, end))
                continue
            found += [TimedWord(written[b:e], end_s, end_s, b) for b, e in silent]
            silent.clear()
            start_s = max(end_s, seconds[first][0])
            end_s = max(start_s, seconds[stop - 1][1])
            found.append(TimedWord(written[begin:end], start_s, end_s, begin))
        if self._is_over and found:
            found += [TimedWord(written[b:e], end_s, end_s, b) for b, e in silent]
        return self._as_settled(self._with_speakers(found))

    @property
    def segments(self) -> list[Segment]:
        """The sentences of the user's text heard so far; the last one may be incomplete."""
        return _segments(self._text.written, self.words)

    async def find(self) -> list[TimedWord]:
        """Return `words`; the event loop is free while a thread looks at the samples."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._workers, lambda: self.words)

    def take(self) -> tuple[list[TimedWord], list[Segment]]:
        """Return the words and sentences whose times have become final since the last call.

        They have the same times in `words` and `segments` from then on. The last of them become
        final after the last chunk, when the stream has ended.
        """
        is_over = self.catch_up()  # before the text is read, which may grow until then
        if not self._is_look_due(is_over):
            return [], []
        limit_s = self._settled_s()
        words, num_known = self.words, len(self._settled)
        if not is_over:
            # The last word may still grow while the text is incomplete.
            words = [word for word in words[:-1] if word.end <= limit_s]
        self._settled += words[num_known:]
        segments = _segments(self._text.written, words)
        if not is_over:
            segments = segments[:-1]  # the last sentence may continue
        first, self._num_settled_segments = self._num_settled_segments, len(segments)
        return words[num_known:], segments[first:]

    def _with_speakers(self, words: list[TimedWord]) -> list[TimedWord]:
        """Return the words with the names of their speakers, if the text has a cast."""
        speakers = self._text.speakers
        if len(speakers) == 1:
            return words
        begins = [begin for begin, _ in speakers]
        return [
            replace(word, speaker=speakers[bisect_right(begins, word.offset) - 1][1])
            for word in words
        ]

    def _as_settled(self, words: list[TimedWord]) -> list[TimedWord]:
        """Return the words; those that have settled keep their times."""
        if not self._settled:
            return words
        end_s = self._settled[-1].end
        later = [
            replace(word, start=max(word.start, end_s), end=max(word.end, end_s))
            for word in words[len(self._settled) :]
        ]
        return self._settled + later

    def _is_look_due(self, is_over: bool) -> bool:
        """Return whether words may have settled: a part is over, or twice as much was heard."""
        if is_over:
            is_due, self._is_settled = not self._is_settled, True
            return is_due
        num_over = sum(self._is_part_over(index) for index in range(len(self._heard)))
        is_due, self._num_parts_over = num_over > self._num_parts_over, num_over
        if num_over < len(self._heard):
            part = self._heard[-1]
            while self._heard_s - part.begin_s >= part.next_look_s:
                part.next_look_s *= 2
                is_due = True
        return is_due

    def _settled_s(self) -> float:
        """Return the time before which words are settled while the stream goes on."""
        if not self._heard or self._is_part_over(len(self._heard) - 1):
            return self._heard_s
        return max(self._heard[-1].begin_s, self._heard_s - SETTLED_AFTER_S)

    # ---- characters ------------------------------------------------------------------------------

    def _is_part_over(self, index: int) -> bool:
        """Return whether all samples of a part have been heard."""
        end = self._parts[index].end_frame
        if self._are_heard_apart:
            is_next_heard = index + 1 < len(self._heard) or self._heard[index].end_s is not None
            return self._is_over or (is_next_heard and end is not None)
        return self._is_over or (end is not None and self._num_frames >= end)

    def _times(self) -> np.ndarray:
        """Return [num_chars, 2] seconds of each visible character, NaN for a silent one."""
        times = np.empty((0, 2))
        for index, heard in enumerate(self._heard[:]):
            found = heard.times
            if found is None:
                is_over = self._is_part_over(index)
                rows = self._loudness.rows()
                found = self._listen(index, rows, is_over=is_over)
                if is_over:
                    heard.times = found
            before = self._parts[index].start - len(times)  # characters that are not spoken
            times = np.concatenate([times, np.full((max(0, before), 2), np.nan), found])
        return times

    def _listen(self, index: int, rows: np.ndarray, *, is_over: bool) -> np.ndarray:
        """Find [num_chars, 2] seconds of the visible characters of a part."""
        part, begin_s = self._parts[index], self._heard[index].begin_s
        hop_s = self._loudness.seconds_per_hop
        is_last = index == len(self._heard) - 1
        end_s = self._heard[index].end_s
        if end_s is None:
            end_s = self._heard_s if is_last else self._heard[index + 1].begin_s
        rows = rows[round(begin_s / hop_s) : round(end_s / hop_s)]
        sounds = sounds_of(part.text)
        times = np.full((len(visible(part.text)), 2), np.nan)
        if not len(rows) or not sounds:
            return times
        if is_over and part.has_ended:
            hops = align(rows, sounds)
            weight = sum(sound.weight for sound in sounds)
            self._pace_s = max(1, int(speech_hops(rows).sum())) * hop_s / weight
        else:
            hops = align(rows, sounds, self._pace_s / hop_s)
        seconds = (begin_s + hops * hop_s).clip(begin_s, end_s)
        for sound, (start, end) in zip(sounds, seconds, strict=False):
            letters = times[sound.first : sound.last + 1]
            letters[:, 0] = np.fmin(letters[:, 0], start)
            letters[:, 1] = np.fmax(letters[:, 1], end)
        return times


def _places(text: str) -> list[int]:
    """Return the number of visible characters before each character, and before the end."""
    shown = (not char.isspace() for char in REMOVED.sub("\n", text))
    return list(accumulate(shown, initial=0))


def _segments(written: str, words: Sequence[TimedWord]) -> list[Segment]:
    """Return the sentences that these words belong to; each has one speaker."""
    found: list[Segment] = []
    place = 0
    for _, end in sentence_spans(REMOVED.sub(" ", SEPARATORS.sub(" ", written))):
        while place < len(words) and words[place].offset < end:
            start = last = words[place]
            while place < len(words) and words[place].offset < end:
                if words[place].speaker != start.speaker:
                    break
                last = words[place]
                place += 1
            text = written[start.offset : last.offset + len(last.word)]
            found.append(Segment(len(found), start.start, last.end, text, start.speaker))
    return found
