"""The structs of csrc/cpu/cpu_vocoder.h, mirrored with ctypes."""

import ctypes
from ctypes import POINTER, c_float, c_int32, c_void_p

from qwen_megakernel.native.structs import fields


class ConvolutionSource(ctypes.Structure):
    _fields_ = [
        *fields(c_void_p, "taps bias frequency amplitude"),
        *fields(c_int32, "num_taps in_channels out_channels stride dilation history"),
    ]


class VocoderSource(ctypes.Structure):
    _fields_ = [
        *fields(c_int32, "num_codebooks codebook_size codebook_dim samples_per_frame"),
        ("tables", c_void_p),
        *fields(c_int32, "num_layers num_heads num_kv_heads head_dim num_past max_frames"),
        *fields(c_float, "rms_norm_eps layer_norm_eps"),
        *fields(c_void_p, "rope_cos rope_signed_sin"),
        *fields(c_int32, "num_keys num_upsamplings num_blocks units_per_block is_half is_direct"),
        ("convolutions", POINTER(ConvolutionSource)),
        ("vectors", POINTER(c_void_p)),
        ("packed", c_void_p),
    ]


class VocoderRequest(ctypes.Structure):
    _fields_ = [
        *fields(c_void_p, "codes states"),
        *fields(c_int32, "num_streams num_frames num_silent"),
        ("pcm", c_void_p),
    ]


STRUCTS = (ConvolutionSource, VocoderSource, VocoderRequest)
