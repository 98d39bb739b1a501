"""Encodes reference audio as codec frames: the encoder half of the speech tokenizer (Mimi).

Convolutions reduce the samples to 25 vectors a second, a causal transformer mixes them, another
convolution halves the rate, and two residual quantizers choose the codes.

Source: transformers 4.57.3, modeling_mimi.py, as QwenLM/Qwen3-TTS
modeling_qwen3_tts_tokenizer_v2.py (qwen-tts 0.1.1) calls it: in one piece, with causal attention
over all vectors. The window of the config (`sliding_window`) is not used there.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qwen_megakernel.checkpoint.codec_config import CodecConfig, CodecEncoderConfig
from qwen_megakernel.errors import RecordingError
from qwen_megakernel.vocoder.layers import CLUSTER_USAGE_MIN
from qwen_megakernel.vocoder.transformer import rotary_tables, rotate

# Vectors per call of the convolutions: 3 s. This is a quarter faster than 10 s, because more of the
# work stays in the cache, and a recording of 60 s takes no more memory than one of 3 s.
STEPS_PER_PIECE = 75


class CodecEncoder:
    """The Mimi encoder, in float32 on the CPU.

    It uses neither bf16, in which a quarter of the codes differ, nor a GPU's TF32, in which some
    differ. Speed matters less, because a voice is encoded once, not for each request. Its tensors
    are those of `Checkpoint.load_prefix("encoder.")`.
    """

    def __init__(self, codec_config: CodecConfig, tensors: dict[str, Tensor]):
        config = codec_config.encoder
        self.samples_per_frame = codec_config.samples_per_frame
        self._config, self._tensors = config, tensors
        self._samples_per_step = math.prod(config.upsampling_ratios)
        self._steps_before, self._steps_after = (
            math.ceil(samples / self._samples_per_step) for samples in _reach(config)
        )
        num_semantic = config.num_semantic_quantizers
        self._quantizers = [
            self._quantizer("semantic", num_semantic),
            self._quantizer("acoustic", codec_config.num_code_groups - num_semantic),
        ]

    def _quantizer(self, kind: str, num_codebooks: int) -> tuple[Tensor | None, list[Tensor]]:
        """Return the input projection, if there is one, and the first `num_codebooks` codebooks."""
        name = f"quantizer.{kind}_residual_vector_quantizer"
        codebooks = []
        for book in (f"{name}.layers.{i}.codebook" for i in range(num_codebooks)):
            usage = self._tensors[f"{book}.cluster_usage"].clamp(min=CLUSTER_USAGE_MIN)
            codebooks.append(self._tensors[f"{book}.embed_sum"] / usage[:, None])
        return self._tensors.get(f"{name}.input_proj.weight"), codebooks

    @torch.inference_mode()
    def encode(self, samples: np.ndarray) -> np.ndarray:
        """Encode [num_samples] float32 mono at the codec's sample rate, full scale at 1.

        Returns:
            [ceil(num_samples / samples_per_frame), num_code_groups] int32.
        Raises:
            RecordingError: there are no samples.
        """
        if not len(samples):
            raise RecordingError("The reference has no samples.")
        x = self._convolutions(torch.from_numpy(np.asarray(samples, dtype=np.float32))[None, None])
        x = self._transformer(x.transpose(1, 2)).transpose(1, 2)
        x = self._downsample(x)
        codes = torch.cat([_quantize(x, *quantizer) for quantizer in self._quantizers])
        num_frames = math.ceil(len(samples) / self.samples_per_frame)
        return codes[:, :num_frames].T.to(torch.int32).contiguous().numpy()

    # ---- convolutions ----------------------------------------------------------------------------

    def _convolutions(self, x: Tensor) -> Tensor:
        """[1, 1, num_samples] -> [1, hidden_size, num_steps].

        Each piece begins before what is needed of it, and ends behind; the vectors that its padding
        changes are cut away.
        """
        hop, pieces = self._samples_per_step, []
        for first in range(0, math.ceil(x.shape[2] / hop), STEPS_PER_PIECE):
            begin, end = max(0, first - self._steps_before), first + STEPS_PER_PIECE
            piece = self._convolve(x[:, :, begin * hop : (end + self._steps_after) * hop])
            pieces.append(piece[:, :, first - begin : end - begin])
        return torch.cat(pieces, dim=2)

    def _convolve(self, x: Tensor) -> Tensor:
        """[1, 1, num_samples] -> [1, hidden_size, num_steps]; indices as in `tensor_shapes`."""
        config = self._config
        x = self._conv(x, "0")
        index = 1
        for ratio in reversed(config.upsampling_ratios):
            for unit in range(config.num_residual_layers):
                dilation = config.dilation_growth_rate**unit
                y = self._conv(F.elu(x), f"{index}.block.1", dilation=dilation)
                x = self._conv(F.elu_(y), f"{index}.block.3").add_(x)
                index += 1
            x = self._conv(F.elu_(x), f"{index + 1}", stride=ratio)
            index += 2
        return self._conv(F.elu_(x), f"{index + 1}")

    def _conv(self, x: Tensor, name: str, stride: int = 1, dilation: int = 1) -> Tensor:
        name = f"encoder.layers.{name}.conv"
        weight, bias = self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"]
        left, right = _padding(self._config, weight.shape[2], stride, dilation)
        x = F.pad(x, (left, right + -x.shape[2] % stride))
        return F.conv1d(x, weight, bias, stride=stride, dilation=dilation)

    def _downsample(self, x: Tensor) -> Tensor:
        """Reduce to the frame rate; the only layer whose edges repeat the outermost value."""
        weight = self._tensors.get("downsample.conv.weight")
        if weight is None:  # the convolutions alone reach the frame rate
            return x
        stride = weight.shape[2] // 2
        left, right = _padding(self._config, weight.shape[2], stride)
        x = F.pad(x, (left, right + -x.shape[2] % stride), mode="replicate")
        return F.conv1d(x, weight, stride=stride)

    # ---- transformer -----------------------------------------------------------------------------

    def _transformer(self, x: Tensor) -> Tensor:
        """[1, num_steps, hidden_size] -> the same."""
        config = self._config
        head_dim = config.head_dim
        inv_freq = 1 / config.rope_theta ** (torch.arange(0, head_dim, 2) / head_dim)
        angles = torch.outer(torch.arange(x.shape[1], dtype=torch.float32), inv_freq)
        rotary = rotary_tables(angles)
        for layer in range(config.num_layers):
            x = self._layer(x, f"encoder_transformer.layers.{layer}", rotary)
        return x

    def _layer(self, x: Tensor, name: str, rotary: tuple[Tensor, Tensor]) -> Tensor:
        config, weights = self._config, self._tensors
        normed = self._norm(x, f"{name}.input_layernorm")
        q, k, v = (
            F.linear(normed, weights[f"{name}.self_attn.{part}_proj.weight"])
            .unflatten(2, (-1, config.head_dim))
            .transpose(1, 2)
            for part in "qkv"
        )
        heads = F.scaled_dot_product_attention(
            rotate(q, *rotary),
            rotate(k, *rotary),
            v,
            is_causal=True,
            enable_gqa=config.num_heads != config.num_kv_heads,
        )
        attended = F.linear(
            heads.transpose(1, 2).flatten(2), weights[f"{name}.self_attn.o_proj.weight"]
        )
        x = x + weights[f"{name}.self_attn_layer_scale.scale"] * attended
        normed = self._norm(x, f"{name}.post_attention_layernorm")
        hidden = F.gelu(F.linear(normed, weights[f"{name}.mlp.fc1.weight"]))
        hidden = F.linear(hidden, weights[f"{name}.mlp.fc2.weight"])
        return x + weights[f"{name}.mlp_layer_scale.scale"] * hidden

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"]
        return F.layer_norm(x, x.shape[-1:], weight, bias, self._config.norm_eps)


def _reach(config: CodecEncoderConfig) -> tuple[int, int]:
    """Return how many samples before and behind its own a vector of the convolutions depends on."""
    layers = [(1, config.kernel_size, 1, 1)]  # samples per input, kernel, stride and dilation
    rate = 1
    for ratio in reversed(config.upsampling_ratios):
        for unit in range(config.num_residual_layers):
            dilation = config.dilation_growth_rate**unit
            layers.append((rate, config.residual_kernel_size, 1, dilation))
        layers.append((rate, 2 * ratio, ratio, 1))
        rate *= ratio
    layers.append((rate, config.last_kernel_size, 1, 1))
    before = after = 0
    for rate, *layer in layers:
        left, right = _padding(config, *layer)
        before, after = before + rate * left, after + rate * right
    return before, after


def _padding(
    config: CodecEncoderConfig, kernel: int, stride: int, dilation: int = 1
) -> tuple[int, int]:
    """Return a layer's padding on the left and on the right of whole strides."""
    total = dilation * (kernel - 1) + 1 - stride
    right = 0 if config.use_causal_conv else total // 2
    return total - right, right


def _quantize(x: Tensor, input_proj: Tensor | None, codebooks: list[Tensor]) -> Tensor:
    """[1, hidden_size, num_frames] -> [num_codebooks, num_frames] int64, nearest entries.

    Each codebook encodes the residual of the previous ones.
    """
    if input_proj is not None:
        x = F.conv1d(x, input_proj)
    residual = x[0].T
    codes = []
    for codebook in codebooks:
        nearest = torch.cdist(residual[None], codebook[None])[0].argmin(dim=1)
        residual = residual - codebook[nearest]
        codes.append(nearest)
    return torch.stack(codes)
