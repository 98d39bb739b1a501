"""Typed records of a checkpoint's config.json; the records of the codec are in `codec_config`.

No value that a checkpoint holds has a default: a missing key is an error that names it. The limits
of each number are beside it (`config_fields`).
Source of the keys: QwenLM/Qwen3-TTS, configuration_qwen3_tts.py (qwen-tts 0.1.1).
"""

from dataclasses import dataclass
from typing import Annotated, Any

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
    RopeTheta,
    SampleRate,
    Width,
)
from qwen_megakernel.errors import ModelFilesError, UnsupportedModel

# The official generate() suppresses the last 1024 ids of the talker's vocabulary except EOS: the
# control, language and speaker ids. The number is a literal in the official code; no config has it.
NUM_CONTROL_IDS = 1024

SUPPORTED_TOKENIZER = "qwen3_tts_tokenizer_12hz"
MODEL_TYPES = ("base", "custom_voice", "voice_design")
TOY = "toy"  # the tts_model_size of the demonstration voice

CodecId = Annotated[int, Limits(0, "vocab_size")]
TextId = Annotated[int, Limits(0, "talker.text_vocab_size")]
# One number for each layer of the speaker encoder.
_Channels = Annotated[tuple[int, ...], Limits(1, 2**14, length=(3, 16))]
_KernelSizes = Annotated[tuple[int, ...], Limits(1, 31, length=(3, 16))]
_Dilations = Annotated[tuple[int, ...], Limits(1, 16, length=(3, 16))]


@dataclass(frozen=True, slots=True)
class StackConfig:
    """Dimensions of one stack of decoder layers (the talker's or the code predictor's)."""

    hidden_size: Width
    intermediate_size: Annotated[int, Limits(1, 2**18)]
    num_layers: NumLayers
    num_heads: NumHeads
    num_kv_heads: NumKvHeads
    head_dim: HeadDim
    rms_norm_eps: Epsilon
    rope_theta: RopeTheta
    max_positions: Annotated[int, "max_position_embeddings", Limits(1, 2**24)]
    # The pairs rotated by (time, height, width); None: 1-D.
    mrope_section: Annotated[
        tuple[int, int, int] | None,
        "rope_scaling.mrope_section",
        Limits(0, "head_dim", length=(3, 3)),
    ]
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
    vocab_size: Annotated[int, Limits(NUM_CONTROL_IDS + 1, 2**20)]
    text_vocab_size: Annotated[int, Limits(1, 2**20)]
    text_hidden_size: Width
    num_code_groups: NumCodebooks
    codec_eos_id: Annotated[CodecId, "codec_eos_token_id"]
    codec_think_id: CodecId
    codec_nothink_id: CodecId
    codec_think_bos_id: CodecId
    codec_think_eos_id: CodecId
    codec_pad_id: CodecId
    codec_bos_id: CodecId
    speakers: Annotated[dict[str, int], "spk_id", Limits(0, "vocab_size")]
    # speaker -> name of its dialect in `languages`
    dialects: Annotated[dict[str, str], "spk_is_dialect"]
    # dialects included
    languages: Annotated[dict[str, int], "codec_language_id", Limits(0, "vocab_size")]

    @property
    def suppressed_from(self) -> int:
        """The first of the ids that are never drawn, apart from EOS."""
        return self.vocab_size - NUM_CONTROL_IDS


@dataclass(frozen=True, slots=True)
class PredictorConfig:
    """The code predictor ("subtalker"): draws codes 1.. of a frame after code 0."""

    stack: StackConfig
    vocab_size: CodebookSize


