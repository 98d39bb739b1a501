"""Names and shapes of all tensors that a checkpoint must hold, derived from its config.

The lists are exact: a model with more or fewer names, or another shape, is another model.
Source: the parameters and persistent buffers that QwenLM/Qwen3-TTS (qwen-tts 0.1.1) and the Mimi
encoder of transformers 4.57.3 build from the same config files.
"""

from collections.abc import Iterator
from math import ceil, prod

from qwen_megakernel.checkpoint.codec_config import (
    CodecConfig,
    CodecDecoderConfig,
    CodecEncoderConfig,
)
from qwen_megakernel.checkpoint.config import ModelConfig, SpeakerEncoderConfig, StackConfig

Shape = tuple[int, ...]
Entries = Iterator[tuple[str, Shape]]

SPEAKER_ENCODER_PREFIX = "speaker_encoder."
CODEC_ENCODER_PREFIX = "encoder."
CODEC_DECODER_PREFIX = "decoder."
TALKER_PREFIX = "talker."

# The vocoder's kernel sizes and its ConvNeXt widening are literals in the official code.
PRE_CONV_KERNEL = 3
CONV_KERNEL = 7
CONVNEXT_EXPANSION = 4
NUM_RESIDUAL_UNITS = 3
NUM_SEMANTIC_QUANTIZERS = 1


def model_tensors(config: ModelConfig) -> dict[str, Shape]:
    """Return names and shapes of model.safetensors: talker, code predictor, any speaker encoder."""
    tensors = dict(_prefixed(TALKER_PREFIX, _talker(config)))
    if config.speaker_encoder:
        tensors.update(_prefixed(SPEAKER_ENCODER_PREFIX, _speaker_encoder(config.speaker_encoder)))
    return tensors


def codec_tensors(config: CodecConfig, *, has_encoder: bool = True) -> dict[str, Shape]:
    """Return names and shapes of the codec's model.safetensors: vocoder and any Mimi encoder."""
    tensors = dict(_prefixed(CODEC_DECODER_PREFIX, vocoder_tensors(config.decoder)))
    if has_encoder:
        tensors.update(_prefixed(CODEC_ENCODER_PREFIX, _codec_encoder(config.encoder)))
    return tensors


def _prefixed(prefix: str, entries: Entries) -> Entries:
    for name, shape in entries:
        yield prefix + name, shape


def _layer(name: str, *shape: int, bias: bool = True) -> Entries:
    """Yield a linear layer [out, in], a convolution [out, in, kernel] or a LayerNorm [size]."""
    yield f"{name}.weight", shape
    if bias:
        yield f"{name}.bias", shape[:1]


def _conv_transpose(name: str, into: int, out: int, kernel: int) -> Entries:
    yield f"{name}.weight", (into, out, kernel)
    yield f"{name}.bias", (out,)


def _talker(config: ModelConfig) -> Entries:
    talker, predictor = config.talker, config.predictor
    hidden, text_hidden = talker.stack.hidden_size, talker.text_hidden_size
    size, width = predictor.vocab_size, predictor.stack.hidden_size
    yield "model.text_embedding.weight", (talker.text_vocab_size, text_hidden)
    yield from _layer("text_projection.linear_fc1", text_hidden, text_hidden)
    yield from _layer("text_projection.linear_fc2", hidden, text_hidden)
    yield "model.codec_embedding.weight", (talker.vocab_size, hidden)
    yield "codec_head.weight", (talker.vocab_size, hidden)
    yield from _prefixed("model.", stack_tensors(talker.stack))
    yield from _prefixed("code_predictor.model.", stack_tensors(predictor.stack))
    for group in range(talker.num_code_groups - 1):
        # Rows of the talker's width, because they are summed into the talker's next input.
        yield f"code_predictor.model.codec_embedding.{group}.weight", (size, hidden)
        yield f"code_predictor.lm_head.{group}.weight", (size, width)
    if config.has_projection:
        yield from _layer("code_predictor.small_to_mtp_projection", width, hidden)


def stack_tensors(stack: StackConfig) -> Entries:
    """Yield names and shapes of a stack's layers and final norm: "layers.0...", "norm.weight"."""
    hidden, inter = stack.hidden_size, stack.intermediate_size
    for layer in range(stack.num_layers):
        name = f"layers.{layer}"
        yield from _attention(name, hidden, stack.q_size, stack.kv_size, bias=stack.qkv_bias)
        if stack.qk_norm:
            yield f"{name}.self_attn.q_norm.weight", (stack.head_dim,)
            yield f"{name}.self_attn.k_norm.weight", (stack.head_dim,)
        yield from _gated_mlp(f"{name}.mlp", hidden, inter)
        yield f"{name}.input_layernorm.weight", (hidden,)
        yield f"{name}.post_attention_layernorm.weight", (hidden,)
    yield "norm.weight", (hidden,)


