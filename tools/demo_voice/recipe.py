"""Every dimension of the demonstration voice: its config files, in the official layout.

All other modules read the parsed configs, so another size of voice needs a change only here.
"""

from typing import Any

from qwen_megakernel.checkpoint.config import TOY, ModelConfig, parse_model_config

SAMPLE_RATE = 24000
SAMPLES_PER_FRAME = 1920  # 80 ms

NUM_CODEBOOKS = 8  # seven for the envelope, one for the pitch
CODEBOOK_SIZE = 256
CODE_WIDTH = 128  # columns of the vocoder's codebooks: 96 for the envelope, 32 for the pitch
ENCODER_WIDTH = 64  # columns of the encoder's codebooks
NUM_CONTROL_IDS = 1024  # ids of the codec vocabulary; the official code draws none of them but EOS

SPEAKER = "demo"
LANGUAGE = "english"

# The tokenizer's bytes and merges are the first text ids (tokenizer.py checks their number).
NUM_TEXT_TOKENS = 355
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
)
TEXT_VOCAB_SIZE = 384

_TEXT_IDS = {token: NUM_TEXT_TOKENS + i for i, token in enumerate(SPECIAL_TOKENS)}
_CODEC_NAMES = ("pad", "bos", "eos", "think", "nothink", "think_bos", "think_eos")
_CODEC_IDS = {name: CODEBOOK_SIZE + i for i, name in enumerate((*_CODEC_NAMES, LANGUAGE, SPEAKER))}

# The kernel needs activations in multiples of 32 columns and heads in multiples of 16 elements.
_STACK = {
    "hidden_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "use_cache": True,
}
_FEATURE_EXTRACTOR = {
    "feature_extractor_type": "EncodecFeatureExtractor",
    "feature_size": 1,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
    "sampling_rate": SAMPLE_RATE,
}


def model_config(num_codebooks: int = NUM_CODEBOOKS) -> dict[str, Any]:
    """Return config.json."""
    predictor = _STACK | {
        "model_type": "qwen3_tts_talker_code_predictor",
        "vocab_size": CODEBOOK_SIZE,
        "intermediate_size": 384,
        "num_hidden_layers": 1,
        "num_code_groups": num_codebooks,
        "max_position_embeddings": 65536,
    }
    talker = _STACK | {
        "model_type": "qwen3_tts_talker",
        "vocab_size": CODEBOOK_SIZE + NUM_CONTROL_IDS,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "hidden_act": "silu",
        "max_position_embeddings": 8192,
        "rope_scaling": {
            "interleaved": True,
            "mrope_section": [12, 10, 10],
            "rope_type": "default",
            "type": "default",
        },
        "attention_bias": False,
        "num_code_groups": num_codebooks,
        "text_hidden_size": _STACK["hidden_size"],
        "text_vocab_size": TEXT_VOCAB_SIZE,
        "codec_eos_token_id": _CODEC_IDS["eos"],
        "codec_think_id": _CODEC_IDS["think"],
        "codec_nothink_id": _CODEC_IDS["nothink"],
        "codec_think_bos_id": _CODEC_IDS["think_bos"],
        "codec_think_eos_id": _CODEC_IDS["think_eos"],
        "codec_pad_id": _CODEC_IDS["pad"],
        "codec_bos_id": _CODEC_IDS["bos"],
        "spk_id": {SPEAKER: _CODEC_IDS[SPEAKER]},
        "spk_is_dialect": {SPEAKER: False},
        "codec_language_id": {LANGUAGE: _CODEC_IDS[LANGUAGE]},
        "code_predictor_config": predictor,
    }
    return {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": TOY,
        "tts_model_type": "custom_voice",
        "normalize": True,  # it has learned no digits
        "continues_speech": False,  # nor from frames in context
        "names_letters": True,  # nor a letter that stands alone
        "leading_silence": 60,  # ms; stepwise, speech waits for the first tokens of the text
        "high_pass": 20,  # Hz: the vocoder has an offset, and starts with a tick
        "im_start_token_id": _TEXT_IDS["<|im_start|>"],
        "im_end_token_id": _TEXT_IDS["<|im_end|>"],
        "tts_pad_token_id": _TEXT_IDS["<tts_pad>"],
        "tts_bos_token_id": _TEXT_IDS["<tts_text_bos>"],
        "tts_eos_token_id": _TEXT_IDS["<tts_text_eod>"],
        "talker_config": talker,
        "dtype": "bfloat16",
    }


def parsed_model_config(num_codebooks: int = NUM_CODEBOOKS) -> ModelConfig:
    return parse_model_config(model_config(num_codebooks))


def generation_config() -> dict[str, Any]:
    """Return generation_config.json: nearly greedy, for so small a voice wanders when sampled."""
    return {
        "do_sample": True,
        "temperature": 0.3,
        "top_k": 5,
        "top_p": 1.0,
        "repetition_penalty": 1.0,
        "subtalker_dosample": True,
        "subtalker_temperature": 0.3,
        "subtalker_top_k": 5,
        "subtalker_top_p": 1.0,
        "max_new_tokens": 512,
    }


def preprocessor_config() -> dict[str, Any]:
    return _FEATURE_EXTRACTOR | {"processor_class": "Qwen3TTSProcessor"}


def codec_preprocessor_config() -> dict[str, Any]:
    return dict(_FEATURE_EXTRACTOR)


def codec_config(
    num_codebooks: int = NUM_CODEBOOKS, code_width: int = CODE_WIDTH
) -> dict[str, Any]:
    """Return speech_tokenizer/config.json.

    Args:
        code_width: columns of the vocoder's codebooks.
    """
    encoder = {
        "model_type": "mimi",
        "hidden_size": 128,
        "num_filters": 12,
        "kernel_size": 33,
        "num_hidden_layers": 2,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "codebook_size": CODEBOOK_SIZE,
        "codebook_dim": ENCODER_WIDTH,
        "vector_quantization_hidden_dimension": ENCODER_WIDTH,
        "num_quantizers": num_codebooks,
        "num_semantic_quantizers": num_codebooks - 1,  # the pitch is heard beside the envelope
        "upsampling_ratios": [4, 5, 6, 8],  # few channels at high rates: half the arithmetic
        "sampling_rate": SAMPLE_RATE,
        "upsample_groups": 32,
        "frame_rate": SAMPLE_RATE / SAMPLES_PER_FRAME,
        "use_causal_conv": False,  # a sound is known by what follows it, too
    }
    decoder = {
        "codebook_size": CODEBOOK_SIZE,
        "codebook_dim": 2 * code_width,
        "hidden_size": 128,
        "head_dim": 32,
        "latent_dim": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "sliding_window": 72,
        "num_quantizers": num_codebooks,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "decoder_dim": 128,
        "layer_scale_initial_scale": 0.1,
        "rope_theta": 10000,
        "max_position_embeddings": 8000,
    }
    return {
        "model_type": "qwen3_tts_tokenizer_12hz",
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "encoder_valid_num_quantizers": num_codebooks,
        "input_sample_rate": SAMPLE_RATE,
        "output_sample_rate": SAMPLE_RATE,
        "decode_upsample_rate": SAMPLES_PER_FRAME,
        "encode_downsample_rate": SAMPLES_PER_FRAME,
        "decoder_config": decoder,
        "encoder_config": encoder,
        "dtype": "float16",
    }
