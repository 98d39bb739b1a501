"""Every file of this repository that a document names exists."""

import re
from pathlib import Path

import pytest
from commands import ROOT

# Files of other projects, which docs/coming-from.md names beside the command to type instead.
ELSEWHERE = {"tools/compare_codec_tokens.py", "tts_long_audio_test.py"}
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/LOG.md"]
PAGES += [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/*.md"))]
FOLDERS = "docs|csrc|benchmarks|tests|tools|deploy|examples|qwen_megakernel|results"
PATH = re.compile(rf"`(?:python )?((?:{FOLDERS})/[\w./*-]*)(?=[`: ])")
SCRIPT = re.compile(r"`([\w-]+\.(?:py|sh|cpp|cuh?|h))(?=[` ])")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


def text_of(page: str) -> str:
    """Return a page; of the changelog the unreleased part, for releases name their own files."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.split(r"\n## \[(?!Unreleased)", text)[0] if page == "CHANGELOG.md" else text


def missing(text: str, root: Path = ROOT) -> set[str]:
    """Return the missing files that a text names; "NAME" and "*" stand for any name."""
    paths = {name: re.sub("^results/", "benchmarks/results/", name) for name in PATH.findall(text)}
    gone = {name for name, path in paths.items() if "NAME" not in name and not any(root.glob(path))}
    for name in SCRIPT.findall(text):
        folders = (root / folder for folder in FOLDERS.split("|"))
        if not (root / name).exists() and not any(any(f.rglob(name)) for f in folders):
            gone.add(name)
    return gone - ELSEWHERE


def dead_links(text: str, folder: Path) -> list[str]:
    """Return the missing files to which Markdown links of a page in `folder` lead."""
    return [name for name in LINK.findall(text) if not (folder / name).exists()]


@pytest.mark.parametrize("page", PAGES)
def test_every_file_a_page_names_is_there(page):
    text = text_of(page)
    assert not missing(text) and not dead_links(text, (ROOT / page).parent)


def test_what_is_gone_is_found():
    text = "`tools/gone.py --json F`, `python tools/gone_too.py`, `results/no_*.json`, `gone.py`, "
    text += "`tools/gpu_check.sh`, `results/decode_cpu_*.json`, `results/gpu_NAME/x`, `batch.toml`"
    assert missing(text) == {"tools/gone.py", "tools/gone_too.py", "results/no_*.json", "gone.py"}
    links = "[a](voices.md), [b](gone.md#part), [c](../README.md) and [d](https://example.org/x.md)"
    assert dead_links(links, ROOT / "docs") == ["gone.md"]
