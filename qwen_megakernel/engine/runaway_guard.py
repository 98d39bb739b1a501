"""The runaway guard stops a model that does not stop by itself.

The model misses its end token in 0.3-0.5 % of requests (docs/ledger.md, E18). The guard looks at
one frame after another, so its cut does not depend on how frames were grouped into chunks.
"""

from collections import deque

import numpy as np

from qwen_megakernel.records import FinishReason

# Speech has 3 to 4 text tokens and 12.5 frames per second: some 4 frames per token. Ten leave room
# for slow, spelled-out or multi-token words, the constant for pauses and very short texts.
FRAMES_PER_TEXT_TOKEN = 10
SPARE_FRAMES = 50

# Five seconds below -60 dBFS: longer than any pause in read speech, quieter than a noisy voice's
# room. Preset voices open with one silent frame, paragraphs pause for under two seconds.
SILENT_FRAMES = 63
SILENCE_RMS = 10 ** (-60 / 20)

# Six seconds in which code 0 repeats with a period of at most 12 frames (a held or looping sound).
# A held vowel lasts under two seconds, and sampled speech does not repeat code 0 exactly.
REPEAT_FRAMES = 75
MAX_PERIOD = 12


class RunawayGuard:
    """Watches one part of an utterance, of at most `max_frames` frames whatever its text."""

    def __init__(self, max_frames: int):
        self.num_text_tokens = 0  # raised by the engine as text arrives
        self._max_frames = max_frames
        self._num_frames = 0
        self._num_silent = 0
        self._recent: deque[int] = deque(maxlen=REPEAT_FRAMES)

    def check_codes(self, codes: np.ndarray) -> FinishReason | None:
        """Count a frame [num_code_groups]; a returned reason cuts it and all that follow."""
        if self.frames_left <= 0:
            return "length"
        self._num_frames += 1
        self._recent.append(int(codes[0]))
        if len(self._recent) == REPEAT_FRAMES and self._repeats():
            return "repeat"
        return None

    @property
    def frames_left(self) -> int:
        """Frames until the length limit; the engine draws no more than these."""
        budget = SPARE_FRAMES + FRAMES_PER_TEXT_TOKEN * self.num_text_tokens
        return min(budget, self._max_frames) - self._num_frames

    def check_audio(self, pcm: np.ndarray) -> FinishReason | None:
        """Count the samples [samples_per_frame] of one frame; a returned reason cuts this frame."""
        silent = float(np.sqrt(np.mean(np.square(pcm, dtype=np.float64)))) < SILENCE_RMS
        self._num_silent = self._num_silent + 1 if silent else 0
        return "silence" if self._num_silent >= SILENT_FRAMES else None

    def _repeats(self) -> bool:
        recent = np.array(self._recent)
        return any(
            np.array_equal(recent[period:], recent[:-period]) for period in range(1, MAX_PERIOD + 1)
        )
