"""What a listener notices: gaps in playback, and silence at the beginning."""

from collections.abc import Sequence

import numpy as np

from qwen_megakernel.audio import FULL_SCALE

# Audible sound, as nari-labs' benchmark of first audible audio defines it: two windows in a row
# are above the threshold; each window begins half a window after the last.
WINDOW_MS = 20
HOP_MS = 10
AUDIBLE_DBFS = -45
NUM_AUDIBLE_WINDOWS = 2


def playback_gaps(
    chunk_times_ms: Sequence[float], chunk_durations_ms: Sequence[float], buffer_ms: float
) -> list[float]:
    """Simulate a player that starts `buffer_ms` after the first chunk and stops when it runs dry.

    Args:
        chunk_times_ms: when each chunk arrived, in order.
        chunk_durations_ms: how long each chunk plays.
        buffer_ms: how long the player waits before it starts.
    Returns:
        The length in ms of each silence inside the speech; empty if there was none.
    """
    gaps = []
    played_until = None
    for time, duration in zip(chunk_times_ms, chunk_durations_ms, strict=True):
        if played_until is None:
            played_until = time + buffer_ms
        elif time > played_until:
            gaps.append(time - played_until)
            played_until = time
        played_until += duration
    return gaps


def leading_silence_ms(samples: np.ndarray, rate: int) -> float:
    """Measure the inaudible beginning: the time until the first audible windows start.

    Args:
        samples: [num_samples] float with full scale at 1, or int16.
        rate: samples per second.
    Returns:
        Milliseconds; the whole duration if nothing is audible.
    """
    window, hop = rate * WINDOW_MS // 1000, rate * HOP_MS // 1000
    full_scale = FULL_SCALE if samples.dtype == np.int16 else 1
    energy = np.cumsum(np.square(samples.astype(np.float64) / full_scale))
    energy = np.concatenate([[0.0], energy])
    starts = np.arange(0, len(samples) - window + 1, hop)
    power = (energy[starts + window] - energy[starts]) / window
    is_loud = power > 10 ** (AUDIBLE_DBFS / 10)
    run = 0
    for start, loud in zip(starts, is_loud, strict=True):
        run = run + 1 if loud else 0
        if run == NUM_AUDIBLE_WINDOWS:
            return float(start - (NUM_AUDIBLE_WINDOWS - 1) * hop) * 1000 / rate
    return len(samples) * 1000 / rate