@dataclass(frozen=True, slots=True)
class SpeakerEncoderConfig:
    """ECAPA-TDNN x-vector encoder; only Base checkpoints have one.

    Defaults are those of the official class; released files have enc_dim and sample_rate only.
    """

    enc_dim: Width
    sample_rate: SampleRate
    mel_dim: Annotated[int, Limits(1, 512)] = 128
    # first TDNN, each SE-Res2Net block, the aggregation (mfa)
    channels: Annotated[_Channels, "enc_channels"] = (512, 512, 512, 512, 1536)
    kernel_sizes: Annotated[_KernelSizes, "enc_kernel_sizes"] = (5, 3, 3, 3, 1)
    dilations: Annotated[_Dilations, "enc_dilations"] = (1, 2, 3, 4, 1)
    attention_channels: Annotated[Width, "enc_attention_channels"] = 128
    res2net_scale: Annotated[int, "enc_res2net_scale", Limits(2, 64)] = 8
    se_channels: Annotated[Width, "enc_se_channels"] = 128


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """config.json of a Qwen3-TTS checkpoint."""

    model_type: Annotated[str, "tts_model_type"]  # one of MODEL_TYPES
    # "0b6", "1b7", TOY, or another name of this project
    model_size: Annotated[str, "tts_model_size"]
    im_start_id: Annotated[TextId, "im_start_token_id"]
    im_end_id: Annotated[TextId, "im_end_token_id"]
    tts_pad_id: Annotated[TextId, "tts_pad_token_id"]
    tts_bos_id: Annotated[TextId, "tts_bos_token_id"]
    tts_eos_id: Annotated[TextId, "tts_eos_token_id"]
    talker: TalkerConfig
    predictor: PredictorConfig
    speaker_encoder: SpeakerEncoderConfig | None
    # Keys that only this project's checkpoints have:
    normalize: bool = False  # whether numbers and abbreviations become words by default
    continues_speech: bool = True  # whether it has learned to continue frames in context
    names_letters: bool = False  # whether single letters must be written as names ("pee em")
    # maximum silence before speech, in ms; None: no limit
    leading_silence: Annotated[float | None, Limits(0, 9999)] = None
    # cutoff of the high-pass filter, in Hz; None: no filter
    high_pass: Annotated[float | None, Limits(0, 9999)] = None

    @property
    def drops_instruct(self) -> bool:
        """Whether instruct is ignored, as the official wrapper does on 0.6B CustomVoice ("0b6").

        The demonstration voice has not learned to follow an instruct, and would read it aloud.
        """
        is_untrained = "0b6" in self.model_size or self.model_size == TOY
        return self.model_type == "custom_voice" and is_untrained

    @property
    def only_speaker_id(self) -> int | None:
        """The codec id of the only speaker of a model that cannot clone; None: it is another."""
        if self.speaker_encoder or len(self.talker.speakers) != 1:
            return None
        return next(iter(self.talker.speakers.values()))

    @property
    def has_projection(self) -> bool:
        """Whether `small_to_mtp_projection` exists: it does if the two hidden sizes differ."""
        return self.talker.stack.hidden_size != self.predictor.stack.hidden_size


def parse_model_config(values: dict[str, Any], where: str = "config.json") -> ModelConfig:
    """Turn a Qwen3-TTS config.json into a `ModelConfig`.

    Raises:
        ModelFilesError: a key is missing or has a value outside its limits, or the file describes
            another kind of model.
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
    return top.read(
        ModelConfig,
        talker=_parse_talker(talker),
        predictor=predictor.read(PredictorConfig, stack=_parse_stack(predictor)),
        # The file of a CustomVoice or VoiceDesign model may have this section, too, but only a Base
        # model has the weights.
        speaker_encoder=_parse_speaker_encoder(
            Keys(top("speaker_encoder_config"), f"{where} speaker_encoder_config")
        )
        if values["tts_model_type"] == "base"
        else None,
    )


def _parse_stack(keys: Keys) -> StackConfig:
    rope_scaling = _entries(keys, "rope_scaling", keys.values.get("rope_scaling"))
    section = rope_scaling.get("mrope_section")
    if keys.values.get("use_sliding_window"):
        raise UnsupportedModel(f"{keys.where}: sliding-window attention is not supported.")
    if rope_scaling.get("rope_type", "default") != "default":
        raise UnsupportedModel(
            f"{keys.where}: rope_type {rope_scaling['rope_type']!r} is not supported."
        )
    if section is not None and not rope_scaling.get("interleaved"):
        raise UnsupportedModel(
            f"{keys.where}: mrope_section without interleaved=true is not supported."
        )
    stack = keys.read(StackConfig, mrope_section=section, qkv_bias=False, qk_norm=True)
    if stack.mrope_section and sum(stack.mrope_section) != stack.head_dim // 2:
        raise ModelFilesError(
            f"{keys.where}: mrope_section is {section}; its sum must be half of head_dim, "
            f"{stack.head_dim // 2}."
        )
    return stack


def _parse_speaker_encoder(keys: Keys) -> SpeakerEncoderConfig:
    encoder = keys.read(SpeakerEncoderConfig)
    *blocks, last = encoder.channels
    lengths = {len(encoder.channels), len(encoder.kernel_sizes), len(encoder.dilations)}
    fits = len(set(blocks)) == len(lengths) == 1 and last == blocks[0] * (len(blocks) - 1)
    if not fits or blocks[0] % encoder.res2net_scale:
        raise ModelFilesError(
            f"{keys.where}: enc_channels are {encoder.channels}, with {len(encoder.kernel_sizes)} "
            f"kernel sizes, {len(encoder.dilations)} dilations and enc_res2net_scale "
            f"{encoder.res2net_scale}.",
            "All channels but the last are the same number, a multiple of the scale; the last are "
            "those of the blocks, concatenated. Each has a kernel size and a dilation.",
        )
    return encoder


def _parse_talker(keys: Keys) -> TalkerConfig:
    stack = _parse_stack(keys)
    dialects = _entries(keys, "spk_is_dialect", keys("spk_is_dialect"))
    dialects = {name: dialect for name, dialect in dialects.items() if dialect is not False}
    return keys.read(TalkerConfig, stack=stack, dialects=dialects)


def _entries(keys: Keys, key: str, value: Any) -> dict[str, Any]:
    """Return the entries of the object that `key` holds; null has none."""
    return {} if value is None else Keys(value, f"{keys.where} {key}").values
