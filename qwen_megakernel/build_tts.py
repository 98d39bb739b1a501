"""The kernel's build, as scripts import it. The code is in `decoders.kernel.build`."""

from qwen_megakernel.decoders.kernel.build import ARCHITECTURES, Target, build

__all__ = ["ARCHITECTURES", "Target", "build"]
