"""Find the programs of this repository, and what they import, by reading the source."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import qwen_megakernel

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "deploy", "examples", "qwen_megakernel", "tests", "tools")


def programs() -> Iterator[Path]:
    """Return every file that is run by its name, as a module, or by another program (deploy/)."""
    files = list(ROOT.glob("*.py"))
    for folder in FOLDERS:
        files += ROOT.glob(f"{folder}/**/*.py")
    for path in sorted(files):
        is_started = path.name == "__main__.py" or path.parent == ROOT / "deploy"
        if is_started or any(_is_main(node) for node in _tree(path).body):
            yield path


def imports(program: Path, package: str, *, lazily: bool) -> bool:
    """Return whether a program imports a package as it starts, or `lazily` in a function.

    Files of this repository are followed, those beside the program included.
    """
    folders = (program.parent, ROOT, ROOT / "tests" / "support")
    seen: set[Path] = set()
    left = [program]
    while left:
        path = left.pop()
        seen.add(path)
        for name in _imported(path, lazily):
            if name.partition(".")[0] == package:
                return True
            found = _file(name, folders)
            if found and found not in seen:
                left.append(found)
    return False


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _is_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


@functools.cache
def _imported(path: Path, lazily: bool) -> frozenset[str]:
    """Return the full names that a file imports, without those of a type checker."""
    names: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if not lazily and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            names.add(node.module)
            names.update(_full_name(node.module, alias.name) for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(_tree(path))
    return frozenset(names)


def _full_name(module: str, name: str) -> str:
    """Return "module.name"; for names of the root, the module that defines them."""
    home = qwen_megakernel._HOMES.get(name) if module == "qwen_megakernel" else None
    return f"{module}.{home or name}"


def _file(name: str, folders: tuple[Path, ...]) -> Path | None:
    for folder in folders:
        path = folder.joinpath(*name.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file
    return None
