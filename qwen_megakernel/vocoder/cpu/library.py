"""The structs of csrc/cpu/cpu_vocoder.h, mirrored with ctypes."""

import ctypes
from ctypes import POINTER, c_float, c_int32, c_void_p


def _fields(kind: type, names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


class ConvolutionSource(ctypes.Structure):
    _fields_ = [
        *_fields(c_void_p, "taps bias frequency amplitude"),
        *_fields(c_int32, "num_taps in_channels out_channels stride dilation history"),
    ]


class VocoderSource(ctypes.Structure):
    _fields_ = [
        *_fields(c_int32, "num_codebooks codebook_size codebook_dim samples_per_frame"),
        ("tables", c_void_p),
        *_fields(c_int32, "num_layers num_heads num_kv_heads head_dim num_past max_frames"),
        *_fields(c_float, "rms_norm_eps layer_norm_eps"),
        *_fields(c_void_p, "rope_cos rope_signed_sin"),
        *_fields(c_int32, "num_keys num_upsamplings num_blocks units_per_block is_direct"),
        ("convolutions", POINTER(ConvolutionSource)),
        ("vectors", POINTER(c_void_p)),
    ]


class VocoderRequest(ctypes.Structure):
    _fields_ = [
        *_fields(c_void_p, "codes states"),
        *_fields(c_int32, "num_streams num_frames num_silent"),
        ("pcm", c_void_p),
    ]


STRUCTS = (ConvolutionSource, VocoderSource, VocoderRequest)
