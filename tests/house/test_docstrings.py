"""The descriptions of functions: they begin with what the function does, a verb."""

import ast
import re
from collections.abc import Iterator

import pytest
from commands import ROOT

FOLDERS = ("qwen_megakernel", "benchmarks", "tools", "examples", "tests/support")
FILES = [*ROOT.glob("*.py"), *(path for name in FOLDERS for path in ROOT.glob(f"{name}/**/*.py"))]

# How a description begins that names a thing instead of an action. "[n] float32 -> [m] float32" is
# allowed, where a function only changes a tensor.
NOUNS = {
    *("The", "A", "An", "One", "Whether", "What", "How", "Where", "Which"),
    *("For", "All", "Each", "Every", "Names", "Results", "Whose", "Those", "Keyword"),
    *("Samples", "Some", "This", "No", "Seconds", "Parts", "Words", "Same", "Most"),
}


def descriptions(source: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the description of each function that is no property and no fixture."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = " ".join(ast.unparse(each) for each in node.decorator_list)
            text = ast.get_docstring(node)
            if text and not re.search("property|fixture", decorators):
                yield node.name, text


def without_a_verb(source: str) -> list[str]:
    """Return the functions whose description begins with no verb, with its first word."""
    begun = [(name, re.match(r"[\w/.]+|.", text)[0]) for name, text in descriptions(source)]
    return [f"{name}: {word}" for name, word in begun if word in NOUNS or "/" in word]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_description_begins_with_a_verb(path):
    assert not without_a_verb(path.read_text("utf-8"))


def test_a_description_without_a_verb_is_found():
    source = '''
def rows(): """The rows of a page."""
def read(): """Return the rows of a page."""
class A:
    @property
    def size(self): """The number of rows."""
    async def page(self): """docs/page.md, with its rows."""
'''
    assert without_a_verb(source) == ["rows: The", "page: docs/page.md"]
