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
def source(tmp_path_factory):
    """A copy to build from: setuptools leaves a build folder, which the next wheel would ship."""
    source = tmp_path_factory.mktemp("packaging") / "source"
    for name in ("qwen_megakernel", "csrc", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, source / name)
    return source


@pytest.fixture(scope="module")
def wheel(source):
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "-w", source.parent]
    subprocess.run([*command, source], check=True, timeout=200)
    return next(source.parent.glob("*.whl"))


def test_an_editable_install_is_a_path_and_warns_of_nothing(source, tmp_path):
    """`make demo` installs the package so; pip shows what setuptools writes to stderr."""
    pytest.importorskip("setuptools", "77")
    build = f"from setuptools import build_meta; build_meta.build_editable({str(tmp_path)!r})"
    command = [sys.executable, "-c", build]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and "warning" not in done.stderr.lower(), done.stderr
    (wheel,) = map(zipfile.ZipFile, tmp_path.glob("*.whl"))
    (path,) = (name for name in wheel.namelist() if ".dist-info/" not in name)
    assert path.endswith(".pth") and wheel.read(path).decode().strip() == str(source)
    assert "editable_mode" not in (ROOT / "Makefile").read_text()  # each mode named there warns


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
    """`pip install -r requirements.txt` must not install a Pipecat that the service fails on."""
    allowed = set(re.findall(r'"([\w-]+[^"\s]*)"', (ROOT / "setup.py").read_text()))
    lines = (ROOT / "requirements.txt").read_text().split()
    assert lines[0].startswith("torch==")  # which build the others resolve against
    assert set(lines[1:]) <= allowed
