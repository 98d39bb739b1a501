"""The decoders, as scripts import them. The code is in `decoders`."""

from qwen_megakernel.choices import BACKENDS
from qwen_megakernel.decoders.backends import Backend, choose_backend, load_decoder
from qwen_megakernel.decoders.frame_decoder import FrameDecoder

__all__ = ["BACKENDS", "Backend", "FrameDecoder", "choose_backend", "load_decoder"]
