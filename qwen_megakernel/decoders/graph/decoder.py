"""The decoder in PyTorch for GPUs that cannot run the kernel: all slots at once, as CUDA graphs.

A step is a few graphs and one wait: the control of all slots goes to the device, each frame is one
replay of the same graph, which also draws the codes, and the codes come back in one copy. On a CPU
the same functions run directly; the tests compare them with `plain`. This decoder and the kernel
share no code, so on a GPU its codes also check the kernel's.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from qwen_megakernel.decoders.frame_decoder import BufferedDecoder, Taps
from qwen_megakernel.decoders.graph.model import MAX_FRAMES_PER_LAUNCH, GraphModel
from qwen_megakernel.decoders.sampling import not_finite
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.decoders.weights import DecoderModel
from qwen_megakernel.errors import QwenTTSError
from qwen_megakernel.gpu.cuda_graphs import Graphs, download, upload
from qwen_megakernel.records import StepResult

MIN_PROMPT = 16  # prompts are padded to this number times a power of two
MIN_REACH = 256  # the positions that attention reads, padded in the same way


class GraphDecoder(BufferedDecoder):
    """Talker and code predictor as CUDA graphs; all slots are rows of every pass.

    On a GPU graphs are recorded; any other device runs the same functions directly.
    """

    def __init__(self, model: DecoderModel, sizes: DecoderSizes):
        super().__init__(sizes)
        self.config = model.config
        self._graphs = Graphs(self.device)
        self.model = GraphModel(model, sizes)
        self._seen, self._text, self._pad = self.model.seen, self.model.text, self.model.pad
        self.embeddings = self.model.embeddings
        self._cancelled = False
        if self.device.type == "cuda":
            self._record_everything()

    def cancel(self) -> None:
        self._cancelled = True

    def _run_prompt(self, slot: int, embeds: Tensor, pad_embed: Tensor) -> None:
        self._pad[slot] = pad_embed
        count = len(embeds)
        padded = _padded(count, MIN_PROMPT, self.max_positions)
        self.model.prompt[:count] = embeds
        self.model.prompt[count:padded] = 0
        upload(self.model.prompt_control, torch.tensor([slot, count - 1]))
        self._graphs.run(("prompt", padded), partial(self.model.run_prompt, padded))

    def _step(
        self, slots: Sequence[int], num_frames: int, forced: Tensor | None, taps: Taps | None
    ) -> StepResult:
        n, groups = len(slots), self.config.talker.num_code_groups
        codes = np.zeros((n, num_frames, groups), dtype=np.int32)
        counts, ended = [0] * n, [False] * n
        failures: dict[int, QwenTTSError] = {}
        logits: list[tuple[Tensor, Tensor]] = []
        for first in range(0, num_frames, MAX_FRAMES_PER_LAUNCH):
            rows = [row for row in range(n) if not ended[row] and row not in failures]
            count = min(MAX_FRAMES_PER_LAUNCH, num_frames - first)
            given = None if forced is None else forced[rows, first : first + count]
            kept = None if taps is None else logits
            found = self._start([slots[row] for row in rows], count, given, kept)()
            for index, row in enumerate(rows):
                codes[row, first : first + count] = found.codes[index]
                counts[row] += found.num_frames[index]
                ended[row] = found.ended[index]
            failures |= {rows[index]: error for index, error in found.failures.items()}
            if sum(ended) + len(failures) == n or self._cancelled:
                break
        self._cancelled = False
        if taps is not None:
            for frame, (talker, predictor) in enumerate(logits):
                taps["talker"][:, frame] = talker[list(slots)]
                taps["predictor"][:, frame] = predictor[list(slots)]
        return self._settled(slots, StepResult(codes, tuple(counts), tuple(ended), failures))

    def _launch(self, slots: Sequence[int], num_frames: int) -> Callable[[], StepResult]:
        started = self._start(slots, num_frames, None, None)

        def collect() -> StepResult:
            self._cancelled = False
            return self._settled(slots, started())

        return collect

    def _start(
        self,
        slots: Sequence[int],
        num_frames: int,
        forced: Tensor | None,
        logits: list[tuple[Tensor, Tensor]] | None,
    ) -> Callable[[], StepResult]:
        """Start one launch, and append the logits of its frames to `logits`, if it is a list."""
        states = [self._state(slot) for slot in slots]
        upload(
            self.model.control_rows, self.model.control_of(dict(zip(slots, states, strict=True)))
        )
        self.model.result.zero_()
        self.model.index.zero_()
        if forced is not None:
            host = torch.zeros(self.model.forced.shape, dtype=torch.int64)
            host[:num_frames, list(slots)] = forced.transpose(0, 1).to(host)
            upload(self.model.forced, host)
        end = max(state.position for state in states) + num_frames
        reach = _padded(end, MIN_REACH, self.max_positions)
        all_new = all(state.frame == 0 for state in states)
        samplings = [state.sampling for state in states]
        use_top_p = any(min(s.talker.top_p, s.predictor.top_p) < 1 for s in samplings)
        for index in range(num_frames):
            if self._cancelled:
                break
            # A stream's first frame needs no talker step: its hidden state is the prompt's result.
            reached = 0 if all_new and index == 0 else reach
            key = (reached, forced is not None, use_top_p)
            if logits is None:
                self._graphs.run(key, partial(self.model.run_frame, *key))
            else:
                logits.append(self.model.run_frame(*key))
        wait = download(self.model.result)
        return lambda: self._collect(slots, num_frames, wait())

    def _collect(self, slots: Sequence[int], num_frames: int, result: Tensor) -> StepResult:
        codes, of_slots = self.model.split_result(result)
        at = list(slots)
        drawn = codes[:num_frames, at].transpose(0, 1).contiguous().numpy()
        counts, ended, bad = of_slots[:, at].tolist()
        failures: dict[int, QwenTTSError] = {
            row: not_finite(which - 1) for row, which in enumerate(bad) if which
        }
        for row, slot in enumerate(slots):
            if row in failures:
                drawn[row], counts[row], ended[row] = 0, 0, 0
            else:
                self._state(slot).advance(counts[row], bool(ended[row]))
        self.model.forget([slots[row] for row in failures])
        return StepResult(drawn, tuple(counts), tuple(map(bool, ended)), failures)

    def _record_everything(self) -> None:
        """Record the graphs of ordinary streams now, so that no request waits for them.

        No slot is active, so only the prompt rows of slot 0 change, which no stream holds yet.
        """
        self.model.control_rows.copy_(self.model.control_of({}))
        with torch.inference_mode():
            for count in _sizes(MIN_PROMPT, self.max_positions):
                self._graphs.run(("prompt", count), partial(self.model.run_prompt, count))
            for reach in (0, *_sizes(MIN_REACH, self.max_positions)):
                self.model.index.zero_()
                key = (reach, False, False)
                self._graphs.run(key, partial(self.model.run_frame, *key))


def _sizes(smallest: int, largest: int) -> Iterator[int]:
    """Yield `smallest` times each power of two below `largest`, then `largest`."""
    while smallest < largest:
        yield smallest
        smallest *= 2
    yield largest


def _padded(count: int, smallest: int, largest: int) -> int:
    return next(size for size in _sizes(smallest, largest) if size >= count)
