"""The speech tokenizer's decoder as a module that becomes a Core ML model.

It is the network of `vocoder` in convolutions of PyTorch on [1, channels, 1, steps]. As in the
vocoder, the state has the last inputs of every layer, so that chunks equal the whole; here it is
one input and one output of the model.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from qwen_megakernel.checkpoint.loading import Checkpoint
from qwen_megakernel.checkpoint.weight_reader import WeightReader
from qwen_megakernel.decoders.coreml.decoder_models import HIDDEN_SCORE, Module, conv1x1, rms_norm
from qwen_megakernel.vocoder.layers import LAYER_NORM_EPS, Codebooks, Layout, Snake
from qwen_megakernel.vocoder.transformer import Transformer
from qwen_megakernel.vocoder.vocoder import DILATIONS


class _Memory:
    """The last inputs of the layers, [1, num_values], in the order in which the layers read them;
    None: those of a new stream."""

    def __init__(self, state: Tensor | None):
        self._state, self._at = state, 0
        self._kept: list[Tensor] = []

    def take(self, width: int, num_steps: int) -> Tensor:
        """Return the next values of the state, [1, width, 1, num_steps]."""
        begin, self._at = self._at, self._at + width * num_steps
        if self._state is None:
            return torch.zeros(1, width, 1, num_steps)
        return self._state[:, begin : self._at].view(1, width, 1, num_steps)

    def keep(self, x: Tensor) -> None:
        """Store the values that the same call of `take` returns in the next chunk."""
        self._kept.append(x.reshape(1, -1))

    def extend(self, x: Tensor, num_steps: int) -> Tensor:
        """Return x [1, width, 1, T] with the `num_steps` steps before it in front."""
        if not num_steps:
            return x
        x = torch.cat((self.take(int(x.shape[1]), num_steps), x), dim=3)
        self.keep(x[..., -num_steps:])
        return x

    def new_state(self) -> Tensor:
        """Return the state after this chunk, [1, num_values]."""
        return torch.cat(self._kept, dim=1)


class SpeechDecoder(Module):
    """The decoder of `num_frames` frames at once, with a state of `num_values` values.

    Chunks therefore equal the whole.
    """

    def __init__(self, checkpoint: Checkpoint, num_frames: int):
        super().__init__()
        self.config, self.num_frames = checkpoint.codec_config.decoder, num_frames
        weights = WeightReader(checkpoint.codec_decoder, torch.device("cpu"), torch.float32)
        for name in checkpoint.codec_decoder:
            if name.endswith(".alpha"):
                # Store the results of alpha and beta: Core ML's inverse adds 1e-4 to a divisor.
                snake = Snake(weights.at(name.removesuffix(".alpha")))
                self.keep(name, snake.frequency[:, None, None])
                self.keep(name.removesuffix("alpha") + "beta", snake.amplitude[:, None, None])
            elif not name.startswith("quantizer.") and not name.endswith(".beta"):
                self.keep(name, weights[name])
        config = self.config
        codebooks = Codebooks(weights.at("quantizer"), config)
        self.keep("codebooks", codebooks.tables)
        self.keep("first_rows", codebooks.first_rows[:, None].to(torch.int32))
        self.keep("first_proj", codebooks.first_proj[:, :, None, None])
        self.keep("rest_proj", codebooks.rest_proj[:, :, None, None])
        # The vocoder's transformer computes the tables.
        transformer = Transformer(weights.at("pre_transformer"), config, Layout(), num_frames)
        self.num_past = transformer.num_past
        self.keep("cos", transformer.cos.T)
        self.keep("signed_sin", transformer.signed_sin.T)
        self.keep("in_window", transformer.in_window)
        self.keep("positions", transformer.positions.float())
        with torch.no_grad():
            codes = torch.zeros(1, config.num_quantizers, num_frames, dtype=torch.int32)
            self.num_values = self(codes, None)[1].shape[1]

    def forward(self, codes: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Decode the next frames of a stream.

        Args:
            codes: [1, num_quantizers, num_frames] int32.
            state: [1, num_values]; zeros or None for a new stream.
        Returns:
            [1, num_frames * samples_per_frame] PCM in [-1, 1], and the state after these frames.
        """
        config, memory = self.config, _Memory(state)
        x = self._transform(self._conv(self._look_up(codes), "pre_conv.conv", memory), memory)
        for i, ratio in enumerate(config.upsampling_ratios):
            x = self._upsample(x, f"upsample.{i}.0.conv", ratio, memory)
            x = self._conv_next(x, f"upsample.{i}.1", memory)
        x = self._conv(x, "decoder.0.conv", memory)
        for i, rate in enumerate(config.upsample_rates, start=1):
            block = f"decoder.{i}.block"
            x = self._upsample(self._snake(x, f"{block}.0"), f"{block}.1.conv", rate, memory)
            for j, dilation in enumerate(DILATIONS, start=2):
                unit = f"{block}.{j}"
                y = self._snake(x, f"{unit}.act1")
                y = self._conv(y, f"{unit}.conv1.conv", memory, dilation)
                x = x + self._conv(self._snake(y, f"{unit}.act2"), f"{unit}.conv2.conv", memory)
        last = len(config.upsample_rates) + 1
        x = self._conv(self._snake(x, f"decoder.{last}"), f"decoder.{last + 1}.conv", memory)
        return x.clamp(-1, 1).flatten(1), memory.new_state()

    def _weight(self, name: str) -> Tensor:
        return getattr(self, name.replace(".", "_"))

    def _look_up(self, codes: Tensor) -> Tensor:
        entries = F.embedding(codes + self.first_rows, self.codebooks)  # [1, quantizers, T, dim]
        first, rest = (
            part.transpose(1, 2)[:, :, None] for part in (entries[:, 0], entries[:, 1:].sum(1))
        )
        return conv1x1(first, self.first_proj) + conv1x1(rest, self.rest_proj)

    def _conv(self, x: Tensor, name: str, memory: _Memory, dilation: int = 1) -> Tensor:
        weight = self._weight(f"{name}.weight")
        x = memory.extend(x, (int(weight.shape[2]) - 1) * dilation)
        bias = self._weight(f"{name}.bias")
        return F.conv2d(x, weight[:, :, None], bias, dilation=(1, dilation))

    def _upsample(self, x: Tensor, name: str, stride: int, memory: _Memory) -> Tensor:
        """Run a transposed convolution without its last outputs, which look ahead."""
        weight, num_steps = self._weight(f"{name}.weight"), int(x.shape[3])
        num_past = int(weight.shape[2]) // stride - 1
        x = memory.extend(x, num_past)
        bias = self._weight(f"{name}.bias")
        y = F.conv_transpose2d(x, weight[:, :, None], bias, stride=(1, stride))
        return y[..., num_past * stride : (num_past + num_steps) * stride]

    def _snake(self, x: Tensor, name: str) -> Tensor:
        frequency, amplitude = (self._weight(f"{name}.{part}") for part in ("alpha", "beta"))
        return x + torch.sin(x * frequency).square() * amplitude

    def _conv_next(self, x: Tensor, name: str, memory: _Memory) -> Tensor:
        def affine(part: str, y: Tensor) -> Tensor:
            weight = self._weight(f"{name}.{part}.weight")[:, :, None, None]
            return conv1x1(y, weight, self._weight(f"{name}.{part}.bias"))

        weight = self._weight(f"{name}.dwconv.conv.weight")
        y = F.conv2d(
            memory.extend(x, int(weight.shape[2]) - 1),
            weight[:, :, None],
            self._weight(f"{name}.dwconv.conv.bias"),
            groups=int(weight.shape[0]),
        )
        y = y - y.mean(1, keepdim=True)
        y = y * torch.rsqrt(y.square().mean(1, keepdim=True) + LAYER_NORM_EPS)
        scale, shift = (self._weight(f"{name}.norm.{part}") for part in ("weight", "bias"))
        y = affine("pwconv1", y * scale[:, None, None] + shift[:, None, None])
        y = affine("pwconv2", F.gelu(y))
        return x + y * self._weight(f"{name}.gamma")[:, None, None]

    def _transform(self, x: Tensor, memory: _Memory) -> Tensor:
        config, eps = self.config, self.config.rms_norm_eps
        num_keys = memory.take(1, 1)  # number of decoded past frames, at most the window
        memory.keep((num_keys + self.num_frames).clamp(max=self.num_past))
        is_valid = self.positions >= self.num_past - num_keys.flatten()
        scores_there = torch.where(self.in_window & is_valid, 0.0, HIDDEN_SCORE)
        queries_per_key = config.num_heads // config.num_kv_heads
        scores_there = torch.cat([scores_there] * queries_per_key)

        def project(name: str, y: Tensor) -> Tensor:
            return conv1x1(y, self._weight(f"pre_transformer.{name}.weight")[:, :, None, None])

        def norm(name: str, y: Tensor) -> Tensor:
            weight = self._weight(f"pre_transformer.{name}.weight")
            return rms_norm(y, weight[:, None, None], eps)

        def rotate(heads: Tensor) -> Tensor:
            """Rotate heads [heads, head_dim, steps] at the last of all positions."""
            half, first = config.head_dim // 2, -int(heads.shape[2])
            turned = torch.cat((heads[:, half:], heads[:, :half]), dim=1)
            return heads * self.cos[:, first:] + turned * self.signed_sin[:, first:]

        x = project("input_proj", x) + self._bias("pre_transformer.input_proj")
        for i in range(config.num_layers):
            layer = f"layers.{i}"
            y = norm(f"{layer}.input_layernorm", x)
            q, k, v = (project(f"{layer}.self_attn.{n}_proj", y) for n in "qkv")
            # As in vocoder/transformer.py, the state has keys before their rotation.
            k = rotate(
                memory.extend(k, self.num_past).view(config.num_kv_heads, config.head_dim, -1)
            )
            v = memory.extend(v, self.num_past).view(config.num_kv_heads, config.head_dim, -1)
            q = rotate(q.view(config.num_heads, config.head_dim, -1)).transpose(1, 2)
            q = q.reshape(config.num_kv_heads, -1, config.head_dim)
            scores = (q * config.head_dim**-0.5) @ k + scores_there
            mixed = torch.softmax(scores, dim=-1) @ v.transpose(1, 2)
            mixed = mixed.view(config.num_heads, self.num_frames, config.head_dim).transpose(1, 2)
            mixed = mixed.reshape(1, config.num_heads * config.head_dim, 1, self.num_frames)
            attended = project(f"{layer}.self_attn.o_proj", mixed)
            x = x + attended * self._scale(f"{layer}.self_attn_layer_scale")
            y = norm(f"{layer}.post_attention_layernorm", x)
            y = F.silu(project(f"{layer}.mlp.gate_proj", y)) * project(f"{layer}.mlp.up_proj", y)
            x = x + project(f"{layer}.mlp.down_proj", y) * self._scale(f"{layer}.mlp_layer_scale")
        return project("output_proj", norm("norm", x)) + self._bias("pre_transformer.output_proj")

    def _bias(self, name: str) -> Tensor:
        return self._weight(f"{name}.bias")[:, None, None]

    def _scale(self, name: str) -> Tensor:
        return self._weight(f"pre_transformer.{name}.scale")[:, None, None]
