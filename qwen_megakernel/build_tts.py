"""Front door of the kernel's build. The code is in `decoders.kernel.build`."""

from qwen_megakernel.decoders.kernel.build import ARCHITECTURES, Target, build

__all__ = ["ARCHITECTURES", "Target", "build"]
