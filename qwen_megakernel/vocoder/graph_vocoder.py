"""The vocoder as CUDA graphs: one for each number of streams and frames.

A chunk is some hundred small kernels however short it is, so without graphs its time on a GPU is
that of starting them. The layers are `vocoder`'s own; here they get tensors that stay in place.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from qwen_megakernel.gpu.cuda_graphs import Graphs, upload
from qwen_megakernel.vocoder.vocoder import Vocoder, VocoderState

MAX_FRAMES = 12  # of one graph; longer chunks are cut
MAX_STREAMS = 16  # of one graph; more streams take turns


class GraphVocoder(Vocoder):
    """`Vocoder` for a GPU; on a CPU the same functions run directly, and give the same bits.

    The number of streams is padded to a power of two. Graphs are recorded when first needed, or
    beforehand by `record`.
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
    def step(self, codes: Tensor, states: Sequence[VocoderState]) -> Tensor:
        """As `Vocoder.step`; on a GPU it returns before the samples are there.

        Args:
            codes: [n, num_frames, num_quantizers] integers, on the CPU.
        """
        codes = self._checked(codes)
        assert len(states) == len(codes) == len({id(state) for state in states})
        groups = []
        for first in range(0, len(states), MAX_STREAMS):
            some = states[first : first + MAX_STREAMS]
            pieces = codes[first : first + MAX_STREAMS].split(MAX_FRAMES, dim=1)
            groups.append(torch.cat([self._step_piece(piece, some) for piece in pieces], dim=1))
        return torch.cat(groups)

    @torch.inference_mode()
    def record(self, num_streams: int, num_frames: int = MAX_FRAMES) -> None:
        """Record every graph that chunks of up to `num_frames` frames of streams up to
        `num_streams` will need, so that no request waits for it."""
        rows = 1
        while True:
            for frames in range(1, min(num_frames, MAX_FRAMES) + 1):
                self._graphs.run((rows, frames), lambda key=(rows, frames): self.run_chunk(*key))
            if rows >= min(num_streams, MAX_STREAMS):
                return
            rows *= 2

    def run_chunk(self, num_streams: int, num_frames: int) -> None:
        """What a graph holds: samples of the codes and states in place; reads nothing back."""
        codes, pcm = self._in_place(num_streams, num_frames)
        batch = self._states[:num_streams]
        pcm.copy_(self._decode_tail(self._decode_front(codes, batch), batch).T)

    def _in_place(self, num_streams: int, num_frames: int) -> tuple[Tensor, Tensor]:
        """Where codes [n, num_frames, num_quantizers] go, and PCM [n, num_samples] comes."""
        frames = num_streams * num_frames
        shape = (num_streams, num_frames, self.config.num_quantizers)
        codes = self._codes[: frames * self.config.num_quantizers].view(shape)
        return codes, self._pcm[: frames * self.samples_per_frame].view(num_streams, -1)

    def _step_piece(self, codes: Tensor, states: Sequence[VocoderState]) -> Tensor:
        n, num_frames = codes.shape[:2]
        rows = 1 << (n - 1).bit_length()
        batch = self._states[:n]
        torch.stack([state.values for state in states], out=batch)
        codes_in_place, pcm = self._in_place(rows, num_frames)
        upload(codes_in_place[:n], codes)
        self._graphs.run((rows, num_frames), lambda: self.run_chunk(rows, num_frames))
        for values, state in zip(batch, states, strict=True):
            state.values.copy_(values)
        return pcm[:n].clone()
