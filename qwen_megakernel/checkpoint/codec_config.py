"""Typed records of speech_tokenizer/config.json.

Source of the keys: QwenLM/Qwen3-TTS, configuration_qwen3_tts_tokenizer_v2.py (qwen-tts 0.1.1).
"""

from dataclasses import dataclass
from math import prod
from typing import Annotated, Any

from qwen_megakernel.checkpoint.config import SUPPORTED_TOKENIZER
from qwen_megakernel.checkpoint.config_fields import (
    CodebookSize,
    Epsilon,
    HeadDim,
    Keys,
    Limits,
    NumCodebooks,
    NumHeads,
    NumKvHeads,
    NumLayers,
    Ratios,
    RopeTheta,
    SampleRate,
    Width,
)
from qwen_megakernel.errors import ModelFilesError, UnsupportedModel

KernelSize = Annotated[int, Limits(1, 64)]


@dataclass(frozen=True, slots=True)
class CodecDecoderConfig:
    """The vocoder half of the speech tokenizer."""

    codebook_size: CodebookSize
    codebook_dim: Annotated[int, Limits(2, 2**16, multiple_of=2)]
    num_quantizers: NumCodebooks
    latent_dim: Width
    hidden_size: Width
    intermediate_size: Annotated[int, Limits(1, 2**18)]
    num_layers: NumLayers
    num_heads: NumHeads
    num_kv_heads: NumKvHeads
    head_dim: HeadDim
    sliding_window: Annotated[int, Limits(1, 4096)]
    rope_theta: RopeTheta
    decoder_dim: Width
    upsampling_ratios: Ratios
    upsample_rates: Ratios
    # The default of Qwen3TTSTokenizerV2DecoderConfig; the released config.json has no such key.
    rms_norm_eps: Epsilon = 1e-5


@dataclass(frozen=True, slots=True)
class CodecEncoderConfig:
    """The Mimi encoder half of the speech tokenizer, with the keys of transformers' MimiConfig.

    Defaults are MimiConfig's, for keys that the file lacks.
    """

    frame_rate: Annotated[float, Limits(1, 1000)]
    head_dim: HeadDim
    sampling_rate: SampleRate = 24000
    audio_channels: Annotated[int, Limits(1, 1)] = 1
    hidden_size: Width = 512
    num_filters: Annotated[int, Limits(1, 4096, multiple_of="compress")] = 64
    num_residual_layers: Annotated[int, Limits(1, 4)] = 1
    upsampling_ratios: Ratios = (8, 6, 5, 4)
    kernel_size: KernelSize = 7
    last_kernel_size: KernelSize = 3
    residual_kernel_size: KernelSize = 3
    dilation_growth_rate: Annotated[int, Limits(1, 8)] = 2
    compress: Annotated[int, Limits(1, 64)] = 2
    use_causal_conv: bool = True
    codebook_size: CodebookSize = 2048
    codebook_dim: Width = 256
    num_quantizers: NumCodebooks = 32
    num_semantic_quantizers: Annotated[int, Limits(1, "num_quantizers")] = 1
    vector_quantization_hidden_dimension: Width = 256
    num_layers: NumLayers = 8
    intermediate_size: Annotated[int, Limits(1, 2**18)] = 2048
    num_heads: NumHeads = 8
    num_kv_heads: NumKvHeads = 8
    norm_eps: Epsilon = 1e-5
    rope_theta: RopeTheta = 10000.0


@dataclass(frozen=True, slots=True)
class CodecConfig:
    """The contents of speech_tokenizer/config.json."""

    decoder: CodecDecoderConfig
    encoder: CodecEncoderConfig
    num_code_groups: Annotated[NumCodebooks, "encoder_valid_num_quantizers"]
    sample_rate: Annotated[SampleRate, "output_sample_rate"]
    samples_per_frame: Annotated[int, "decode_upsample_rate", Limits(1, 48_000)]

    @property
    def frame_seconds(self) -> float:
        """Duration of one frame: 0.08 s in every release."""
        return self.samples_per_frame / self.sample_rate


def parse_codec_config(
    values: dict[str, Any], where: str = "speech_tokenizer/config.json"
) -> CodecConfig:
    """Turn the speech tokenizer's config.json into a `CodecConfig`.

    Raises:
        ModelFilesError: a key is missing or has a value outside its limits, or two values do not
            fit each other.
        UnsupportedModel: the file describes another codec.
    """
    if values.get("model_type") != SUPPORTED_TOKENIZER:
        raise UnsupportedModel(
            f"{where}: model_type {values.get('model_type')!r} is not {SUPPORTED_TOKENIZER!r}."
        )
    top = Keys(values, where)
    decoder = Keys(top("decoder_config"), f"{where} decoder_config").read(CodecDecoderConfig)
    encoder = _parse_encoder(Keys(top("encoder_config"), f"{where} encoder_config"))
    config = top.read(CodecConfig, decoder=decoder, encoder=encoder)
    samples_per_frame = prod(decoder.upsampling_ratios + decoder.upsample_rates)
    if samples_per_frame != config.samples_per_frame:
        raise ModelFilesError(
            f"{where}: the upsampling rates multiply to {samples_per_frame} samples per frame, but "
            f"decode_upsample_rate is {config.samples_per_frame}."
        )
    if decoder.decoder_dim % 2 ** len(decoder.upsample_rates):
        raise ModelFilesError(
            f"{where}: decoder_dim is {decoder.decoder_dim}; each of the "
            f"{len(decoder.upsample_rates)} upsample_rates halves it."
        )
    if not encoder.num_semantic_quantizers < config.num_code_groups <= encoder.num_quantizers:
        raise ModelFilesError(
            f"{where}: encoder_valid_num_quantizers is {config.num_code_groups}; it must be above "
            f"num_semantic_quantizers, {encoder.num_semantic_quantizers}, and at most "
            f"num_quantizers, {encoder.num_quantizers}."
        )
    return config


def _parse_encoder(keys: Keys) -> CodecEncoderConfig:
    values = keys.values
    encoder = keys.read(
        CodecEncoderConfig,
        frame_rate=_first(
            values.get("_frame_rate"),
            values.get("frame_rate"),
            lambda others: others.sampling_rate / (2 * prod(others.upsampling_ratios)),
        ),
        head_dim=_first(
            values.get("head_dim"), lambda others: others.hidden_size // others.num_heads
        ),
    )
    hop = prod(encoder.upsampling_ratios)
    if encoder.frame_rate * hop > encoder.sampling_rate:
        raise ModelFilesError(
            f"{keys.where}: frame_rate is {encoder.frame_rate:g}; upsampling_ratios of "
            f"{encoder.upsampling_ratios} and sampling_rate {encoder.sampling_rate} allow "
            f"{encoder.sampling_rate / hop:g} at most."
        )
    return encoder


def _first(*values: Any) -> Any:
    """Return the first value that is not None."""
    return next(value for value in values if value is not None)