def _attention(name: str, hidden: int, q_size: int, kv_size: int, *, bias: bool = False) -> Entries:
    for each, size in (("q", q_size), ("k", kv_size), ("v", kv_size)):
        yield from _layer(f"{name}.self_attn.{each}_proj", size, hidden, bias=bias)
    yield from _layer(f"{name}.self_attn.o_proj", hidden, q_size, bias=False)


def _gated_mlp(name: str, hidden: int, inter: int) -> Entries:
    yield from _layer(f"{name}.gate_proj", inter, hidden, bias=False)
    yield from _layer(f"{name}.up_proj", inter, hidden, bias=False)
    yield from _layer(f"{name}.down_proj", hidden, inter, bias=False)


def _speaker_encoder(config: SpeakerEncoderConfig) -> Entries:
    channels, kernels = config.channels, config.kernel_sizes
    yield from _layer("blocks.0.conv", channels[0], config.mel_dim, kernels[0])
    for block in range(1, len(channels) - 1):
        name, width = f"blocks.{block}", channels[block]
        yield from _layer(f"{name}.tdnn1.conv", width, channels[block - 1], 1)
        part = width // config.res2net_scale
        for i in range(config.res2net_scale - 1):
            yield from _layer(f"{name}.res2net_block.blocks.{i}.conv", part, part, kernels[block])
        yield from _layer(f"{name}.tdnn2.conv", width, width, 1)
        yield from _layer(f"{name}.se_block.conv1", config.se_channels, width, 1)
        yield from _layer(f"{name}.se_block.conv2", width, config.se_channels, 1)
    width = channels[-1]
    yield from _layer("mfa.conv", width, width, kernels[-1])
    # Attentive pooling takes each channel with its mean and its deviation over time.
    yield from _layer("asp.tdnn.conv", config.attention_channels, 3 * width, 1)
    yield from _layer("asp.conv", width, config.attention_channels, 1)
    yield from _layer("fc", config.enc_dim, 2 * width, 1)


def vocoder_tensors(config: CodecDecoderConfig) -> Entries:
    """Yield names, without "decoder.", and shapes of the vocoder's tensors."""
    codebook_width = config.codebook_dim // 2
    semantic = NUM_SEMANTIC_QUANTIZERS
    for name, count in (("rvq_first", semantic), ("rvq_rest", config.num_quantizers - semantic)):
        rvq = f"quantizer.{name}"
        yield from _layer(f"{rvq}.input_proj", codebook_width, config.codebook_dim, 1, bias=False)
        yield from _layer(f"{rvq}.output_proj", config.codebook_dim, codebook_width, 1, bias=False)
        for i in range(count):
            codebook = f"{rvq}.vq.layers.{i}._codebook"
            yield f"{codebook}.cluster_usage", (config.codebook_size,)
            yield f"{codebook}.embedding_sum", (config.codebook_size, codebook_width)
    latent = config.latent_dim
    yield from _layer("pre_conv.conv", latent, config.codebook_dim, PRE_CONV_KERNEL)
    yield from _prefixed("pre_transformer.", _pre_transformer(config))
    for i, ratio in enumerate(config.upsampling_ratios):
        name = f"upsample.{i}"
        yield from _conv_transpose(f"{name}.0.conv", latent, latent, ratio)
        yield from _layer(f"{name}.1.dwconv.conv", latent, 1, CONV_KERNEL)
        yield from _layer(f"{name}.1.norm", latent)
        yield from _layer(f"{name}.1.pwconv1", CONVNEXT_EXPANSION * latent, latent)
        yield from _layer(f"{name}.1.pwconv2", latent, CONVNEXT_EXPANSION * latent)
        yield f"{name}.1.gamma", (latent,)
    width = config.decoder_dim
    yield from _layer("decoder.0.conv", width, latent, CONV_KERNEL)
    for i, rate in enumerate(config.upsample_rates, start=1):
        block, half = f"decoder.{i}.block", width // 2
        yield from _snake(f"{block}.0", width)
        yield from _conv_transpose(f"{block}.1.conv", width, half, 2 * rate)
        for unit in range(2, 2 + NUM_RESIDUAL_UNITS):
            yield from _snake(f"{block}.{unit}.act1", half)
            yield from _layer(f"{block}.{unit}.conv1.conv", half, half, CONV_KERNEL)
            yield from _snake(f"{block}.{unit}.act2", half)
            yield from _layer(f"{block}.{unit}.conv2.conv", half, half, 1)
        width = half
    last = len(config.upsample_rates) + 1
    yield from _snake(f"decoder.{last}", width)
    yield from _layer(f"decoder.{last + 1}.conv", 1, width, CONV_KERNEL)


