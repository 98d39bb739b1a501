"""Cuts the silence before the first sound and after the last sound of a speech.

A block of samples is silent if its energy is low. It is also silent if the energy of both
neighbouring blocks is low, because a single loud block is a click. Silence is held back until sound
follows, which shows that it is not at the end.
"""

import numpy as np

BLOCK_S = 0.010
FADE_S = 0.005  # length of the fade-in of cut silence; without it, the codec's hiss would click
# 30 dB below the vowels of a voice. The softest sounds of speech are louder; the hiss of a codec is
# quieter (-77 dBFS with demo-voice).
SILENT_DBFS = -48

# When a high-pass filter's fade begins, and when it ends; the tick of demo-voice lasts 20 ms, and
# the first sound comes after 40 ms.
FADE_IN_S = (0.015, 0.025)

_SILENT = 10 ** (SILENT_DBFS / 10)


class Edges:
    """Cuts the silence at the beginning and the end of one stream.

    Args:
        leading: seconds of silence to keep at most before the first sound; None: all.
        trailing: seconds of silence to keep at most after the last sound; None: all.
        holds_back: whether all silence is held back until sound or the end follows. Until then,
            the caller may change `trailing_s`.
    """

    def __init__(
        self,
        leading: float | None,
        trailing: float | None,
        sample_rate: int,
        *,
        holds_back: bool = False,
    ) -> None:
        self._block, self._fade = round(BLOCK_S * sample_rate), round(FADE_S * sample_rate)
        self._leading = 0 if leading is None else round(leading * sample_rate)
        self.trailing_s, self._sample_rate = trailing, sample_rate
        self._holds_back = holds_back
        self._has_begun = leading is None  # whether the silence at the beginning is over
        self._rest = np.empty(0, np.float32)  # samples whose blocks are not decided yet
        self._was_loud = False  # whether the last decided block was loud
        self._silence = np.empty(0, np.float32)  # silence that is held back
        self._num_cut = 0  # samples that were cut before the first sound
        self._num_silent = 0  # samples of silence returned since the last sound

    def push(self, samples: np.ndarray) -> np.ndarray:
        known = np.concatenate([self._rest, samples])
        loud = _loud_blocks(known[: len(known) - len(known) % self._block], self._block)
        before = np.concatenate([[self._was_loud], loud[:-1]])[: len(loud)]
        if len(loud) and loud[-1] and not before[-1]:  # the next block shows whether it is a click
            loud, before = loud[:-1], before[:-1]
        if len(loud):
            self._was_loud = bool(loud[-1])
        end = len(loud) * self._block
        self._rest = known[end:]
        return self._take(known[:end], loud & (before | np.append(loud[1:], False)))

    def finish(self) -> np.ndarray:
        missing = -len(self._rest) % self._block
        is_loud = _loud_blocks(np.pad(self._rest, (0, missing)), self._block).any()
        last, self._rest = self._rest, np.empty(0, np.float32)
        if is_loud:
            return np.concatenate([self._begin(), last])
        self._silence = np.concatenate([self._silence, last])
        self._holds_back = False
        if self._has_begun:
            return self._let_out()
        return self._begin()[: self._num_trailing]  # there was no sound at all

    @property
    def _num_trailing(self) -> int | None:
        """Maximum number of samples of silence to keep after the last sound; None: all."""
        return None if self.trailing_s is None else round(self.trailing_s * self._sample_rate)

    def _take(self, samples: np.ndarray, is_sound: np.ndarray) -> np.ndarray:
        """Process whole blocks: [num_blocks * block] samples, [num_blocks] bool for sound."""
        sound = np.flatnonzero(is_sound)
        if len(sound):
            begin, end = sound[0] * self._block, (sound[-1] + 1) * self._block
            self._silence = np.concatenate([self._silence, samples[:begin]])
            heard = [self._begin(), samples[begin:end]]
            self._silence, self._num_silent = samples[end:], 0
        else:
            self._silence, heard = np.concatenate([self._silence, samples]), []
        if self._has_begun:
            heard.append(self._let_out())
        else:
            self._cut()
        return np.concatenate([np.empty(0, np.float32), *heard])

    def _begin(self) -> np.ndarray:
        """Return the silence to keep before a sound."""
        if not self._has_begun:
            self._cut()
            self._has_begun = True
            if self._num_cut:
                fade = min(self._fade, len(self._silence))
                ramp = np.linspace(0, 1, fade, endpoint=False, dtype=np.float32)
                self._silence = np.concatenate([ramp * self._silence[:fade], self._silence[fade:]])
        silence, self._silence = self._silence, self._silence[:0]
        return silence

    def _cut(self) -> None:
        """Drop silence that is cut even if the first sound comes next."""
        num_cut = max(0, len(self._silence) - self._leading)
        self._num_cut += num_cut
        self._silence = self._silence[num_cut:]

    def _let_out(self) -> np.ndarray:
        """Return as much of the held silence as is kept even if no sound follows."""
        count, limit = len(self._silence), self._num_trailing
        if self._holds_back:
            count = 0
        elif limit is not None:
            count = min(count, limit - self._num_silent)
        silence, self._silence = self._silence[:count], self._silence[count:]
        self._num_silent += count
        return silence


