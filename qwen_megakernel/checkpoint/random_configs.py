"""Dimensions, ids and config files of the built-in random checkpoints.

The tiny ones keep what a real one has and small code gets wrong: head_dim 128 where hidden / heads
is something else, grouped heads, the real codec ids, a vocoder whose attention window ends within a
short utterance. The `random-*` ones have the released shapes; they serve the benchmarks.
"""

from dataclasses import dataclass
from typing import Any

BASE_LANGUAGES = {
    "chinese": 2055,
    "english": 2050,
    "german": 2053,
    "italian": 2070,
    "portuguese": 2071,
    "spanish": 2054,
    "japanese": 2058,
    "korean": 2064,
    "french": 2061,
    "russian": 2069,
}
DIALECTS = {"beijing_dialect": 2074, "sichuan_dialect": 2062}
SPEAKERS = {
    "serena": 3066,
    "vivian": 3065,
    "uncle_fu": 3010,
    "ryan": 3061,
    "aiden": 2861,
    "ono_anna": 2873,
    "sohee": 2864,
    "eric": 2875,
    "dylan": 2878,
}
SPEAKER_DIALECTS = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}

GENERATION_CONFIG = {
    "do_sample": True,
    "repetition_penalty": 1.05,
    "temperature": 0.9,
    "top_p": 1.0,
    "top_k": 50,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.9,
    "subtalker_top_p": 1.0,
    "subtalker_top_k": 50,
    "max_new_tokens": 8192,
}
FEATURE_EXTRACTOR = {
    "chunk_length_s": None,
    "feature_extractor_type": "EncodecFeatureExtractor",
    "feature_size": 1,
    "overlap": None,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
    "sampling_rate": 24000,
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """The dimensions in which the checkpoints differ."""

    hidden: int
    intermediate: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    predictor_hidden: int
    predictor_intermediate: int
    predictor_layers: int
    text_hidden: int
    text_vocab: int
    first_special: int  # id of <|endoftext|>: the ids below are vocab.json
    assistant: int  # id of the token "assistant"
    im_start: int
    tts_pad: int
    speaker_encoder: dict[str, Any]
    codec_decoder: dict[str, Any]
    codec_encoder: dict[str, Any]


_RELEASED_CODEC_DECODER = {
    "codebook_dim": 512,
    "codebook_size": 2048,
    "decoder_dim": 1536,
    "head_dim": 64,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "latent_dim": 1024,
    "num_attention_heads": 16,
    "num_hidden_layers": 8,
    "num_key_value_heads": 16,
    "sliding_window": 72,
}
_RELEASED_CODEC_ENCODER = {
    "codebook_dim": 256,
    "head_dim": 64,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "num_filters": 64,
    "num_hidden_layers": 8,
    "num_key_value_heads": 8,
    "upsample_groups": 512,
    "vector_quantization_hidden_dimension": 256,
}
_TINY_CODEC_DECODER = {
    "codebook_dim": 64,
    "codebook_size": 2048,
    "decoder_dim": 96,
    "head_dim": 32,
    "hidden_size": 32,
    "intermediate_size": 64,
    "latent_dim": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "sliding_window": 16,
}
_TINY_CODEC_ENCODER = {
    "codebook_dim": 16,
    "head_dim": 32,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_filters": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "upsample_groups": 64,
    "vector_quantization_hidden_dimension": 16,
}
_TINY_SPEAKER_ENCODER = {
    "enc_channels": [64, 64, 64, 64, 192],
    "enc_attention_channels": 32,
    "enc_se_channels": 32,
}


def _tiny(hidden: int) -> Sizes:
    return Sizes(
        hidden=hidden,
        intermediate=2 * hidden,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        predictor_hidden=128,
        predictor_intermediate=256,
        predictor_layers=2,
        text_hidden=256,
        text_vocab=1024,
        first_special=512,
        assistant=300,
        im_start=513,
        tts_pad=515,
        speaker_encoder=_TINY_SPEAKER_ENCODER,
        codec_decoder=_TINY_CODEC_DECODER,
        codec_encoder=_TINY_CODEC_ENCODER,
    )


def _released(hidden: int) -> Sizes:
    return Sizes(
        hidden=hidden,
        intermediate=3 * hidden,
        num_layers=28,
        num_heads=16,
        num_kv_heads=8,
        predictor_hidden=1024,
        predictor_intermediate=3072,
        predictor_layers=5,
        text_hidden=2048,
        text_vocab=151936,
        first_special=151643,
        assistant=77091,
        im_start=151644,
        tts_pad=151671,
        speaker_encoder={},
        codec_decoder=_RELEASED_CODEC_DECODER,
        codec_encoder=_RELEASED_CODEC_ENCODER,
    )


@dataclass(frozen=True, slots=True)
class Recipe:
    """A built-in checkpoint: kind, size name and dimensions."""

    model_type: str
    model_size: str
    sizes: Sizes


RECIPES = {
    "tiny-random": Recipe("custom_voice", "0b6", _tiny(128)),
    "tiny-random-base": Recipe("base", "0b6", _tiny(128)),
    "tiny-random-design": Recipe("voice_design", "0b6", _tiny(128)),
    "tiny-random-1.7b": Recipe("custom_voice", "1b7", _tiny(192)),
    "tiny-random-base-1.7b": Recipe("base", "1b7", _tiny(192)),
    "tiny-random-design-1.7b": Recipe("voice_design", "1b7", _tiny(192)),
    "random-0.6b": Recipe("custom_voice", "0b6", _released(1024)),
    "random-0.6b-base": Recipe("base", "0b6", _released(1024)),
    "random-1.7b": Recipe("custom_voice", "1b7", _released(2048)),
    "random-1.7b-base": Recipe("base", "1b7", _released(2048)),
    "random-1.7b-design": Recipe("voice_design", "1b7", _released(2048)),
}


def model_config(name: str) -> dict[str, Any]:
    """The config.json of a built-in checkpoint, with the keys of the released ones."""
    recipe = RECIPES[name]
    sizes = recipe.sizes
    custom = recipe.model_type == "custom_voice"
    shared = {
        "attention_bias": False,
        "attention_dropout": 0,
        "head_dim": 128,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "num_attention_heads": sizes.num_heads,
        "num_code_groups": 16,
        "num_key_value_heads": sizes.num_kv_heads,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000,
        "sliding_window": None,
        "use_cache": True,
        "use_sliding_window": False,
    }
    predictor = shared | {
        "hidden_size": sizes.predictor_hidden,
        "intermediate_size": sizes.predictor_intermediate,
        "layer_types": ["full_attention"] * sizes.predictor_layers,
        "max_position_embeddings": 65536,
        "model_type": "qwen3_tts_talker_code_predictor",
        "num_hidden_layers": sizes.predictor_layers,
        "rope_scaling": None,
        "vocab_size": 2048,
    }
    talker = shared | {
        "code_predictor_config": predictor,
        "codec_bos_id": 2149,
        "codec_eos_token_id": 2150,
        "codec_language_id": BASE_LANGUAGES | (DIALECTS if custom else {}),
        "codec_nothink_id": 2155,
        "codec_pad_id": 2148,
        "codec_think_bos_id": 2156,
        "codec_think_eos_id": 2157,
        "codec_think_id": 2154,
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.intermediate,
        "max_position_embeddings": 32768,
        "model_type": "qwen3_tts_talker",
        "num_hidden_layers": sizes.num_layers,
        "position_id_per_seconds": 13,
        "rope_scaling": {
            "interleaved": True,
            "mrope_section": [24, 20, 20],
            "rope_type": "default",
            "type": "default",
        },
        "spk_id": SPEAKERS if custom else {},
        "spk_is_dialect": {name: SPEAKER_DIALECTS.get(name, False) for name in SPEAKERS}
        if custom
        else {},
        "text_hidden_size": sizes.text_hidden,
        "text_vocab_size": sizes.text_vocab,
        "vocab_size": 3072,
    }
    config = {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "assistant_token_id": sizes.assistant,
        "im_end_token_id": sizes.im_start + 1,
        "im_start_token_id": sizes.im_start,
        "model_type": "qwen3_tts",
        "talker_config": talker,
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        # From 4.57.3 on (or without this key) the official loader takes a large vocabulary in a
        # local folder for a Mistral one and replaces the pre-tokenizer's regex.
        "transformers_version": "4.57.1",
        "tts_bos_token_id": sizes.tts_pad + 1,
        "tts_eos_token_id": sizes.tts_pad + 2,
        "tts_model_size": recipe.model_size,
        "tts_model_type": recipe.model_type,
        "tts_pad_token_id": sizes.tts_pad,
    }
    if recipe.model_type == "base":
        config["speaker_encoder_config"] = {
            "enc_dim": sizes.hidden,
            "sample_rate": 24000,
        } | sizes.speaker_encoder
    return config


def speech_tokenizer_config(name: str) -> dict[str, Any]:
    """The speech_tokenizer/config.json of a built-in checkpoint."""
    sizes = RECIPES[name].sizes
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "decode_upsample_rate": 1920,
        "decoder_config": sizes.codec_decoder
        | {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "hidden_act": "silu",
            "layer_scale_initial_scale": 0.01,
            "max_position_embeddings": 8000,
            "num_quantizers": 16,
            "num_semantic_quantizers": 1,
            "rms_norm_eps": 1e-05,
            "rope_theta": 10000,
            "upsample_rates": [8, 5, 4, 3],
            "upsampling_ratios": [2, 2],
        },
        "encode_downsample_rate": 1920,
        "encoder_config": sizes.codec_encoder
        | {
            "_frame_rate": 12.5,
            "audio_channels": 1,
            "codebook_size": 2048,
            "compress": 2,
            "dilation_growth_rate": 2,
            "hidden_act": "gelu",
            "kernel_size": 7,
            "last_kernel_size": 3,
            "max_position_embeddings": 8000,
            "model_type": "mimi",
            "norm_eps": 1e-05,
            "num_quantizers": 32,
            "num_residual_layers": 1,
            "num_semantic_quantizers": 1,
            "pad_mode": "constant",
            "residual_kernel_size": 3,
            "rope_theta": 10000.0,
            "sampling_rate": 24000,
            "sliding_window": 250,
            "trim_right_ratio": 1.0,
            "upsampling_ratios": [8, 6, 5, 4],
            "use_causal_conv": True,
            "use_conv_shortcut": False,
        },
        "encoder_valid_num_quantizers": 16,
        "input_sample_rate": 24000,
        "model_type": "qwen3_tts_tokenizer_12hz",
        "output_sample_rate": 24000,
    }
