"""Draws the load, in the same way on every machine: arrivals, texts and lengths of requests."""

import hashlib
import math
from collections.abc import Iterator
from statistics import NormalDist

PROMPTS = (
    "Your table for two is ready.",
    "The train leaves at half past nine.",
    "We will meet you at the hotel on Friday.",
    "Please call me back when you have time.",
    "It is cold today, and we are late.",
    "Hello, how are you today?",
    "The doctor can see you on Monday morning. Please bring your card.",
    "Turn left after the bridge. The station is on your right.",
)

# Lengths of speech in frames, until released weights provide better ones: a lognormal distribution
# around 71 frames (5.7 s, the mean of the CustomVoice model on Seed-TTS English), from a short word
# to 17.6 s.
MEAN_FRAMES, SIGMA, SHORTEST, LONGEST = 71, 0.35, 12, 220


def uniform(seed: int, name: str, index: int) -> float:
    """Return a number in (0, 1) that every machine draws alike."""
    digest = hashlib.sha256(f"{seed}:{name}:{index}".encode()).digest()
    return (int.from_bytes(digest[:8]) + 0.5) / 2**64


def arrivals(seed: int, rps: float, duration_s: float) -> Iterator[float]:
    """Yield the seconds at which requests are sent: a Poisson process."""
    at = index = 0
    while (at := at - math.log(uniform(seed, "gap", index)) / rps) < duration_s:
        yield at
        index += 1


def prompt_order(seed: int, num_prompts: int, num_requests: int) -> list[int]:
    """Return the order of the prompts: all once in a random order, then in another, and so on."""
    order: list[int] = []
    while len(order) < num_requests:
        key = {i: uniform(seed, f"prompt {len(order)}", i) for i in range(num_prompts)}
        order += sorted(key, key=key.get)
    return order[:num_requests]


def num_frames(seed: int, index: int) -> int:
    """Return how many frames request `index` speaks."""
    normal = NormalDist(math.log(MEAN_FRAMES) - SIGMA**2 / 2, SIGMA)
    drawn = math.exp(normal.inv_cdf(uniform(seed, "frames", index)))
    return round(min(max(drawn, SHORTEST), LONGEST))
