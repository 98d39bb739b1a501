"""Checks that a device can run the kernel, and loads its library for a model and that device."""

from collections.abc import Mapping

import torch

from qwen_megakernel.decoders.kernel import build
from qwen_megakernel.decoders.kernel.build import KernelSizes
from qwen_megakernel.decoders.kernel.launcher import current
from qwen_megakernel.decoders.kernel.library import KernelLibrary
from qwen_megakernel.decoders.slots import DecoderSizes, check_dtypes
from qwen_megakernel.errors import ArchError
from qwen_megakernel.gpu.driver import is_built_for, no_gpu
from qwen_megakernel.native.compiling import find_ninja


def check_device(device: torch.device) -> str:
    """Return nvcc's name for the architecture of a GPU, or raise an error unless it can run the
    kernel and the kernel can be built for it."""
    if not torch.cuda.is_available():
        raise no_gpu("--backend kernel")
    name = torch.cuda.get_device_name(device)
    capability = torch.cuda.get_device_capability(device)
    arch, built_for = build.arch_of(capability, name), torch.cuda.get_arch_list()
    if not is_built_for(capability, built_for):
        raise ArchError(
            f"{name} is {arch}; torch {torch.__version__} was built for {', '.join(built_for)}.",
            hint='pip install "torch>=2.7"',
        )
    build.find_nvcc()
    find_ninja()
    return arch


def load_library(
    config: KernelSizes,
    sizes: DecoderSizes,
    *,
    int8_stacks: tuple[str, ...] = (),
    defines: Mapping[str, int] | None = None,
) -> tuple[KernelLibrary, int]:
    """Load the library of a model on a device, which is compiled at first use.

    Args:
        sizes: a GPU runs the kernel, the CPU its emulation.
        int8_stacks: from `quantization.int8_stacks`.
        defines: -D's of an experiment (`build.Target`).
    Returns:
        The library, and the largest number of blocks of a grid on the device.
    """
    check_dtypes(sizes.dtype)
    build.check_config(config)
    target = build.Target(
        check_device(sizes.device) if sizes.device.type == "cuda" else None,
        str(sizes.dtype).removeprefix("torch."),
        int8=int8_stacks,
        defines=tuple((defines or {}).items()),
    )
    library = KernelLibrary(build.build(config, target), config)
    with current(sizes.device):
        return library, library.max_blocks()  # a refusal comes now, not with the first frame
