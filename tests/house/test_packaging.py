"""The wheel: complete, installable, usable from another folder."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    # Built from a copy: setuptools leaves a build folder behind, which the next wheel would ship.
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in ("qwen_megakernel", "csrc", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "-w", str(folder)]
    subprocess.run([*command, str(source)], check=True, timeout=200)
    return next(folder.glob("*.whl"))


@pytest.mark.ci
def test_the_wheel_ships_kernel_sources_and_the_demonstration_voice(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        path.relative_to(ROOT / "csrc").as_posix()
        for path in (ROOT / "csrc").rglob("*")
        if path.suffix in (".cu", ".cuh", ".h", ".cpp")
    }
    assert sources and {f"qwen_megakernel/csrc/{name}" for name in sources} <= names
    assert "qwen_megakernel/assets/demo-voice/model.safetensors" in names
    assert "qwen_megakernel/assets/web/index.html" in names
    assert wheel.stat().st_size < 15e6


@pytest.mark.ci
def test_the_installed_wheel_speaks_from_another_folder(wheel, tmp_path):
    site = tmp_path / "site"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--quiet",
        "--target",
        str(site),
    ]
    subprocess.run([*install, str(wheel)], check=True, timeout=200)
    code = f"""
import sys
sys.path = [{str(site)!r}] + [path for path in sys.path if path != {str(ROOT)!r}]
import qwen_megakernel
assert qwen_megakernel.__file__.startswith({str(site)!r}), qwen_megakernel.__file__
from qwen_megakernel import TTSEngine
with TTSEngine.from_pretrained("demo-voice", warmup=False) as tts:
    speech = tts.synthesize("Hello.", seed=1)
assert speech.finish_reason == "eos" and len(speech.audio) > 4800, speech
speech.save("hello.wav")
"""
    subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, check=True, timeout=200)
    assert (tmp_path / "hello.wav").stat().st_size > 9000


def test_requirements_allow_what_the_package_allows():
    """`pip install -r requirements.txt` alone must bring no Pipecat that the service fails on."""
    allowed = set(re.findall(r'"([\w-]+[^"\s]*)"', (ROOT / "setup.py").read_text()))
    lines = (ROOT / "requirements.txt").read_text().split()
    assert lines[0].startswith("torch==")  # which build the others resolve against
    assert set(lines[1:]) <= allowed
