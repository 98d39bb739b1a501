"""Front door of the decoders: slots in, frames out. The code is in `decoders`."""

from qwen_megakernel.choices import BACKENDS
from qwen_megakernel.decoders.frame_decoder import Backend, FrameDecoder, choose_backend

__all__ = ["BACKENDS", "Backend", "FrameDecoder", "choose_backend"]
