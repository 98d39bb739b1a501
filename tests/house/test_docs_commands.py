"""The fenced commands and snippets of all pages are parsed, and run unless a reason is given."""

import argparse
import re
import shlex
from pathlib import Path

import pytest
import soundfile
from commands import EXTRAS, ROOT, CommandsHere, blocks, fences

PAGES = [
    *("README.md", "CONTRIBUTING.md", "docs/samples/README.md", "csrc/README.md"),
    *("csrc/cpu/README.md", "examples/qwen3_text/README.md", "tools/demo_voice/README.md"),
    *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/*.md"))),
]

# Pages whose commands another test runs: the test takes them from the page, all that match.
RUN_BY = {
    "README.md": ("tests/house/test_readme.py", "python "),
    "docs/finetune.md": ("tests/training/test_docs_finetune.py", ""),
    "docs/gpu-setup.md": ("tests/house/test_docs_gpu.py", ""),
    "docs/serving.md": ("tests/server/test_docs_serving.py", "curl "),
    "docs/sheen.md": ("tests/sheen/test_docs_sheen.py", ""),
    "docs/voices.md": ("tests/cloning/test_docs_voices.py", ""),
}

# Pages whose Python snippets a test runs, all of them.
SNIPPETS_RUN_BY = {
    "README.md": "tests/house/test_readme.py",
    "docs/marking.md": "tests/test_content_credentials.py",
    "docs/pipecat.md": "tests/pipecat/test_docs_pipecat.py",
    "docs/serving.md": "tests/server/test_docs_serving.py",
    "docs/sheen.md": "tests/sheen/test_docs_sheen.py",
    "docs/speech-control.md": "tests/house/test_docs_speech_control.py",
    "docs/voices.md": "tests/cloning/test_docs_voices.py",
    "examples/qwen3_text/README.md": "tests/decoders/kernel/test_text_model.py",
}

# What is parsed and not run, by how its command begins, with the reason.
NOT_RUN = {
    r"\. \.venv": "enters an environment",
    "make ": "installs the environment that runs this test (.ci/run runs it in a fresh clone)",
    "pip install": "downloads packages",
    "docker ": "needs Docker",
    "python -m pytest": "runs tests",
    r"python -m qwen_megakernel serve": "serves until it is ended; tests/server does",
    r"python -m qwen_megakernel speak .*--backend": "downloads a model",
    "python benchmarks/load_test": "needs a server, and minutes",
    "python benchmarks/measure.py": "minutes; tests/benchmarks/measures runs it at toy size",
    "tools/gpu_check.sh": "needs a GPU; tests/tools runs its steps by emulation",
    "python benchmarks/pages.py": "writes pages; tests/benchmarks/test_pages.py runs it",
    "python -m tools.demo_voice": "takes hours; tests/tools/test_demo_voice_tools.py runs it small",
    "python demo_tts.py --model my-voice": "speaks with what those hours made",
    "python examples/qwen3_text": "downloads a model; tests/decoders/kernel/test_text_model.py",
    # Commands of tools.md are in an order and need files; its test runs them block by block.
    r"(TTS_DUMP_CODES=\S+ )?python -m qwen_megakernel speak .*--dump-codes": "test_docs_tools.py",
    "TTS_DUMP_CODES": "test_docs_tools.py",
    "python -m qwen_megakernel codes compare": "test_docs_tools.py",
    r"python tools/verify_mtp_projection\.py": "test_docs_tools.py",
    "python -m qwen_megakernel export coreml": "a minute; tests/decoders/coreml/test_coreml.py",
}

# Blocks without a language that are no commands: what a program prints, or a drawing.
NO_COMMANDS = ('{"audio": ', "data: ", "text -> phonemes", "text <audio_start>")


def commands(page: str) -> list[str]:
    """Return the command lines of a page's fences: of shells, and of no language."""
    text = (ROOT / page).read_text(encoding="utf-8")
    shown = [code for language, code in fences(text) if language in ("", "bash", "sh", "console")]
    return [
        line for code in shown if not code.startswith(NO_COMMANDS) for line in code.splitlines()
    ]


class Parsed(BaseException):
    """Ends a program when its command line has been parsed."""


@pytest.fixture
def parse(run_here: CommandsHere, monkeypatch: pytest.MonkeyPatch):
    """parse(words): runs a Python command up to the end of its parser."""
    original, depth = argparse.ArgumentParser.parse_known_args, 0

    def parse_known_args(self, args=None, namespace=None):
        nonlocal depth
        depth += 1  # the program's parser runs that of the command
        try:
            found = original(self, args, namespace)
        finally:
            depth -= 1
        if depth:
            return found
        if found[1]:
            self.error(f"unknown: {found[1]}")
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", parse_known_args)

    def parse(*words: str) -> None:
        monkeypatch.syspath_prepend((ROOT / words[0]).parent)  # as Python does for a script
        try:
            done = run_here(*words)
        except Parsed:
            return
        assert "--help" in words and done.returncode == 0, done.stderr

    return parse


def check(command: str, parse) -> None:
    """Parse a command: its program exists and has the options; fails at an unknown program."""
    words = shlex.split(command, comments=True)
    while re.match(r"\w+=", words[0]):
        words.pop(0)
    program, *rest = words
    if words[:3] == ["python", "-m", "pytest"]:
        names = [word for word in rest[2:] if "/" in word]
        assert names and all((ROOT / name).exists() for name in names)
        if "-k" in words:
            tests = "\n".join(path.read_text("utf-8") for path in (ROOT / names[0]).rglob("*.py"))
            assert re.search(rf"def test_\w*{words[words.index('-k') + 1]}", tests)
    elif program == "python":
        parse(*rest)
    elif program == "tools/gpu_check.sh":
        parse("tools/gpu_check/run.py", *rest)
    elif program == "make":
        assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text("utf-8"), re.M)
    elif words[:2] == ["pip", "install"]:
        extras = re.findall(r"\[([\w,]+)\]", command)[0].split(",")
        assert set(extras) <= EXTRAS.keys()
    elif words[:2] == ["docker", "run"]:  # the words after the image's name are those of `serve`
        parse("-m", "qwen_megakernel", "serve", *words[words.index("qwen_megakernel") + 1 :])
    elif program == "docker":
        assert all((ROOT / words[i + 1]).is_file() for i, word in enumerate(words) if word == "-f")
    else:
        programs = (".", "awk", "curl", "export", "mkdir", "printf")
        assert program in programs, f"no such program: {program}"


ALL = [(page, command) for page in PAGES for command in commands(page)]


@pytest.mark.parametrize(("page", "command"), ALL)
def test_a_command_has_a_program_that_takes_its_options(page, command, parse):
    check(command, parse)


LEFT = [
    (page, command)
    for page, command in ALL
    if page not in RUN_BY or not command.startswith(RUN_BY[page][1])
    if not any(re.match(start, command) for start in NOT_RUN)
]


@pytest.mark.parametrize(("page", "command"), LEFT)
def test_a_command_that_nothing_else_runs_is_run(page, command, run_here, tmp_path, monkeypatch):
    """This test includes new commands of pages, unless a table above says where they are run."""
    words = shlex.split(command, comments=True)
    assert words[0] == "python", f"{page}: name in NOT_RUN why this is not run: {command}"
    monkeypatch.chdir(tmp_path)
    done = run_here(*words[1:])
    assert done.returncode == 0, done.stdout + done.stderr
    for name in re.findall(r"\b\w+\.wav\b", command):
        assert soundfile.info(tmp_path / name).duration > 0
    for name in re.findall(r"\b\w+\.srt\b", command):
        assert " --> " in (tmp_path / name).read_text("utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_snippets_belong_to_a_test_that_runs_them_all(page):
    languages = {language for language, _ in fences((ROOT / page).read_text("utf-8"))}
    assert languages <= {"", "bash", "python", "text", "mermaid"}
    if blocks((ROOT / page).read_text("utf-8"), "python"):
        test = (ROOT / SNIPPETS_RUN_BY[page]).read_text("utf-8")
        assert Path(page).name in test and re.search(r'\bblocks\(.*"python"\)', test)


@pytest.mark.parametrize("page", RUN_BY)
def test_the_test_that_runs_a_pages_commands_takes_them_from_the_page(page):
    test = (ROOT / RUN_BY[page][0]).read_text("utf-8")
    assert Path(page).name in test and re.search(r"\b(lines|package_commands)\(\w+", test)


def test_no_reason_is_left_over():
    """One exception: docs/performance.md names a measurement only while its figures are missing."""
    for start in NOT_RUN.keys() - {"python benchmarks/measure.py"}:
        assert any(re.match(start, command) for _, command in ALL), start


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("python demo_tts.py --no-such-option Hello.", AssertionError),
        ("python no_such_program.py", FileNotFoundError),
        ("python -m qwen_megakernel serve --port many", AssertionError),
        ("make no-such-target", AssertionError),
        ('pip install -e ".[no-such-extra]"', IndexError),
        ("python -m pytest tests/engine -k no_such_test", AssertionError),
        ("nosuchprogram --help", AssertionError),
    ],
)
def test_a_command_that_cannot_work_is_found(command, error, parse):
    with pytest.raises(error):
        check(command, parse)
