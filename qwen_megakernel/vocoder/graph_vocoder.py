"""The vocoder as CUDA graphs: one for each number of streams and frames.

A chunk of any length is some hundred small kernels, so without graphs starting them takes all of
its time on a GPU. The layers are those of `vocoder`; here they read tensors that stay in place.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from qwen_megakernel.gpu.cuda_graphs import Graphs, upload
from qwen_megakernel.vocoder.vocoder import Vocoder

MAX_FRAMES = 12  # for one graph; longer chunks are divided
MAX_STREAMS = 16  # for one graph; more streams need several graphs


class GraphVocoder(Vocoder):
    """A `Vocoder` for a GPU; on a CPU the same functions run directly, and return the same bits.

    The number of streams is padded to a power of two. A graph is recorded when it is first needed,
    or before that by `record`.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._graphs = Graphs(self.device)
        frames = MAX_STREAMS * MAX_FRAMES

        def zeros(*shape: int, dtype: torch.dtype = self.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        self._codes = zeros(frames * self.config.num_quantizers, dtype=torch.int64)
        self._states = zeros(MAX_STREAMS, self._num_values)
        self._pcm = zeros(frames * self.samples_per_frame)

    @torch.inference_mode()
    def _step(self, codes: Tensor, states: Sequence[Tensor]) -> Tensor:
        groups = []
        for first in range(0, len(states), MAX_STREAMS):
            some = states[first : first + MAX_STREAMS]
            pieces = codes[first : first + MAX_STREAMS].split(MAX_FRAMES, dim=1)
            groups.append(torch.cat([self._step_piece(piece, some) for piece in pieces], dim=1))
        return torch.cat(groups)

    @torch.inference_mode()
    def record(self, num_streams: int, num_frames: int = MAX_FRAMES) -> None:
        """Record the graphs for up to `num_streams` streams, so that no request waits for them."""
        rows = 1
        while True:
            for frames in range(1, min(num_frames, MAX_FRAMES) + 1):
                self._graphs.run((rows, frames), partial(self.run_chunk, rows, frames))
            if rows >= min(num_streams, MAX_STREAMS):
                return
            rows *= 2

    def run_chunk(self, num_streams: int, num_frames: int) -> None:
        """Decode the codes in place with the states in place: the work that a graph records."""
        codes, pcm = self._in_place(num_streams, num_frames)
        batch = self._states[:num_streams]
        pcm.copy_(self._decode_tail(self._decode_front(codes, batch), batch).T)

    def _in_place(self, num_streams: int, num_frames: int) -> tuple[Tensor, Tensor]:
        """Return views of the graphs' codes [n, num_frames, num_quantizers], PCM [n, samples]."""
        frames = num_streams * num_frames
        shape = (num_streams, num_frames, self.config.num_quantizers)
        codes = self._codes[: frames * self.config.num_quantizers].view(shape)
        return codes, self._pcm[: frames * self.samples_per_frame].view(num_streams, -1)

    def _step_piece(self, codes: Tensor, states: Sequence[Tensor]) -> Tensor:
        n, num_frames = codes.shape[:2]
        rows = 1 << (n - 1).bit_length()
        batch = self._states[:n]
        torch.stack(list(states), out=batch)
        codes_in_place, pcm = self._in_place(rows, num_frames)
        upload(codes_in_place[:n], codes)
        self._graphs.run((rows, num_frames), partial(self.run_chunk, rows, num_frames))
        for values, state in zip(batch, states, strict=True):
            state.copy_(values)
        return pcm[:n].clone()
