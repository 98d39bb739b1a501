"""Steps that disturb the kernel: load beside it, cancels, missing blocks, a second engine."""

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import kernel_models
import torch

from qwen_megakernel.decoders.kernel.decoder import KernelDecoder
from qwen_megakernel.decoders.kernel.launcher import BARRIER_TIMEOUT_SECONDS
from qwen_megakernel.errors import KernelTimeout, QwenTTSError
from qwen_megakernel.speech_options import Sampling
from tools.gpu_check.steps.context import Context

NUM_LAUNCHES = 100_000


def endurance(context: Context, goal: int = NUM_LAUNCHES) -> dict[str, Any]:
    """Launch many times next to a load like a vocoder's; no launch may stall or change a bit."""
    decoder = _small_decoders(context, 1)[0]
    goal = 40 if context.toy else goal
    frames, expected, launches, slowest = 10 if context.toy else 200, None, 0, 0.0
    started = time.monotonic()
    with _vocoder_like_load(context) as count_load:
        while launches < goal and time.monotonic() < context.deadline:
            kernel_models.start(decoder, 0, Sampling(), seed=1)
            codes = []
            for _ in range(frames):
                before = time.monotonic()
                step = decoder.step([0], 1)
                slowest = max(slowest, time.monotonic() - before)
                codes.append(step.codes[0, 0].tolist())
                launches += 1
                if step.ended[0]:
                    break
            expected = expected or codes
            if codes != expected:
                raise SystemExit(f"After {launches} launches the codes differ.")
    return {
        # A step that fell short of its goal has not failed.
        "status": "ok" if launches >= goal else "short",
        "launches": launches,
        "goal": goal,
        "seconds": round(time.monotonic() - started, 1),
        "slowest_step_ms": round(1000 * slowest, 2),
        "load_rounds_beside": count_load(),
    }


@contextlib.contextmanager
def _vocoder_like_load(context: Context) -> Iterator[Callable[[], int]]:
    """Run convolutions on another stream and in another thread until the block ends."""
    stop, rounds = threading.Event(), [0]
    size = 256 if context.toy else 4096

    def work() -> None:
        stream = torch.cuda.Stream() if context.device.type == "cuda" else None
        with torch.inference_mode(), torch.cuda.stream(stream):
            x = torch.randn(1, 32 if context.toy else 512, size, device=context.device)
            weight = torch.randn(x.shape[1], x.shape[1], 7, device=context.device) / 60
            while not stop.is_set():
                for _ in range(10):
                    x = torch.tanh(torch.nn.functional.conv1d(x, weight, padding=3))
                if stream:
                    stream.synchronize()
                rounds[0] += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield lambda: rounds[0]
    finally:
        stop.set()
        thread.join()


def abort(context: Context) -> dict[str, Any]:
    """Cancel from another thread at random moments, and let barriers time out: no frame may be
    lost, and later frames must be right.
    """
    decoder = _small_decoders(context, 1)[0]
    frames, rounds = 12, 3 if context.toy else 300
    draw = random.Random(1)
    expected, cut_short = None, 0
    for _ in range(rounds):
        kernel_models.start(decoder, 0, Sampling(), seed=1)
        codes: list[list[int]] = []
        drawn = 4
        while len(codes) < frames:
            delay = draw.uniform(0, 0.02 if context.toy else 0.0005)
            canceller = threading.Timer(delay, decoder.cancel)
            if drawn:  # otherwise the cancel came before the step, and nothing would ever be drawn
                canceller.start()
            step = decoder.step([0], 4)
            drawn = step.num_frames[0]
            if canceller.is_alive():
                canceller.join()
            codes += step.codes[0, :drawn].tolist()
            cut_short += drawn < 4
            if step.ended[0]:
                break
        expected = expected or codes[:frames]
        if codes[:frames] != expected:
            raise SystemExit("A cancelled stream went on with other codes.")
    decoder._buffers.cancel[0] = 0  # the last timer may have fired too late
    expired = _expire(decoder, 2 if context.toy else 20)
    return {"rounds": rounds, "steps_cut_short": cut_short, "timeouts": expired}


def _expire(decoder: KernelDecoder, rounds: int) -> int:
    """Make barriers expire, as if a block never arrived; the next stream must be right each
    time."""
    patience, expired = decoder.launcher.timeout_seconds, 0
    kernel_models.start(decoder, 1, Sampling(), seed=2)
    expected = decoder.step([1], 4).codes
    for _ in range(rounds):
        kernel_models.start(decoder, 0, Sampling(), seed=1)
        decoder.launcher.timeout_seconds = 0.001
        kernel_models.lose_a_block(decoder)
        try:
            decoder.step([0], 1)
        except KernelTimeout:
            expired += 1
        decoder.launcher.timeout_seconds = patience
        kernel_models.start(decoder, 1, Sampling(), seed=2)
        if not (decoder.step([1], 4).codes == expected).all():
            raise SystemExit("After a timeout the codes differ.")
    if not expired:
        raise SystemExit("No barrier expired, though a block was missing.")
    return expired


def two_engines(context: Context) -> dict[str, Any]:
    """Run two decoders on one device, each on a stream and a thread of its own (under emulation
    they take turns). The codes must be those of each decoder alone, and on a GPU no wait may reach
    a barrier's time limit.
    """
    decoders = _small_decoders(context, 2)
    expected = [_codes(decoder, seed) for seed, decoder in enumerate(decoders, 1)]
    rounds, outcomes = 2 if context.toy else 200, [[], []]
    slowest = [0.0, 0.0]

    def work(index: int) -> None:
        stream = torch.cuda.Stream() if context.device.type == "cuda" else None
        with torch.cuda.stream(stream):
            for _ in range(rounds):
                before = time.monotonic()
                try:
                    same = _codes(decoders[index], index + 1) == expected[index]
                    outcomes[index].append("same" if same else "DIFFERENT")
                except (QwenTTSError, RuntimeError) as error:
                    outcomes[index].append(type(error).__name__)
                slowest[index] = max(slowest[index], time.monotonic() - before)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
        if context.emulation:
            thread.join()
    for thread in threads:
        thread.join()
    found = dict(Counter(outcomes[0] + outcomes[1]))
    stalled = max(slowest) >= BARRIER_TIMEOUT_SECONDS and not context.toy
    if found != {"same": 2 * rounds} or stalled:
        raise SystemExit(f"Two engines disturbed each other: {found}, slowest {max(slowest)} s")
    return {
        "rounds": rounds,
        "took_turns": context.emulation,
        "outcomes": found,
        "slowest_round_ms": round(1000 * max(slowest), 2),
    }


def _codes(decoder: KernelDecoder, seed: int) -> list[list[int]]:
    kernel_models.start(decoder, 0, Sampling(), seed=seed)
    return decoder.step([0], 8).codes[0].tolist()


def _small_decoders(context: Context, count: int) -> list[KernelDecoder]:
    """Return decoders of a model of a single layer: its launches are short, so many fit."""
    loaded = kernel_models.random_checkpoint(kernel_models.small_config())
    return [context.decoder(loaded) for _ in range(count)]
