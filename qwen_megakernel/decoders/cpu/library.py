"""The structs of csrc/cpu/cpu_decoder.h, mirrored with ctypes."""

import ctypes
from ctypes import POINTER, c_float, c_int32, c_uint32, c_uint64, c_void_p

from qwen_megakernel.native.structs import SamplingParams, fields

# SourceFormat
FLOAT32, BF16, INT8, INT4, INT6 = range(5)

# A layer's packed matrices by the letters of their parts, and whether the parts take turns.
MATRICES_OF_LAYER = {
    "self_attn.q+k+v": False,
    "self_attn.o": False,
    "mlp.gate+up": True,
    "mlp.down": False,
}
VECTORS_OF_LAYER = (
    *("input_layernorm.weight", "post_attention_layernorm.weight"),
    *("self_attn.q_norm.weight", "self_attn.k_norm.weight"),
    *("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"),
)


class MatrixSource(ctypes.Structure):
    _fields_ = [
        *fields(c_void_p, "values scales"),
        *fields(c_int32, "num_rows num_cols format group"),
    ]


class StackSource(ctypes.Structure):
    _fields_ = [
        *fields(c_int32, "hidden_size intermediate_size num_layers num_heads num_kv_heads"),
        *fields(c_int32, "head_dim max_positions"),
        ("rms_norm_eps", c_float),
        *fields(c_void_p, "rope_cos rope_sin"),
        ("matrices", POINTER(MatrixSource)),
        ("vectors", POINTER(c_void_p)),
        ("final_norm", c_void_p),
    ]


class ModelSource(ctypes.Structure):
    _fields_ = [
        ("talker", StackSource),
        ("predictor", StackSource),
        *fields(c_int32, "num_code_groups codec_eos_id suppressed_from min_frames num_slots"),
        *fields(MatrixSource, "codec_head projection"),
        ("projection_bias", c_void_p),
        *fields(POINTER(MatrixSource), "lm_heads code_tables"),
    ]


class StreamOptions(ctypes.Structure):
    _fields_ = [*fields(SamplingParams, "talker predictor"), ("part", c_uint32), ("seed", c_uint64)]


class StepRequest(ctypes.Structure):
    _fields_ = [
        ("slots", c_void_p),
        *fields(c_int32, "num_streams num_frames"),
        *fields(c_void_p, "forced codes num_done ended bad_codebook talker_logits code_logits"),
    ]


STRUCTS = (MatrixSource, StackSource, ModelSource, StreamOptions, StepRequest)
