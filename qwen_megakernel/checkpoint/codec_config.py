"""Typed records of speech_tokenizer/config.json.

Source of the keys: QwenLM/Qwen3-TTS, configuration_qwen3_tts_tokenizer_v2.py (qwen-tts 0.1.1).
"""

from dataclasses import dataclass
from math import prod
from typing import Any

from qwen_megakernel.checkpoint.config import SUPPORTED_TOKENIZER, Keys
from qwen_megakernel.errors import ModelFilesError, UnsupportedModel

# Default of Qwen3TTSTokenizerV2DecoderConfig.rms_norm_eps, which the released config.json lacks.
CODEC_RMS_NORM_EPS = 1e-5

# Defaults of transformers' MimiConfig for keys that encoder_config lacks.
MIMI_DEFAULTS: dict[str, Any] = {
    "sampling_rate": 24000,
    "audio_channels": 1,
    "hidden_size": 512,
    "num_filters": 64,
    "num_residual_layers": 1,
    "upsampling_ratios": [8, 6, 5, 4],
    "kernel_size": 7,
    "last_kernel_size": 3,
    "residual_kernel_size": 3,
    "dilation_growth_rate": 2,
    "compress": 2,
    "codebook_size": 2048,
    "codebook_dim": 256,
    "num_quantizers": 32,
    "num_semantic_quantizers": 1,
    "vector_quantization_hidden_dimension": 256,
    "num_hidden_layers": 8,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "norm_eps": 1e-5,
    "rope_theta": 10000.0,
}


@dataclass(frozen=True, slots=True)
class CodecDecoderConfig:
    """The vocoder half of the speech tokenizer."""

    codebook_size: int
    codebook_dim: int
    num_quantizers: int
    latent_dim: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    sliding_window: int
    rms_norm_eps: float
    rope_theta: float
    decoder_dim: int
    upsampling_ratios: tuple[int, ...]
    upsample_rates: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CodecConfig:
    """The contents of speech_tokenizer/config.json."""

    decoder: CodecDecoderConfig
    encoder: dict[str, Any]  # transformers' MimiConfig keys, completed with MIMI_DEFAULTS
    num_code_groups: int  # encoder_valid_num_quantizers
    sample_rate: int
    samples_per_frame: int

    @property
    def frame_seconds(self) -> float:
        """Duration of one frame: 0.08 s in every release."""
        return self.samples_per_frame / self.sample_rate


def parse_codec_config(
    values: dict[str, Any], where: str = "speech_tokenizer/config.json"
) -> CodecConfig:
    """Turn the speech tokenizer's config.json into a `CodecConfig`.

    Raises:
        ModelFilesError: a key is missing, or the rates do not multiply to the frame length.
        UnsupportedModel: the file describes another codec.
    """
    if values.get("model_type") != SUPPORTED_TOKENIZER:
        raise UnsupportedModel(
            f"{where}: model_type {values.get('model_type')!r} is not {SUPPORTED_TOKENIZER!r}."
        )
    top = Keys(values, where)
    keys = Keys(top("decoder_config"), f"{where} decoder_config")
    decoder = CodecDecoderConfig(
        codebook_size=keys("codebook_size"),
        codebook_dim=keys("codebook_dim"),
        num_quantizers=keys("num_quantizers"),
        latent_dim=keys("latent_dim"),
        hidden_size=keys("hidden_size"),
        intermediate_size=keys("intermediate_size"),
        num_layers=keys("num_hidden_layers"),
        num_heads=keys("num_attention_heads"),
        num_kv_heads=keys("num_key_value_heads"),
        head_dim=keys("head_dim"),
        sliding_window=keys("sliding_window"),
        rms_norm_eps=keys.values.get("rms_norm_eps", CODEC_RMS_NORM_EPS),
        rope_theta=float(keys("rope_theta")),
        decoder_dim=keys("decoder_dim"),
        upsampling_ratios=tuple(keys("upsampling_ratios")),
        upsample_rates=tuple(keys("upsample_rates")),
    )
    samples_per_frame = prod(decoder.upsampling_ratios + decoder.upsample_rates)
    if samples_per_frame != top("decode_upsample_rate"):
        raise ModelFilesError(
            f"{where}: the upsampling rates multiply to {samples_per_frame} samples per frame, but "
            f"decode_upsample_rate is {values['decode_upsample_rate']}."
        )
    return CodecConfig(
        decoder=decoder,
        encoder=_parse_encoder(top("encoder_config")),
        num_code_groups=top("encoder_valid_num_quantizers"),
        sample_rate=top("output_sample_rate"),
        samples_per_frame=samples_per_frame,
    )


def _parse_encoder(values: dict[str, Any]) -> dict[str, Any]:
    keys = MIMI_DEFAULTS | values
    keys["frame_rate"] = (
        values.get("_frame_rate")
        or values.get("frame_rate")
        or keys["sampling_rate"] / (2 * prod(keys["upsampling_ratios"]))
    )
    keys["head_dim"] = values.get("head_dim") or keys["hidden_size"] // keys["num_attention_heads"]
    return keys