class HighPass:
    """A first-order high-pass filter, which removes frequencies below speech, such as an offset.

    It halves the power at `hertz`. The one vocoder with an offset, demo-voice's, also begins with a
    tick, so the beginning fades in (`FADE_IN_S`).
    """

    def __init__(self, hertz: float, sample_rate: int) -> None:
        self._block = round(BLOCK_S * sample_rate)
        self._keep = float(np.exp(-2 * np.pi * hertz / sample_rate))
        self._powers = self._keep ** np.arange(self._block)
        self._mean = 0.0  # the running mean, which is subtracted
        self._has_begun = False
        self._rest = np.empty(0, np.float32)
        silent, full = (round(seconds * sample_rate) for seconds in FADE_IN_S)
        self._fade = np.concatenate([np.zeros(silent), np.linspace(0, 1, full - silent)])

    def push(self, samples: np.ndarray) -> np.ndarray:
        known = np.concatenate([self._rest, samples])
        end = len(known) - len(known) % self._block
        self._rest = known[end:]
        return self._filter(known[:end])

    def finish(self) -> np.ndarray:
        last, self._rest = self._rest, np.empty(0, np.float32)
        return self._filter(np.pad(last, (0, -len(last) % self._block)))[: len(last)]

    def _filter(self, samples: np.ndarray) -> np.ndarray:
        """Filter whole blocks.

        The output is x[n] - mean[n] with mean[n] = keep * mean[n - 1] + (1 - keep) * x[n]. Within a
        block, the means are computed at once, as a cumulative sum of samples over powers of keep.
        """
        blocks = samples.reshape(-1, self._block).astype(np.float64)
        sums = np.cumsum(blocks / self._powers, axis=1) * (1 - self._keep)
        if not self._has_begun and len(blocks):
            self._has_begun = True
            self._mean = float(blocks[0].mean())  # a constant offset does not begin with a step
        before = np.empty(len(blocks))  # keep * the mean before each block
        for index, total in enumerate(sums[:, -1]):
            before[index] = self._keep * self._mean
            self._mean = float(self._powers[-1] * (before[index] + total))
        means = self._powers * (before[:, None] + sums)
        filtered = (blocks - means).astype(np.float32).ravel()
        faded, self._fade = self._fade[: len(filtered)], self._fade[len(filtered) :]
        filtered[: len(faded)] *= faded
        return filtered


def _loud_blocks(samples: np.ndarray, block: int) -> np.ndarray:
    """Return whether each block of `samples` is loud: [num_blocks] bool."""
    blocks = samples.reshape(-1, block)
    return np.square(blocks, dtype=np.float64).mean(axis=1) > _SILENT
