"""Time the kernel with the device's clock: a frame, a layer, and a copy for comparison.

This module imports only packages that a bare GPU machine has.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import kernel_models
import torch

from benchmarks import roofline
from qwen_megakernel.checkpoint.config import StackConfig
from qwen_megakernel.decoders.kernel.decoder import KernelDecoder
from qwen_megakernel.speech_options import Sampling

PROMPT_POSITIONS = 200  # a frame in the middle of a sentence
HEAD_START_CYCLES = 400_000  # cycles for the host to get ahead, a fifth of a millisecond


class ForcedStreams:
    """Streams that have run their prompts and have forced codes, so that none ends. The kernel
    still draws codes.
    """

    FRAMES = 4  # frames in a step

    def __init__(self, decoder: Any, streams: int, toy: bool = False):
        self._decoder, self._slots = decoder, list(range(streams))
        self._generator = torch.Generator().manual_seed(1)
        self.positions = 8 if toy else PROMPT_POSITIONS
        for slot in self._slots:
            kernel_models.start(decoder, slot, Sampling(), seed=slot + 1, positions=self.positions)

    def wall_ms(self, steps: int) -> list[float]:
        """Return the milliseconds that the caller waits for each of `steps` steps."""
        talker = self._decoder.config.talker
        top = min(talker.suppressed_from, self._decoder.config.predictor.vocab_size)
        shape = (len(self._slots), self.FRAMES, talker.num_code_groups)
        wall = []
        for _ in range(steps):
            forced = torch.randint(0, top, shape, generator=self._generator)
            started = time.perf_counter()
            result = self._decoder.step(self._slots, self.FRAMES, forced)
            wall.append(1000 * (time.perf_counter() - started))
            for error in result.failures.values():
                raise error
        return wall


class KernelTimer:
    """A timer of launches on `device`; few and small ones if `toy`."""

    def __init__(self, device: torch.device, toy: bool = False):
        self._device, self._toy = device, toy

    def frame(self, decoder: KernelDecoder, streams: int, precision: str) -> dict[str, float]:
        """Return the milliseconds and bytes of a frame of `streams` streams.

        Args:
            precision: precision of the decoder's weights, one of `roofline.WIDTHS`.
        """
        forced = ForcedStreams(decoder, streams, self._toy)
        frames, rounds = forced.FRAMES, 2 if self._toy else 20
        # The first launches warm up; a stream's first frame has no talker step.
        with self._launches(decoder, "step") as kernel_ms:
            wall = forced.wall_ms(rounds + 2)[2:]
        if not self._toy:  # the caller's wait, without the timing of the launch
            wall = forced.wall_ms(rounds)
        kernel, host = sorted(kernel_ms[2:]), sorted(wall)
        position = forced.positions + frames * (rounds + 2) / 2
        config, itemsize = decoder.config, decoder.dtype.itemsize
        num_bytes = roofline.weight_bytes(config, precision)
        num_bytes += roofline.cache_bytes(config, itemsize, streams, position)
        return {
            "ms_per_frame": kernel[len(kernel) // 2] / frames,
            "best_ms_per_frame": kernel[0] / frames,
            "host_ms_per_frame": host[len(host) // 2] / frames,
            "mb_per_frame": num_bytes / 1e6,
        }

    def layers(self, decoder: KernelDecoder) -> dict[str, float]:
        """Return the microseconds of a layer for one row: the time of all layers minus that of
        one."""
        times = {}
        position = 8 if self._toy else PROMPT_POSITIONS
        for stack, place in (("talker", position), ("predictor", 8)):
            config: StackConfig = getattr(decoder.config, stack).stack
            x = torch.randn(1, config.hidden_size, device=self._device)
            token = torch.full((1,), -1, dtype=torch.int32)
            spent = []
            for layers in (1, config.num_layers):
                with self._launches(decoder, "forward") as found:
                    for _ in range(3 if self._toy else 30):
                        decoder.forward(
                            0, token, x, first_position=place, num_layers=layers, stack=stack
                        )
                spent.append(sorted(found)[len(found) // 2])
            times[f"{stack}_layer_us"] = 1000 * (spent[1] - spent[0]) / (config.num_layers - 1)
        return times

    @contextlib.contextmanager
    def _launches(self, decoder: KernelDecoder, name: str) -> Iterator[list[float]]:
        """Collect the milliseconds of every launch of the library's `name` within the block."""
        found: list[float] = []
        launch = getattr(decoder.library, name)

        def timed(*arguments: Any) -> None:
            found.append(self._timed(lambda: launch(*arguments)))

        setattr(decoder.library, name, timed)
        try:
            yield found
        finally:
            setattr(decoder.library, name, launch)

    def _timed(self, work: Callable[[], None]) -> float:
        """Return the device's milliseconds, without the host's work around the launch."""
        if self._device.type == "cpu":
            started = time.perf_counter()
            work()
            return 1000 * (time.perf_counter() - started)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(HEAD_START_CYCLES)  # otherwise the host's part is timed, too
        first.record()
        work()
        last.record()
        last.synchronize()
        return first.elapsed_time(last)

    def copy_gb_per_s(self) -> float:
        """Return the bytes that a copy reads and writes in a second; the best of a few."""
        size = 2**20 if self._toy else 2**31
        source = torch.zeros(size, dtype=torch.uint8, device=self._device)
        target = torch.empty_like(source)
        return 2 * size / min(self._timed(lambda: target.copy_(source)) for _ in range(7)) / 1e6
