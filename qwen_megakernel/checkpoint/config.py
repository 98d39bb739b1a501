"""Typed records of a checkpoint's config.json; the records of the codec are in `codec_config`.

No value that a checkpoint holds has a default: a missing key is an error that names it.
Source of the keys: QwenLM/Qwen3-TTS, configuration_qwen3_tts.py (qwen-tts 0.1.1).
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwen_megakernel.errors import ModelFilesError, UnsupportedModel

# The official generate() suppresses the last 1024 ids of the talker's vocabulary except EOS: the
# control, language and speaker ids. The number is a literal in the official code; no config has it.
NUM_CONTROL_IDS = 1024

# Defaults of the official SpeakerEncoderConfig. The released speaker_encoder_config has enc_dim and
# sample_rate only.
SPEAKER_ENCODER_DEFAULTS: dict[str, Any] = {
    "mel_dim": 128,
    "enc_channels": [512, 512, 512, 512, 1536],
    "enc_kernel_sizes": [5, 3, 3, 3, 1],
    "enc_dilations": [1, 2, 3, 4, 1],
    "enc_attention_channels": 128,
    "enc_res2net_scale": 8,
    "enc_se_channels": 128,
}

SUPPORTED_TOKENIZER = "qwen3_tts_tokenizer_12hz"
CODEC_TOKENS = ("think", "nothink", "think_bos", "think_eos", "pad", "bos")
MODEL_TYPES = ("base", "custom_voice", "voice_design")
TOY = "toy"  # the tts_model_size of the demonstration voice


@dataclass(frozen=True, slots=True)
class StackConfig:
    """Dimensions of one stack of decoder layers (the talker's or the code predictor's)."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_positions: int
    mrope_section: tuple[int, int, int] | None  # pairs rotated by (time, height, width); None: 1-D
    qkv_bias: bool = False  # Qwen2 adds a bias to q, k and v; Qwen3 does not
    qk_norm: bool = True  # Qwen3 normalises the heads of q and k; Qwen2 does not

    @property
    def q_size(self) -> int:
        """Rows of q_proj: num_heads * head_dim, which is not hidden_size in general."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Rows of k_proj and of v_proj."""
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class TalkerConfig:
    """The talker: its embeddings of text and codes, its stack, the ids of the codec vocabulary."""

    stack: StackConfig
    vocab_size: int
    text_vocab_size: int
    text_hidden_size: int
    num_code_groups: int
    codec_eos_id: int
    codec_think_id: int
    codec_nothink_id: int
    codec_think_bos_id: int
    codec_think_eos_id: int
    codec_pad_id: int
    codec_bos_id: int
    speakers: dict[str, int]
    dialects: dict[str, str]  # speaker -> name of its dialect in `languages`
    languages: dict[str, int]  # dialects included

    @property
    def suppressed_from(self) -> int:
        """The first of the ids that are never drawn, apart from EOS."""
        return self.vocab_size - NUM_CONTROL_IDS


@dataclass(frozen=True, slots=True)
class PredictorConfig:
    """The code predictor ("subtalker"): draws codes 1.. of a frame after code 0."""

    stack: StackConfig
    vocab_size: int


@dataclass(frozen=True, slots=True)
class SpeakerEncoderConfig:
    """ECAPA-TDNN x-vector encoder; only Base checkpoints have one."""

    enc_dim: int
    sample_rate: int
    mel_dim: int
    channels: tuple[int, ...]  # first TDNN, each SE-Res2Net block, the aggregation (mfa)
    kernel_sizes: tuple[int, ...]
    dilations: tuple[int, ...]
    attention_channels: int
    res2net_scale: int
    se_channels: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """config.json of a Qwen3-TTS checkpoint."""

    model_type: str  # one of MODEL_TYPES
    model_size: str  # "0b6", "1b7", TOY, or another name of this project
    im_start_id: int
    im_end_id: int
    tts_pad_id: int
    tts_bos_id: int
    tts_eos_id: int
    talker: TalkerConfig
    predictor: PredictorConfig
    speaker_encoder: SpeakerEncoderConfig | None
    # Keys that only this project's checkpoints have:
    normalize: bool = False  # whether numbers and abbreviations become words by default
    names_letters: bool = False  # whether single letters must be written as names ("pee em")
    leading_silence: float | None = None  # maximum silence before speech, in ms; None: no limit
    high_pass: float | None = None  # cutoff of the high-pass filter, in Hz; None: no filter

    @property
    def drops_instruct(self) -> bool:
        """Whether instruct is ignored, as the official wrapper does on 0.6B CustomVoice ("0b6").

        The demonstration voice has not learned to follow an instruct, and would read it aloud.
        """
        is_untrained = "0b6" in self.model_size or self.model_size == TOY
        return self.model_type == "custom_voice" and is_untrained

    @property
    def has_projection(self) -> bool:
        """Whether `small_to_mtp_projection` exists: it does if the two hidden sizes differ."""
        return self.talker.stack.hidden_size != self.predictor.stack.hidden_size


