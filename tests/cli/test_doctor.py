"""The command `doctor`: what it reports of a machine."""

import json
import sys

import torch
from huggingface_hub import constants

from qwen_megakernel.cli import doctor
from qwen_megakernel.gpu import driver
from qwen_megakernel.native import cpu_library, cpu_threads


def test_doctor_reports_what_this_machine_has(run_here):
    facts = json.loads(run_here("-m", "qwen_megakernel", "doctor", "--json").stdout)
    assert facts["packages"]["torch"] and facts["backend"]["auto"] in ("cpu", "kernel")
    assert facts["instruction_sets"][-1] == "plain" and facts["cores"] >= 1
    done = run_here("-m", "qwen_megakernel", "doctor")
    assert "torch" in done.stdout and not [s for s in done.stdout.split("\n") if s.endswith(" ")]
    assert done.stderr == "loading PyTorch\n"  # it takes seconds, during which nothing is printed


def test_doctor_names_what_installs_a_feature_and_the_versions_of_programs(run_here, monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == "av" else object())
    facts = json.loads(run_here("-m", "qwen_megakernel", "doctor", "--json").stdout)
    assert facts["features"].pop("AAC").endswith("[aac]'") and "ready" in facts["features"].values()
    kernel = facts["features"].pop("CUDA kernel")
    assert (kernel == "ready") == (facts["backend"]["auto"] == "kernel")
    assert kernel in ("ready", f"{facts['backend']['why']}: docs/gpu-setup.md")
    assert {"captions", "cloning"} < set(facts["features"])
    assert set(facts["features"].values()) == {"ready"}
    assert doctor._release(sys.executable).endswith(f"({sys.version.split()[0]})")
    monkeypatch.setenv("CXX", "/nothing")
    shown = run_here("-m", "qwen_megakernel", "doctor").stdout
    assert "['" not in shown and "AAC " in shown
    assert "none: CXX is '/nothing'; there is no program /nothing." in shown


def test_doctor_names_the_instruction_set_in_use_and_a_small_quota(run_here, monkeypatch):
    def facts():
        return json.loads(run_here("-m", "qwen_megakernel", "doctor", "--json").stdout)

    monkeypatch.delenv(cpu_library.FORCED, raising=False)
    monkeypatch.setattr(cpu_threads, "quota", lambda root=None: None)
    here = facts()
    assert here["instruction_set"] == here["instruction_sets"][0]
    assert here["cpu_quota_warning"] is None
    monkeypatch.setenv(cpu_library.FORCED, "plain")
    monkeypatch.setattr(cpu_threads, "quota", lambda root=None: 1.5)
    here = facts()
    assert (here["instruction_set"], here["cpu_quota"]) == ("plain", 1.5)
    assert here["cpu_quota_warning"].startswith("This container may use 1.5 cores")
    monkeypatch.setenv(cpu_library.FORCED, "sve2")
    assert facts()["instruction_set"].startswith("none: QWEN_MEGAKERNEL_INSTRUCTION_SET is 'sve2'")


def test_doctor_reports_the_driver_and_the_cache_in_use(run_here, tmp_path, monkeypatch):
    """docs/gpu-setup.md: the CUDA version of the driver and the one torch was built for."""
    monkeypatch.setattr(driver, "cuda_of_driver", lambda: (12, 4))
    monkeypatch.setattr(driver, "driver_version", lambda: "550.163.01")
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    facts = json.loads(run_here("-m", "qwen_megakernel", "doctor", "--json").stdout)
    assert (facts["driver"], facts["torch_cuda"]) == ("550.163.01, CUDA 12.4", "13.2")
    assert facts["hub_cache"] == str(tmp_path)
