"""The distributions are complete, install into an empty environment, and speak from there."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string

import pytest
import soundfile
from commands import EXTRAS, PROJECT, ROOT, captured

PARTS = ("qwen_megakernel", "csrc", "setup.py", "pyproject.toml", "README.md", "LICENSE")
METADATA = """
from setuptools import build_meta
name = build_meta.prepare_metadata_for_build_wheel({folder!r})
print(open({folder!r} + "/" + name + "/METADATA").read())
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy to build from: setuptools leaves a build folder, which is in the next wheel."""
    source = tmp_path_factory.mktemp("packaging") / "source"
    for name in (*PARTS, "MANIFEST.in", "tests"):
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, source / name)
    return source


@pytest.fixture(scope="module")
def distributions(source):
    """The source distribution, and the wheel built from that alone."""
    folder = source.parent / "dist"
    command = [sys.executable, "-m", "build", "--outdir", folder, source]
    subprocess.run(command, check=True, timeout=200, stdout=subprocess.DEVNULL)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def test_an_editable_install_is_a_path_and_warns_of_nothing(source, tmp_path):
    """`make demo` installs the package like this; pip shows what setuptools writes to stderr."""
    pytest.importorskip("setuptools", "77")
    build = f"from setuptools import build_meta; build_meta.build_editable({str(tmp_path)!r})"
    command = [sys.executable, "-c", build]
    done = captured(command, cwd=source, timeout=200)
    assert done.returncode == 0 and "warning" not in done.stderr.lower(), done.stderr
    (wheel,) = map(zipfile.ZipFile, tmp_path.glob("*.whl"))
    (path,) = (name for name in wheel.namelist() if ".dist-info/" not in name)
    assert path.endswith(".pth") and wheel.read(path).decode().strip() == str(source)
    assert "editable_mode" not in (ROOT / "Makefile").read_text()  # each mode causes warnings


@pytest.mark.parametrize("address", ["", "https://git.example/voices/qwen_megakernel"])
def test_the_metadata_links_to_the_repository_where_there_is_one(source, tmp_path, address):
    pytest.importorskip("setuptools", "77")
    shutil.copytree(source, tmp_path / "fork")
    project = tmp_path / "fork" / "pyproject.toml"
    source = f'Source = "{address}"' if address else ""
    project.write_text(re.sub(r"(?<=\n\[project.urls\]).*", f"\n{source}", project.read_text()))
    command = [sys.executable, "-c", METADATA.format(folder=str(tmp_path))]
    done = captured(command, cwd=tmp_path / "fork", timeout=200, check=True)
    metadata = message_from_string(done.stdout[done.stdout.index("Metadata-Version") :])
    assert metadata.get_all("Project-URL", []) == ([f"Source, {address}"] if address else [])
    assert metadata["License-Expression"] == "Apache-2.0" and metadata["Keywords"]
    assert "Operating System :: MacOS" in metadata.get_all("Classifier")


@pytest.mark.ci
def test_the_distributions_ship_kernel_sources_types_and_the_demonstration_voice(distributions):
    sdist, wheel = distributions
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "csrc").rglob("*")
        if path.suffix in (".cu", ".cuh", ".h", ".cpp")
    }
    assert sources and {f"qwen_megakernel/{name}" for name in sources} <= names
    assert "qwen_megakernel/py.typed" in names
    assert "qwen_megakernel/assets/demo-voice/model.safetensors" in names
    assert "qwen_megakernel/assets/web/index.html" in names
    assert "qwen_megakernel/text/reading/language_tables/english.toml" in names
    assert wheel.stat().st_size < 15e6
    with tarfile.open(sdist) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    written = {"MANIFEST.in", "PKG-INFO", "setup.cfg", "qwen_megakernel.egg-info"}
    assert tops == {*PARTS, *written}  # no tests, because they need the repository


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_empty_environment_installs_the_wheel_and_speaks(distributions, tmp_path):
    """Another user's machine may have only Python, pip and a C++ compiler."""
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *distributions], check=True)
    python = tmp_path / "environment" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
    torch = (ROOT / "requirements.txt").read_text().split()[0]
    for package in (torch, distributions[1]):
        install = [python, "-m", "pip", "install", "--quiet", "--no-compile", package]
        subprocess.run(install, check=True)

    cache, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "QWEN"))
    }

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return captured(
            [python, "-m", "qwen_megakernel", *arguments],
            cwd=elsewhere,
            env=environment | {"QWEN_MEGAKERNEL_CACHE": str(cache)},
        )

    speak = ("speak", "--model", "demo-voice", "Hello, how are you today?", "--backend", "cpu")
    done = run(*speak, "--output", "hello.wav")
    assert done.returncode == 0, done.stderr
    audio, rate = soundfile.read(elsewhere / "hello.wav")
    assert len(audio) / rate > 1 and abs(audio).max() > 0.1
    assert list(cache.rglob("*.so")), "nothing was compiled"
    refused = run("serve", "--model", "demo-voice")
    address = PROJECT.get("urls", {}).get("Source")
    asked = f"@ git+{address}" if address else "PATH/TO/qwen_megakernel[server]"
    assert refused.returncode == 3 and asked in refused.stderr
    shutil.rmtree(python.parents[1])  # pytest would keep this gigabyte


def test_requirements_allow_what_the_package_allows():
    """`pip install -r requirements.txt` must not install a Pipecat with which the service fails."""
    allowed = {*PROJECT["dependencies"], *EXTRAS["pipecat"]}
    lines = (ROOT / "requirements.txt").read_text().split()
    assert lines[0].startswith("torch==")  # the other packages must fit this build
    assert set(lines[1:]) <= allowed