class Keys:
    """Reads a config dict; the error of a missing key names the file and the key."""

    def __init__(self, values: Any, where: str):
        if not isinstance(values, dict):
            raise ModelFilesError(f"{where} is {values!r}, not an object.")
        self.values, self.where = values, where

    def __call__(self, key: str) -> Any:
        try:
            return self.values[key]
        except KeyError:
            raise ModelFilesError(
                f"{self.where} has no key {key!r}.",
                "Every dimension and id must be in the checkpoint; none has a default.",
            ) from None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ModelFilesError: the file is missing, is not JSON, or is not an object.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFilesError(f"Cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise ModelFilesError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(values, dict):
        raise ModelFilesError(f"{path} holds a {type(values).__name__}, not an object.")
    return values


def parse_model_config(values: dict[str, Any], where: str = "config.json") -> ModelConfig:
    """Turn a Qwen3-TTS config.json into a `ModelConfig`.

    Raises:
        ModelFilesError: a key is missing, or the file describes another kind of model.
        UnsupportedModel: the file describes a Qwen3-TTS model of another frame rate or type.
    """
    kind = values.get("model_type")
    if kind == SUPPORTED_TOKENIZER:
        raise ModelFilesError(
            f"{where} is the codec (model_type {kind}).", hint="Pass the folder of the talker."
        )
    if kind != "qwen3_tts":
        raise ModelFilesError(
            f"{where}: model_type {kind!r} is not a Qwen3-TTS model; it must be 'qwen3_tts'."
        )
    top = Keys(values, where)
    if top("tokenizer_type") != SUPPORTED_TOKENIZER:
        raise UnsupportedModel(
            f"tokenizer_type {values['tokenizer_type']} is not supported.",
            "Supported are the 12 Hz models: Qwen/Qwen3-TTS-12Hz-{0.6B,1.7B}-{Base,CustomVoice} "
            "and 1.7B-VoiceDesign.",
        )
    if top("tts_model_type") not in MODEL_TYPES:
        raise UnsupportedModel(
            f"tts_model_type {values['tts_model_type']!r} is unknown.",
            f"Known: {', '.join(MODEL_TYPES)}.",
        )
    talker = Keys(top("talker_config"), f"{where} talker_config")
    predictor = Keys(talker("code_predictor_config"), f"{talker.where}.code_predictor_config")
    return ModelConfig(
        model_type=top("tts_model_type"),
        model_size=top("tts_model_size"),
        im_start_id=top("im_start_token_id"),
        im_end_id=top("im_end_token_id"),
        tts_pad_id=top("tts_pad_token_id"),
        tts_bos_id=top("tts_bos_token_id"),
        tts_eos_id=top("tts_eos_token_id"),
        talker=_parse_talker(talker),
        predictor=PredictorConfig(_parse_stack(predictor), predictor("vocab_size")),
        # The file of a CustomVoice or VoiceDesign model may have this section, too, but only a Base
        # model has the weights.
        speaker_encoder=_parse_speaker_encoder(
            Keys(top("speaker_encoder_config"), f"{where} speaker_encoder_config")
        )
        if values["tts_model_type"] == "base"
        else None,
        normalize=_parse_flag(values, "normalize", where),
        names_letters=_parse_flag(values, "names_letters", where),
        leading_silence=_parse_number(values, "leading_silence", where),
        high_pass=_parse_number(values, "high_pass", where),
    )


def _parse_flag(values: dict[str, Any], key: str, where: str) -> bool:
    """Read a flag that only this project's files have."""
    value = values.get(key, False)
    if not isinstance(value, bool):
        raise ModelFilesError(f"{where}: {key} is {value!r}; it must be true or false.")
    return value


def _parse_number(values: dict[str, Any], key: str, where: str) -> float | None:
    """Read a number that only this project's files have."""
    value = values.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e4:
        raise ModelFilesError(f"{where}: {key} is {value!r}; it must be a number, 0 or more.")
    return float(value)


def _parse_stack(keys: Keys) -> StackConfig:
    rope_scaling = keys.values.get("rope_scaling") or {}
    section = rope_scaling.get("mrope_section")
    if keys.values.get("use_sliding_window"):
        raise UnsupportedModel(f"{keys.where}: sliding-window attention is not supported.")
    if rope_scaling.get("rope_type", "default") != "default":
        raise UnsupportedModel(
            f"{keys.where}: rope_type {rope_scaling['rope_type']!r} is not supported."
        )
    if section and not rope_scaling.get("interleaved"):
        raise UnsupportedModel(
            f"{keys.where}: mrope_section without interleaved=true is not supported."
        )
    return StackConfig(
        hidden_size=keys("hidden_size"),
        intermediate_size=keys("intermediate_size"),
        num_layers=keys("num_hidden_layers"),
        num_heads=keys("num_attention_heads"),
        num_kv_heads=keys("num_key_value_heads"),
        head_dim=keys("head_dim"),
        rms_norm_eps=keys("rms_norm_eps"),
        rope_theta=float(keys("rope_theta")),
        max_positions=keys("max_position_embeddings"),
        mrope_section=tuple(section) if section else None,
    )


def _parse_speaker_encoder(keys: Keys) -> SpeakerEncoderConfig:
    optional = SPEAKER_ENCODER_DEFAULTS | keys.values
    return SpeakerEncoderConfig(
        enc_dim=keys("enc_dim"),
        sample_rate=keys("sample_rate"),
        mel_dim=optional["mel_dim"],
        channels=tuple(optional["enc_channels"]),
        kernel_sizes=tuple(optional["enc_kernel_sizes"]),
        dilations=tuple(optional["enc_dilations"]),
        attention_channels=optional["enc_attention_channels"],
        res2net_scale=optional["enc_res2net_scale"],
        se_channels=optional["enc_se_channels"],
    )


def _parse_talker(keys: Keys) -> TalkerConfig:
    return TalkerConfig(
        stack=_parse_stack(keys),
        vocab_size=keys("vocab_size"),
        text_vocab_size=keys("text_vocab_size"),
        text_hidden_size=keys("text_hidden_size"),
        num_code_groups=keys("num_code_groups"),
        codec_eos_id=keys("codec_eos_token_id"),
        **{(name := f"codec_{what}_id"): keys(name) for what in CODEC_TOKENS},
        speakers=dict(keys("spk_id") or {}),
        dialects={
            name: dialect
            for name, dialect in (keys("spk_is_dialect") or {}).items()
            if dialect is not False
        },
        languages=dict(keys("codec_language_id") or {}),
    )
