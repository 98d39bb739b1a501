"""Count the sizes of the package, of its tests and of a stream on one screen.

    python tests/house/measures.py

The last row makes the built-in demonstration voice speak with `--backend cpu`.
"""

import ast
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads this when it is imported

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "qwen_megakernel"
sys.path.insert(0, str(ROOT))

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
TEXT = "Hello, how are you today?"


def sources(folder: Path) -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))]


def num_lines(texts: list[str]) -> int:
    return sum(len(text.splitlines()) for text in texts)


def code_lines(text: str) -> int:
    """Count the lines that hold neither docstring, import nor comment alone, and are not blank."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= lines_of(node)
        elif isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            left_out |= lines_of(node.body[0])
    return sum(
        number not in left_out and bool(line.strip()) and not line.lstrip().startswith("#")
        for number, line in enumerate(text.splitlines(), 1)
    )


def lines_of(node: ast.stmt) -> set[int]:
    return set(range(node.lineno, node.end_lineno + 1))


class MetClasses:
    """The package's classes whose methods run while `is_counting`, in any thread started later."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.is_counting = False
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)

    def close(self) -> None:
        threading.setprofile(None)
        sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or not self.is_counting or not frame.f_code.co_argcount:
            return
        first = frame.f_code.co_varnames[0]
        if first in ("self", "cls", "_cls"):
            value = frame.f_locals.get(first)
            kind = value if isinstance(value, type) else type(value)
            if kind.__module__.startswith(f"{PACKAGE.name}."):
                name = f"{kind.__module__}.{kind.__name__}"
                self.names.add(name.removeprefix(f"{PACKAGE.name}."))


def speak() -> tuple[list[str], list[str]]:
    """Return the classes that a text meets up to its first chunk, and a stream's public members."""
    from qwen_megakernel.tts_engine import TTSEngine

    met = MetClasses()
    try:
        with TTSEngine.from_pretrained("demo-voice", backend="cpu") as tts:
            list(tts.stream("Hello.", normalize="off"))  # what is made once is not counted
            met.is_counting = True
            with tts.stream(TEXT, normalize="off") as stream:
                next(stream)
                met.is_counting = False
                members = [name for name in dir(stream) if not name.startswith("_")]
    finally:
        met.close()
    return sorted(met.names), members


def rows() -> Iterator[tuple[str, int]]:
    package = sources(PACKAGE)
    tables = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.toml")]
    yield "package, lines, tables of languages included", num_lines([*package, *tables])
    yield "package, lines of code", sum(map(code_lines, package))
    yield "files that name repetition_penalty", sum("repetition_penalty" in s for s in package)
    yield "tests, lines", num_lines(sources(ROOT / "tests"))
    classes, members = speak()
    yield "public members of a stream", len(members)
    yield "classes that a whole text meets up to its first chunk", len(classes)


if __name__ == "__main__":
    for name, count in rows():
        print(f"{count:>8,}  {name}", flush=True)
