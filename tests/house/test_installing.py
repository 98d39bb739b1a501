"""The command that installs an extra can be pasted, and pip asks no index for the package."""

import json
import re
import shlex
from pathlib import Path

import pytest
from commands import EXTRAS, ROOT

from qwen_megakernel import installing
from qwen_megakernel.errors import MissingPackageError
from qwen_megakernel.installing import install_command, require

URL = "https://git.example/voices/qwen_megakernel"
# The package's name without a folder or an address: pip would look it up on an index.
FROM_AN_INDEX = re.compile(
    r"""pip\ install\ (?:[^`\n]*[\s"'])?qwen[_-]megakernel (?!\S*\ @\ git\+ | [^\s\[]*/)""",
    re.VERBOSE,
)
# The places that name extras: calls of the function, its callers, and the commands of pages.
CALL = re.compile(r"""(?:install_command|needed|require)\(((?:["'][\w-]+["'](?:, )?)+)""")
CLONE = re.compile(r"""pip install (?:-e )?"?[\w/.]*\[([\w,-]+)\]""")


def texts() -> dict[str, str]:
    """Return every text of this project that a user reads, by name."""
    folders = ("qwen_megakernel", "benchmarks", "examples", "tools", "deploy", "docs", "csrc")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*")] + [*ROOT.iterdir()]
    names = [
        path for path in paths if path.suffix in (".py", ".md", ".sh") or path.stem == "Makefile"
    ]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in names}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return the package's folder after an installation, and pip's record of it."""
    site = tmp_path / "site"
    monkeypatch.setattr(installing, "PACKAGE_FOLDER", site / "qwen_megakernel")
    monkeypatch.syspath_prepend(site)
    record = site / "qwen_megakernel-0.1.0.dist-info" / "direct_url.json"
    record.parent.mkdir(parents=True)
    (record.parent / "METADATA").write_text("Metadata-Version: 2.1\nName: qwen_megakernel\n")
    return record


def clone_in(folder: Path) -> Path:
    (folder / "qwen_megakernel").mkdir(parents=True)
    (folder / "setup.py").touch()
    return folder


def test_a_clone_names_itself_and_further_packages():
    assert install_command("server") == f"pip install -e '{ROOT}[server]'"
    words = shlex.split(install_command("bench", "pipecat", also=["pipecat-ai[webrtc]>=1"]))
    assert words == ["pip", "install", "-e", f"{ROOT}[bench,pipecat]", "pipecat-ai[webrtc]>=1"]


def test_a_path_with_blanks_and_quotes_can_be_pasted(tmp_path, monkeypatch):
    clone = clone_in(tmp_path / "it's $HOME")
    monkeypatch.setattr(installing, "PACKAGE_FOLDER", clone / "qwen_megakernel")
    assert shlex.split(install_command("aac"))[-1] == f"{clone}[aac]"


@pytest.mark.parametrize("package", ["", "the package av"])
def test_a_package_that_is_missing_is_named_with_pythons_reason(package):
    with pytest.raises(MissingPackageError) as raised, require("aac", by="AAC", package=package):
        raise ModuleNotFoundError("No module named 'av'", name="av")
    assert raised.value.what == f"AAC needs {package or 'av'} (No module named 'av')."
    assert raised.value.hint == install_command("aac")


def test_an_installation_names_the_clone_that_pip_installed_it_from(installed, tmp_path):
    clone = clone_in(tmp_path / "a clone")
    installed.write_text(json.dumps({"url": clone.as_uri(), "dir_info": {}}))
    assert shlex.split(install_command("ray")) == ["pip", "install", f"{clone}[ray]"]


@pytest.mark.parametrize("address", ["", URL])
@pytest.mark.parametrize(
    "record",
    [
        None,
        {"url": "file:///gone/qwen_megakernel", "dir_info": {}},
        {"url": "file:///dist/qwen_megakernel-0.1.0-py3-none-any.whl", "archive_info": {}},
        {"url": "https://host.example/qwen_megakernel.whl", "archive_info": {}},
    ],
    ids=["no record", "a clone that is gone", "a wheel", "a wheel from afar"],
)
def test_without_a_clone_it_names_the_repository_or_asks_for_a_clone(installed, record, address):
    if record:
        installed.write_text(json.dumps(record))
    if address:
        metadata = installed.parent / "METADATA"
        metadata.write_text(f"{metadata.read_text()}Project-URL: Source, {address}\n")
    wanted = f"qwen_megakernel[play] @ git+{URL}" if address else "PATH/TO/qwen_megakernel[play]"
    assert shlex.split(install_command("play")) == ["pip", "install", wanted]


def test_a_package_that_pip_does_not_know_asks_for_a_clone(monkeypatch, tmp_path):
    """This is the case if the folder was copied onto PYTHONPATH."""
    monkeypatch.setattr(installing, "PACKAGE_FOLDER", tmp_path / "qwen_megakernel")
    monkeypatch.setattr(installing, "NAME", "qwen_megakernel_copied")
    assert install_command("play").endswith("PATH/TO/qwen_megakernel_copied[play]'")


def test_nothing_asks_an_index_for_our_name():
    asking = {name for name, text in texts().items() if FROM_AN_INDEX.search(text)}
    assert not asking


@pytest.mark.parametrize(
    ("command", "asks"),
    [
        ('pip install "qwen_megakernel[server]"', True),
        ("pip install -U qwen-megakernel", True),
        ("pip install torch 'qwen_megakernel[server]'", True),
        (f'pip install "qwen_megakernel[server] @ git+{URL}"', False),
        ('pip install "PATH/TO/qwen_megakernel[server]"', False),
        ('pip install -e ".[server]"` brings what `qwen_megakernel` needs', False),
    ],
)
def test_what_asks_an_index_is_found(command, asks):
    assert bool(FROM_AN_INDEX.search(command)) == asks


def test_every_extra_that_is_named_exists():
    """For an extra that does not exist, pip only prints a warning and installs nothing."""
    named = {}
    for name, text in texts().items():
        for words in CALL.findall(text) + CLONE.findall(text):
            named |= dict.fromkeys(re.findall(r"[\w-]+", words), name)
    assert {"server", "plots", "pipecat", "coreml", "nvcc", "reference"} <= named.keys()
    assert not {extra: name for extra, name in named.items() if extra not in EXTRAS}
