"""The objects that every step works with: device, sizes, deadline and result file."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from qwen_megakernel.checkpoint import loading
from qwen_megakernel.decoders.backends import Backend
from qwen_megakernel.decoders.kernel import build
from qwen_megakernel.decoders.kernel.decoder import KernelDecoder
from qwen_megakernel.decoders.plain import PlainDecoder
from qwen_megakernel.decoders.slots import DecoderSizes

BIG, SMALL, TOY = "random-1.7b", "random-0.6b-base", "tiny-random"


class Context:
    """One run of a step.

    Args:
        emulation: on the CPU, at toy size.
        deadline: the time.monotonic() at which the step should finish early.
        output: the file of the result.
        toy: sizes that a CPU manages in seconds; without `emulation` it is for tools/fake_gpu.
    """

    def __init__(self, emulation: bool, deadline: float, output: Path, *, toy: bool = False):
        self.emulation, self.toy = emulation, emulation or toy
        self.deadline, self._output = deadline, output
        self.device = torch.device("cpu" if emulation else "cuda")
        self.backend = Backend("emulation" if emulation else "kernel", self.device, "")
        # Under emulation, programs other than tests would take hours.
        self.own_backend = "torch" if emulation else "kernel"
        self.arch = None
        if not emulation:
            capability = torch.cuda.get_device_capability()
            self.arch = build.arch_of(capability, torch.cuda.get_device_name())
        self.models = (TOY,) if self.toy else (SMALL, BIG)
        # Speed is measured with the last of these.
        self.dtypes = ("float32",) if self.toy else ("float32", "bfloat16")
        self.dtype: torch.dtype = getattr(torch, self.dtypes[-1])

    def keep(self, found: dict[str, Any]) -> None:
        """Write the result so far, so that it survives if this step fails or runs out of time."""
        self._output.write_text(json.dumps(found))

    def load(self, name: str) -> loading.Checkpoint:
        """Return random weights of the model `name`, or of the toy, drawn on the device."""
        return loading.load(loading.resolve(self.drawn(name)))

    def drawn(self, name: str) -> str:
        """Return the name that `--model` takes for these weights."""
        return f"drawn:{TOY if self.toy else name}"

    def decoder(
        self,
        loaded: Any,
        kind: Any = KernelDecoder,
        dtype: torch.dtype = torch.float32,
        defines: Mapping[str, int] | None = None,
        **sizes: int,
    ) -> Any:
        """Return a decoder on this device; a plain one on the CPU, because launches are slow under
        a sanitizer.

        Args:
            defines: definitions of a variant of the kernel.
        """
        sizes = {"num_slots": 3, "max_positions": 256} | sizes
        device = torch.device("cpu") if kind is PlainDecoder else self.device
        options = {"defines": defines} if defines else {}
        return kind(loaded, DecoderSizes(device=device, dtype=dtype, **sizes), **options)


def find_program(name: str) -> str | None:
    """Return the path of a program of NVIDIA's toolkit, on the PATH or beside nvcc."""
    toolkit = Path(build.find_nvcc()).resolve().parents[1]
    places = [os.environ["PATH"], toolkit / "bin", toolkit / name, "/usr/local/cuda/bin"]
    return shutil.which(name, path=os.pathsep.join(map(str, places)))
