"""The SNAC codec: turns recordings into codes, and codes into audio, whole or as frames arrive.

The package `snac` does both; this module adds frames of seven codes, a noise that does not change
(`noise`), and streaming. The decoder looks a few frames to both sides, so a chunk is decoded with
its neighbours, and only its own samples are kept. The ends of a stream have no neighbours, as when
the whole is decoded.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
from torch import Tensor, nn

from qwen_megakernel.checkpoint import hub
from qwen_megakernel.checkpoint.config_fields import (
    CodebookSize,
    Keys,
    Limits,
    Ratios,
    SampleRate,
    Width,
    read_json,
)
from qwen_megakernel.cloning import recordings
from qwen_megakernel.errors import DatasetError, ModelFilesError, UnsupportedModel, UsageError
from qwen_megakernel.installing import require
from qwen_megakernel.sheen import random_models
from qwen_megakernel.sheen.codes import CODES_PER_FRAME, LAYER_RATIO, deinterleave, interleave

if TYPE_CHECKING:
    from snac import SNAC

DEFAULT_SNAC = "hubertsiuzdak/snac_24khz"
CONFIG, WEIGHTS = "config.json", "pytorch_model.bin"


def find_snac(source: str, *, local_files_only: bool = False, progress: bool = True) -> Path:
    """Return the folder of a SNAC: `source` itself, the download of that hub id, or for
    "tiny-random-snac" one with random weights.

    Raises:
        ModelFilesError: a file is missing, or the hub cannot be reached.
    """
    if source == random_models.SNAC:
        return random_models.codec(_snac_class())
    folder = Path(os.path.expanduser(source))
    if not os.path.isdir(folder):
        if not hub.is_repo_id(source):
            raise ModelFilesError(f"There is no folder {source}, and it is not a hub id.")
        names = (CONFIG, WEIGHTS)
        return hub.fetch(
            source,
            names,
            accept=lambda folder: None,
            local_files_only=local_files_only,
            progress=progress,
            option="--snac",
        )
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise ModelFilesError(
                f"{folder} has no {name}.", f"A SNAC is a folder with {CONFIG} and {WEIGHTS}."
            )
    return folder


@dataclass(frozen=True, slots=True)
class SnacConfig:
    """The config.json of a SNAC. The package `snac` reads the file, too, once this has checked it.

    Defaults are those of the package.
    """

    sampling_rate: SampleRate
    encoder_dim: Width
    encoder_rates: Ratios
    decoder_dim: Width
    decoder_rates: Ratios
    codebook_size: CodebookSize
    codebook_dim: Width
    vq_strides: Ratios
    latent_dim: Annotated[int | None, Limits(1, 2**16)] = None
    attn_window_size: Annotated[int | None, Limits(1, 4096)] = 32
    noise: bool = True
    depthwise: bool = True


def read_snac_config(folder: Path) -> SnacConfig:
    """Read and check the config.json of a SNAC.

    Raises:
        ModelFilesError: the file cannot be read, a key is missing, or a value is outside its
            limits.
        UnsupportedModel: the layers are not 1 : 2 : 4, or there is attention, which needs more
            context than a chunk has.
    """
    config = Keys(read_json(folder / CONFIG), str(folder / CONFIG)).read(SnacConfig)
    if config.vq_strides != tuple(LAYER_RATIO[-1] // count for count in LAYER_RATIO):
        raise UnsupportedModel(
            f"{folder}: vq_strides are {list(config.vq_strides)}; Sheen needs [4, 2, 1].",
            hint=f"Use {DEFAULT_SNAC}.",
        )
    if config.attn_window_size is not None:
        raise UnsupportedModel(
            f"{folder}: attn_window_size is {config.attn_window_size}.",
            "With attention a chunk would need its whole window; the 24 kHz SNAC has none.",
            f"Use {DEFAULT_SNAC}.",
        )
    return config


@dataclass(slots=True)
class VocoderState:
    """The memory of one stream: its last frames, and the number of all its frames."""

    num_frames: int = 0
    recent: np.ndarray = field(
        default_factory=lambda: np.empty((0, CODES_PER_FRAME), dtype=np.int32)
    )


class SnacCodec:
    """One SNAC on one device, in float32, from a folder with config.json and pytorch_model.bin.

    Raises:
        MissingPackageError: the package `snac` is not installed.
        ModelFilesError, UnsupportedModel: as of `read_snac_config`; or the weights do not fit.
    """

    def __init__(self, folder: Path, device: torch.device | str = "cpu"):
        config = read_snac_config(folder)
        self._snac = _load(folder).to(device)
        from qwen_megakernel.sheen.noise import address_noise  # imports snac

        self._place = address_noise(self._snac.decoder)
        self.device = torch.device(device)
        self.sample_rate = config.sampling_rate
        self.codebook_size = config.codebook_size
        self.samples_per_frame = math.prod(config.encoder_rates) * config.vq_strides[0]
        self.lookback, self.lookahead = _context(self._snac.decoder, self.samples_per_frame)

    @property
    def seconds_per_frame(self) -> float:
        """Duration of a frame: 0.0853 s at 24 kHz."""
        return self.samples_per_frame / self.sample_rate

    @torch.inference_mode()
    def encode(self, samples: np.ndarray, rate: int) -> np.ndarray:
        """Encode [num_samples] float32 mono: [num_frames, 7] int32, the last padded with silence.

        Raises:
            DatasetError: there are no samples, or one is not a number.
        """
        if not len(samples) or not np.isfinite(samples).all():
            fault = "holds NaN or infinity" if len(samples) else "is empty"
            raise DatasetError(f"The recording {fault}.")
        samples = recordings.resample(samples, rate, self.sample_rate)
        codes = self._snac.encode(torch.from_numpy(samples).to(self.device)[None, None])
        return interleave([layer[0].cpu().numpy() for layer in codes])

    def decode(self, codes: np.ndarray | Tensor) -> np.ndarray:
        """[num_frames, 7] codes -> [num_frames * samples_per_frame] float32 in [-1, 1]."""
        pcm = self.step(torch.as_tensor(codes)[None], [self.new_state()])
        return pcm[0].cpu().numpy()

    # ---- as a vocoder of the engine (stages.FrameVocoder) ----------------------------------------

    def new_state(self) -> VocoderState:
        return VocoderState()

    def warm(self, codes: np.ndarray, state: VocoderState) -> None:
        """Advance a stream over [num_frames, 7] frames without computing their audio."""
        self._remember(state, np.asarray(codes, dtype=np.int32))

    @torch.inference_mode()
    def step(self, codes: Tensor, states: Sequence[VocoderState], *ahead: Tensor) -> Tensor:
        """Decode the next frames of n streams, each by itself, so that its samples do not depend on
        other streams.

        Raises:
            UsageError: the codebooks do not have one of the codes.
        """
        rows = codes.cpu().numpy().astype(np.int32)
        behind = ahead[0].cpu().numpy().astype(np.int32) if ahead else rows[:, :0]
        seen = np.concatenate([rows, behind], axis=1)
        if seen.size and not (seen.min() >= 0 and seen.max() < self.codebook_size):
            raise UsageError(
                f"The codes are {seen.min()} .. {seen.max()}; this SNAC has 0 .. "
                f"{self.codebook_size - 1}."
            )
        pcm = []
        for row, future, state in zip(rows, behind, states, strict=True):
            window = np.concatenate([state.recent, row, future])
            first = state.num_frames - len(state.recent)
            begin = len(state.recent) * self.samples_per_frame
            self._place.first_frame, self._place.num_frames = first, len(window)
            layers = [torch.from_numpy(layer).long() for layer in deinterleave(window)]
            sound = self._snac.decode([layer.to(self.device)[None] for layer in layers])[0, 0]
            pcm.append(sound[begin : begin + len(row) * self.samples_per_frame])
            self._remember(state, row)
        return torch.stack(pcm)

    def _remember(self, state: VocoderState, frames: np.ndarray) -> None:
        state.num_frames += len(frames)
        recent = np.concatenate([state.recent, frames])
        state.recent = recent[max(0, len(recent) - self.lookback) :]


def _snac_class() -> type[SNAC]:
    with require("sheen", by="Sheen", package="the package snac"):
        from snac import SNAC
    return SNAC


def _load(folder: Path) -> SNAC:
    snac_class = _snac_class()
    try:
        return snac_class.from_pretrained(str(folder)).eval()
    except Exception as error:  # torch.load and load_state_dict raise many kinds
        raise ModelFilesError(
            f"{folder / WEIGHTS} cannot be loaded: {str(error).splitlines()[0]}",
            "The file is damaged, or belongs to another config.json.",
        ) from error


def _context(decoder: nn.Module, samples_per_frame: int) -> tuple[int, int]:
    """Return how many frames before and after a frame affect its samples.

    It walks back from the samples of frame 0 through every convolution. Residual branches are wider
    than their shortcuts, so the list of all convolutions is the widest path.
    """
    first, last = 0, samples_per_frame - 1
    for layer in reversed(list(decoder.modules())):
        if not isinstance(layer, nn.Conv1d | nn.ConvTranspose1d):
            continue
        assert not isinstance(layer.padding, str)  # "same" or "valid", which SNAC does not use
        padding, stride = layer.padding[0], layer.stride[0]
        reach = layer.dilation[0] * (layer.kernel_size[0] - 1)
        if isinstance(layer, nn.ConvTranspose1d):
            first = -((reach - padding - first) // stride)
            last = (last + padding) // stride
        else:
            first = first * stride - padding
            last = last * stride - padding + reach
    positions = LAYER_RATIO[-1]  # positions of the latents in a frame
    return -(first // positions), last // positions
