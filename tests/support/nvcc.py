"""The mark of tests that need NVIDIA's compiler."""

import pytest

from qwen_megakernel.decoders.kernel import build
from qwen_megakernel.errors import BuildError
from qwen_megakernel.installing import install_command


def has_nvcc() -> bool:
    """Return whether the build finds an nvcc: in PATH, CUDA_HOME or NVIDIA's Python packages."""
    try:
        build.find_nvcc()
    except BuildError:
        return False
    return True


needs_nvcc = pytest.mark.skipif(not has_nvcc(), reason=f"no nvcc: {install_command('nvcc')}")
