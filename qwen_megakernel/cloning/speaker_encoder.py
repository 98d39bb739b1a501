"""Turns reference audio into an x-vector: log-mel spectrogram and ECAPA-TDNN.

The x-vector is the speaker row of the prompt, without normalisation.

Source: QwenLM/Qwen3-TTS, modeling_qwen3_tts.py, mel_spectrogram and Qwen3TTSSpeakerEncoder
(qwen-tts 0.1.1).
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qwen_megakernel.checkpoint.config import SpeakerEncoderConfig
from qwen_megakernel.errors import RecordingError

# The constants of the spectrogram are literals of the official extract_speaker_embedding.
FFT_SIZE = 1024  # window and transform
HOP_SIZE = 256
MAX_HZ = 12000
POWER_FLOOR = 1e-9  # added under the square root of the magnitude
MEL_FLOOR = 1e-5  # the lowest value whose logarithm is taken

VARIANCE_FLOOR = 1e-12  # for attentive statistics pooling


class SpeakerEncoder:
    """ECAPA-TDNN of a Base checkpoint, in float32 on the CPU.

    Its tensors are those of `Checkpoint.load_prefix("speaker_encoder.")`.
    """

    def __init__(self, config: SpeakerEncoderConfig, tensors: dict[str, Tensor]):
        self.config = config
        self._tensors = {name: tensor.float() for name, tensor in tensors.items()}
        self._window = torch.hann_window(FFT_SIZE)
        self._mel_filters = torch.from_numpy(
            mel_filters(config.mel_dim, config.sample_rate)
        ).float()

    @torch.inference_mode()
    def encode(self, samples: np.ndarray) -> np.ndarray:
        """Return the x-vector of a speaker, [enc_dim] float32.

        Args:
            samples: [num_samples] float32 mono at `config.sample_rate`, full scale at 1.
        Raises:
            RecordingError: there are fewer samples than the widest layer spans (about 0.1 s).
        """
        config = self.config
        reach = max(
            dilation * (kernel - 1)
            for kernel, dilation in zip(config.kernel_sizes, config.dilations, strict=True)
        )
        if len(samples) // HOP_SIZE <= reach:
            raise RecordingError(
                f"{len(samples)} samples are too few to clone a voice; "
                f"{(reach + 1) * HOP_SIZE} are needed."
            )
        x = self.mel_spectrogram(torch.from_numpy(np.asarray(samples, dtype=np.float32)))
        x = self._tdnn(x[None], "blocks.0", config.dilations[0])
        outputs = []
        for block in range(1, len(config.channels) - 1):
            x = self._se_res2net(x, f"blocks.{block}", config.dilations[block])
            outputs.append(x)
        x = self._tdnn(torch.cat(outputs, dim=1), "mfa", config.dilations[-1])
        return self._conv(self._pool(x), "fc").flatten().numpy()

    @torch.inference_mode()
    def mel_spectrogram(self, samples: Tensor) -> Tensor:
        """[num_samples] float32 -> [mel_dim, num_samples // HOP_SIZE] logarithms of magnitudes."""
        margin = (FFT_SIZE - HOP_SIZE) // 2
        padded = F.pad(samples[None], (margin, margin), mode="reflect")[0]
        spectrum = torch.stft(
            padded, FFT_SIZE, HOP_SIZE, window=self._window, center=False, return_complex=True
        )
        magnitude = torch.sqrt(torch.view_as_real(spectrum).square().sum(-1) + POWER_FLOOR)
        return (self._mel_filters @ magnitude).clamp(min=MEL_FLOOR).log()

    def _conv(self, x: Tensor, name: str, dilation: int = 1) -> Tensor:
        """[1, in_channels, num_frames] -> [1, out_channels, num_frames], edges reflected."""
        weight = self._tensors[f"{name}.weight"]
        reach = dilation * (weight.shape[2] - 1)
        if reach:
            x = F.pad(x, (reach // 2, reach - reach // 2), mode="reflect")
        return F.conv1d(x, weight, self._tensors[f"{name}.bias"], dilation=dilation)

    def _tdnn(self, x: Tensor, name: str, dilation: int = 1) -> Tensor:
        return self._conv(x, f"{name}.conv", dilation).relu_()

    def _se_res2net(self, x: Tensor, name: str, dilation: int) -> Tensor:
        """Residual block: mix, a ladder of convolutions over channel groups, mix, gate."""
        first, *others = self._tdnn(x, f"{name}.tdnn1").chunk(self.config.res2net_scale, dim=1)
        outputs = [first]
        for i, part in enumerate(others):
            if i > 0:
                part = part + outputs[-1]
            outputs.append(self._tdnn(part, f"{name}.res2net_block.blocks.{i}", dilation))
        y = self._tdnn(torch.cat(outputs, dim=1), f"{name}.tdnn2")
        gate = self._conv(y.mean(dim=2, keepdim=True), f"{name}.se_block.conv1").relu_()
        gate = self._conv(gate, f"{name}.se_block.conv2").sigmoid_()
        return torch.addcmul(x, y, gate)

    def _pool(self, x: Tensor) -> Tensor:
        """Attentive statistics: [1, channels, num_frames] -> [1, 2 * channels, 1].

        The attention takes each frame with the mean and deviation of all frames. Those two are the
        same in every frame, so their part of the convolution is one column, computed once.
        """
        weight = self._tensors["asp.tdnn.conv.weight"]
        over_frames, over_statistics = weight.split([x.shape[1], 2 * x.shape[1]], dim=1)
        shared = F.conv1d(
            _statistics(x, torch.full_like(x[:, :1], 1 / x.shape[2])),
            over_statistics,
            self._tensors["asp.tdnn.conv.bias"],
        )
        hidden = (F.conv1d(x, over_frames) + shared).relu_().tanh_()
        return _statistics(x, self._conv(hidden, "asp.conv").softmax(dim=2))


def mel_filters(num_filters: int, rate: int) -> np.ndarray:
    """Return triangles of equal area on Slaney's scale, [num_filters, num_frequencies] float64.

    15 mels lead evenly to 1 kHz; above, 27 mels multiply a frequency by 6.4.

    Source: transformers.audio_utils.mel_filter_bank, whose import takes seconds.
    """
    highest = 15 + np.log(MAX_HZ / 1000) * (27 / np.log(6.4))
    mels = np.linspace(0, highest, num_filters + 2)
    hertz = np.where(mels < 15, 200 * mels / 3, 1000 * np.exp(np.log(6.4) / 27 * (mels - 15)))
    slopes = hertz[:, None] - np.linspace(0, rate // 2, FFT_SIZE // 2 + 1)
    widths = np.diff(hertz)[:, None]
    triangles = np.maximum(0, np.minimum(-slopes[:-2] / widths[:-1], slopes[2:] / widths[1:]))
    return triangles * (2 / (hertz[2:] - hertz[:-2]))[:, None]


def _statistics(x: Tensor, share: Tensor) -> Tensor:
    """Return weighted mean and deviation over frames, concatenated: [1, 2 * channels, 1]."""
    mean = (share * x).sum(dim=2, keepdim=True)
    variance = (share * (x - mean).square()).sum(dim=2, keepdim=True)
    return torch.cat([mean, variance.clamp(min=VARIANCE_FLOOR).sqrt()], dim=1)