def _snake(name: str, channels: int) -> Entries:
    yield f"{name}.alpha", (channels,)
    yield f"{name}.beta", (channels,)


def _pre_transformer(config: CodecDecoderConfig) -> Entries:
    hidden = config.hidden_size
    q_size, kv_size = (n * config.head_dim for n in (config.num_heads, config.num_kv_heads))
    yield from _layer("input_proj", hidden, config.latent_dim)
    for layer in range(config.num_layers):
        name = f"layers.{layer}"
        yield from _attention(name, hidden, q_size, kv_size)
        yield from _gated_mlp(f"{name}.mlp", hidden, config.intermediate_size)
        yield f"{name}.self_attn_layer_scale.scale", (hidden,)
        yield f"{name}.mlp_layer_scale.scale", (hidden,)
        yield f"{name}.input_layernorm.weight", (hidden,)
        yield f"{name}.post_attention_layernorm.weight", (hidden,)
    yield "norm.weight", (hidden,)
    yield from _layer("output_proj", config.latent_dim, hidden)


def _codec_encoder(config: CodecEncoderConfig) -> Entries:
    yield from _prefixed("encoder.layers.", _mimi_convolutions(config))
    yield from _prefixed("encoder_transformer.layers.", _mimi_transformer(config))
    hidden = config.hidden_size
    hop = prod(config.upsampling_ratios)
    convolution_rate = ceil(config.sampling_rate / hop)
    if convolution_rate != config.frame_rate:
        kernel = 2 * int(convolution_rate / config.frame_rate)
        yield from _layer("downsample.conv", hidden, hidden, kernel, bias=False)
    semantic = config.num_semantic_quantizers
    for name, count in (("semantic", semantic), ("acoustic", config.num_quantizers - semantic)):
        rvq = f"quantizer.{name}_residual_vector_quantizer"
        width = config.vector_quantization_hidden_dimension
        if width != hidden:
            yield from _layer(f"{rvq}.input_proj", width, hidden, 1, bias=False)
            yield from _layer(f"{rvq}.output_proj", hidden, width, 1, bias=False)
        for i in range(count):
            codebook = f"{rvq}.layers.{i}.codebook"
            yield f"{codebook}.initialized", (1,)
            yield f"{codebook}.cluster_usage", (config.codebook_size,)
            yield f"{codebook}.embed_sum", (config.codebook_size, config.codebook_dim)


def _mimi_convolutions(config: CodecEncoderConfig) -> Entries:
    """Yield convolutions, numbered as in the official module list, activations included."""
    width = config.num_filters
    yield from _layer("0.conv", width, config.audio_channels, config.kernel_size)
    index = 1
    for ratio in reversed(config.upsampling_ratios):
        for _ in range(config.num_residual_layers):
            inner = width // config.compress
            kernel = config.residual_kernel_size
            yield from _layer(f"{index}.block.1.conv", inner, width, kernel)
            yield from _layer(f"{index}.block.3.conv", width, inner, 1)
            index += 1
        yield from _layer(f"{index + 1}.conv", 2 * width, width, 2 * ratio)
        index += 2
        width *= 2
    hidden, kernel = config.hidden_size, config.last_kernel_size
    yield from _layer(f"{index + 1}.conv", hidden, width, kernel)


def _mimi_transformer(config: CodecEncoderConfig) -> Entries:
    hidden, inter = config.hidden_size, config.intermediate_size
    q_size, kv_size = (n * config.head_dim for n in (config.num_heads, config.num_kv_heads))
    for layer in range(config.num_layers):
        yield from _attention(f"{layer}", hidden, q_size, kv_size)
        yield from _layer(f"{layer}.mlp.fc1", inter, hidden, bias=False)
        yield from _layer(f"{layer}.mlp.fc2", hidden, inter, bias=False)
        yield f"{layer}.self_attn_layer_scale.scale", (hidden,)
        yield f"{layer}.mlp_layer_scale.scale", (hidden,)
        yield from _layer(f"{layer}.input_layernorm", hidden)
        yield from _layer(f"{layer}.post_attention_layernorm", hidden)
