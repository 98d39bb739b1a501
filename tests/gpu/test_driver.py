"""Whether driver, GPU and torch fit together, and the errors if they do not."""

import pytest
import torch

from qwen_megakernel.decoders.backends import choose_backend
from qwen_megakernel.decoders.kernel import loading
from qwen_megakernel.errors import ArchError, DriverError, NoGPUError
from qwen_megakernel.gpu import driver

# Second line of the file as the closed and the open kernel module write it.
MODULES = {
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Tue Apr  8 12:41:17 UTC 2025\n"
    "GCC version:  gcc version 12.2.0\n": "550.163.01",
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n": (
        "580.65.06"
    ),
    "something else\n": None,
}


@pytest.fixture(autouse=True)
def no_gpu_is_seen(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def old_driver(monkeypatch, tmp_path):
    """A driver for CUDA 12.4 under a torch that was built for CUDA 13.2."""
    module = tmp_path / "version"
    module.write_text(next(iter(MODULES)))
    monkeypatch.setattr(driver, "KERNEL_MODULE", module)
    monkeypatch.setattr(driver, "cuda_of_driver", lambda: (12, 4))
    monkeypatch.setattr(torch.version, "cuda", "13.2")


@pytest.mark.parametrize("demand", ["kernel", "device", "check"])
def test_a_driver_that_is_too_old_is_named(old_driver, demand):
    with pytest.raises(DriverError) as caught:
        if demand == "check":
            loading.check_device(torch.device("cuda"))
        choose_backend("auto" if demand == "device" else "kernel", "cuda")
    assert caught.value.exit_code == 3
    assert caught.value.what == (
        "Driver 550.163.01 supports CUDA 12.4; this torch was built for CUDA 13.2, so it sees no "
        "GPU."
    )
    assert "cu124" in caught.value.hint


def test_auto_goes_on_without_a_gpu_and_reports_why(old_driver, caplog):
    chosen = choose_backend("auto")
    assert (chosen.name, chosen.device.type) == ("cpu", "cpu")
    assert "supports CUDA 12.4" in chosen.why and "update the driver" in caplog.text


@pytest.mark.parametrize(
    ("supported", "needed"), [((13, 0), "13.2"), ((13, 1), "12.8"), (None, "13.2"), ((12, 4), None)]
)
def test_a_driver_that_is_not_the_reason_is_not_blamed(monkeypatch, supported, needed):
    monkeypatch.setattr(driver, "cuda_of_driver", lambda: supported)
    monkeypatch.setattr(torch.version, "cuda", needed)
    with pytest.raises(NoGPUError, match=r"torch sees none.*\n.*\nOmit it, or name the CPU:"):
        choose_backend("kernel")
    assert choose_backend("auto").why == "no GPU is visible"


@pytest.mark.parametrize("text", MODULES)
def test_the_version_is_read_from_the_kernel_module(monkeypatch, tmp_path, text):
    module = tmp_path / "version"
    monkeypatch.setattr(driver, "KERNEL_MODULE", module)
    assert driver.driver_version() is None
    module.write_text(text)
    assert driver.driver_version() == MODULES[text]


def test_without_a_driver_there_is_no_version(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(driver.ctypes, "CDLL", missing)
    assert driver.cuda_of_driver() is None


@pytest.mark.parametrize(("code", "found"), [(0, (12, 4)), (100, None)])
def test_the_driver_is_asked_for_its_cuda(monkeypatch, code, found):
    class Library:
        @staticmethod
        def cuDriverGetVersion(version):  # noqa: N802 - the driver's name
            version._obj.value = 12040
            return code

    monkeypatch.setattr(driver.ctypes, "CDLL", lambda name: Library)
    assert driver.cuda_of_driver() == found


WHEEL = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")


@pytest.mark.parametrize(
    ("capability", "built_for", "runs"),
    [
        ((8, 9), WHEEL, True),  # runs code for sm_86
        ((8, 7), WHEEL, True),
        ((9, 0), WHEEL, True),
        ((10, 3), WHEEL, True),
        ((12, 0), WHEEL, True),
        ((12, 0), WHEEL[:-1], False),  # the catalogue's RTX 5060 Ti
        ((8, 0), ("sm_86",), False),
        ((9, 0), ("sm_90a",), True),
        ((10, 0), ("sm_90a", "sm_100a"), True),
        ((10, 3), ("sm_100a",), False),
        ((12, 0), ("sm_50", "compute_90"), True),
        ((8, 6), ("compute_90",), False),
        ((8, 6), ("gfx1100",), False),
    ],
)
def test_machine_code_runs_on_later_minor_versions_of_its_major(capability, built_for, runs):
    assert driver.is_built_for(capability, built_for) == runs


def see_gpu(monkeypatch, name, capability, built_for):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: list(built_for))
    monkeypatch.setattr("qwen_megakernel.decoders.kernel.build.find_nvcc", lambda: "nvcc")
    monkeypatch.setattr("qwen_megakernel.decoders.kernel.loading.find_ninja", lambda: "ninja")


def test_a_gpu_that_torch_was_not_built_for_is_named(monkeypatch):
    see_gpu(monkeypatch, "RTX 5060 Ti", (12, 0), WHEEL[:-1])
    with pytest.raises(ArchError, match=r"RTX 5060 Ti is sm_120; torch .* was built for sm_75, "):
        loading.check_device(torch.device("cuda"))
    see_gpu(monkeypatch, "RTX 4090", (8, 9), WHEEL)
    loading.check_device(torch.device("cuda"))


def test_an_old_gpu_is_refused_and_auto_goes_on_without_the_kernel(monkeypatch, caplog):
    see_gpu(monkeypatch, "NVIDIA T4", (7, 5), WHEEL)
    with pytest.raises(ArchError, match="T4 is sm_75; the kernel needs sm_80 or newer"):
        loading.check_device(torch.device("cuda"))
    chosen = choose_backend("auto")
    assert chosen.name != "kernel" and "sm_75" in chosen.why
    assert "Expect an RTF above 1" in caplog.text


@pytest.fixture
def broken_gpu(monkeypatch):
    """The second of two GPUs is in use, and every call to it fails."""
    asked = []

    def fail(index):
        asked.append(index)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: 10 * index)
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    return asked


def test_a_gpu_that_fails_every_call_is_lost(broken_gpu):
    lost = driver.lost_gpu(RuntimeError("CUDA error: unspecified launch failure\nhint"))
    assert broken_gpu == [1]
    assert "CUDA error: unspecified launch failure" in lost.what and "hint" not in lost.what
    assert "restart" in lost.hint


def test_a_gpu_that_still_answers_is_not(broken_gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", broken_gpu.append)
    assert driver.lost_gpu(RuntimeError("CUDA error: invalid argument")) is None
    assert broken_gpu == [1]


def test_other_faults_do_not_ask_the_gpu(broken_gpu):
    assert driver.lost_gpu(ValueError("planted")) is None
    assert broken_gpu == []
