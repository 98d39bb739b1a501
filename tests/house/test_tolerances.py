"""Every tolerance is in tests/support/tolerances.py, so that no other change loosens a test."""

import ast
import operator
from collections.abc import Iterator

import pytest
from commands import ROOT
from tolerances import (
    KERNEL_LOGITS_F32,
    LOGITS_F32,
    LOGITS_INT8_RMS,
    RELEASED_GRAPH_LOGITS_BF16,
    RELEASED_LOGITS_BF16,
    RELEASED_RMS_SHARE,
    SNAKE_F32,
)

from qwen_megakernel.vocoder import snake
from tools.validation import compare

TOLERANCES = ROOT / "tests" / "support" / "tolerances.py"
KEYWORDS = {"atol", "rtol", "abs", "rel"}
# These functions allow a difference even if none is given.
COMPARERS = {"approx", "isclose", "allclose", "assert_close", "assert_allclose"}
# A number up to this size with which an assertion compares is a tolerance, up to the second size
# where it has a name. Below the third it is a value that a test gives.
LARGEST, LARGEST_NAMED, SMALLEST = 0.01, 0.5, 1e-30
ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def number(node: ast.expr) -> float | None:
    """Return the value of a literal, or of arithmetic with literals: 1e-5, 1.5 / 32768, 2**-8."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = number(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        left, right = number(node.left), number(node.right)
        if left is not None and right is not None:
            return ARITHMETIC[type(node.op)](left, right)
    return None


def parts(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree without the conditions of `a if b else c`, and without indices."""
    yield node
    for name, value in ast.iter_fields(node):
        if (type(node), name) not in ((ast.IfExp, "test"), (ast.Subscript, "slice")):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from parts(child)


def has_literal(node: ast.expr, largest: float) -> bool:
    """Whether an expression has a number of up to `largest`, except 0."""
    return any(
        value is not None and SMALLEST < value <= largest
        for value in (number(each) for each in parts(node) if isinstance(each, ast.expr))
    )


def name_of(call: ast.Call) -> str:
    """Return `close` for `near.close(...)` and for `close(...)`."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def given(tree: ast.Module) -> dict[str, list[ast.expr]]:
    """Return constants behind names: `a = 1`, `a, b = 1, 2`, and those of `parametrize`."""
    pairs: list[tuple[str, ast.expr]] = []
    for node in ast.walk(tree):
        for target in node.targets if isinstance(node, ast.Assign) else []:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs += zip(map(ast.unparse, target.elts), node.value.elts, strict=False)
            else:
                pairs.append((ast.unparse(target), node.value))
        if isinstance(node, ast.Call) and name_of(node) == "parametrize" and len(node.args) > 1:
            names, rows = node.args[:2]
            names = [each.strip("'\" ()") for each in ast.unparse(names).split(",")]
            for row in getattr(rows, "elts", []):
                row = row.args if isinstance(row, ast.Call) else getattr(row, "elts", [row])
                pairs += zip(names, row, strict=False)
    values: dict[str, list[ast.expr]] = {}
    for name, value in pairs:
        if not any(isinstance(each, ast.Call) for each in ast.walk(value)):
            values.setdefault(name, []).append(value)
    return values


def is_difference(node: ast.expr) -> bool:
    """Whether an expression is the magnitude of a difference: `abs(a - b)`, `(a - b).abs().max()`.
    Whatever it is compared with is a tolerance, however large.
    """
    return any(isinstance(each, ast.Call) and name_of(each) == "abs" for each in ast.walk(node))


def is_rounded(node: ast.expr) -> bool:
    """Whether an expression is rounded to some digits: `round(x, 6)`."""
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
    return any(name_of(each) in ("round", "around") and len(each.args) > 1 for each in calls)


def limits(compare: ast.Compare) -> list[tuple[ast.expr, float]]:
    """Return the values of a comparison, and the size up to which each is a tolerance."""
    sides = [compare.left, *compare.comparators]
    found = [(side, float("inf")) for side in sides if is_rounded(side)]
    for left, order, right in zip(sides, compare.ops, sides[1:], strict=False):
        if isinstance(order, ORDERS):
            small, large = (left, right) if isinstance(order, ORDERS[:2]) else (right, left)
            found += [(small, LARGEST), (large, float("inf") if is_difference(small) else LARGEST)]
    return found


def names_in(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def decides(node: ast.AST, asserted: set[str]) -> list[ast.expr]:
    """Return the expressions by which a statement can fail a test, also behind assigned names."""
    if isinstance(node, ast.Assert):
        return [node.test]
    if isinstance(node, ast.Assign) and any(names_in(each) & asserted for each in node.targets):
        return [node.value]
    if isinstance(node, ast.If):
        calls = [each for line in node.body for each in ast.walk(line)]
        if any(isinstance(each, ast.Call) and name_of(each) == "fail" for each in calls):
            return [node.test]
    return []


def literal_tolerances(source: str) -> list[int]:
    """Return lines with a tolerance of their own, or with the default of their library."""
    tree = ast.parse(source)
    values = given(tree)

    def is_literal(node: ast.expr, largest: float, seen: frozenset[str] = frozenset()) -> bool:
        if has_literal(node, largest):
            return True
        names = {each.id for each in parts(node) if isinstance(each, ast.Name)} - seen
        return any(
            is_literal(value, max(largest, LARGEST_NAMED), seen | names)
            for name in names
            for value in values.get(name, [])
        )

    asserts = [node.test for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    asserted = set().union(*map(names_in, asserts))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            words = {word.arg: word.value for word in node.keywords if word.arg in KEYWORDS}
            unpacks = any(word.arg is None for word in node.keywords)
            if name_of(node) in COMPARERS and not words and not unpacks:
                found.add(node.lineno)
            found |= {node.lineno for each in words.values() if is_literal(each, float("inf"))}
        for each in [each for part in decides(node, asserted) for each in ast.walk(part)]:
            if isinstance(each, ast.Compare):
                found |= {each.lineno for side, most in limits(each) if is_literal(side, most)}
    return sorted(found)


FILES = sorted(path for path in (ROOT / "tests").rglob("*.py") if path != TOLERANCES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_test_takes_its_tolerances_from_the_file_of_all(path):
    assert not literal_tolerances(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "source",
    [
        "assert_close(a, b, atol=1e-5, rtol=0)",
        "assert_allclose(a, b, rtol=2 * NEAR)",
        "assert a == approx(b, abs=0.1 + slack)",
        "assert a == pytest.approx(b)",
        "torch.allclose(a, b)",
        "assert abs(a - b) < 1e-5",
        "assert a < 2**-8 or b",
        "assert abs(a - b) <= 1.5 / 32768",
        "NEAR = 0.15\nassert error < NEAR",
        "F32, BF16 = 2e-5, 0.05\nassert error < (F32 if exact else BF16)",
        "near = 1e-5 if exact else 0\nassert_close(a, b, atol=near, rtol=0)",
        "assert np.abs(a - b).max() <= 1",
        "assert (a - b).abs().max() <= 3 * step",
        "ok = abs(a - b) < 1e-5\nassert ok",
        "if abs(a - b) > 1e-5:\n    pytest.fail('far away')",
        "assert round(x, 6) == 1",
        "assert np.round(x, 3).tolist() == [1.0]",
        "LIMITS = {'f32': 2e-6}\nassert error < LIMITS[dtype]",
        "BF16 = 0.15\n@parametrize('limit', [None, param(BF16)])\ndef f(limit):\n"
        "    assert error < limit",
    ],
)
def test_a_tolerance_of_its_own_is_found(source):
    assert literal_tolerances(source)


@pytest.mark.parametrize(
    "source",
    [
        "from tolerances import NEAR\nassert error < NEAR <= 10 * NEAR",
        "assert_close(a, b, atol=NEAR, rtol=0)",
        "assert_close(a, b, **near)",
        "assert a == 2.0**-24 and 0.05 < share and count > 0",
        "assert abs(a - b).max() <= NEAR and round(x) == 3 and max(a) < 5",
        "if x < 1e-5:\n    x = 0",
        "stack = Stack(rms_norm_eps=1e-6)\nassert stack.size < 3",
        "def f(a, b): return a if a < 1e-5 else b",
    ],
)
def test_a_named_tolerance_and_a_value_are_not(source):
    assert not literal_tolerances(source)


def test_the_limits_of_validate_kernel_are_those_of_the_file():
    """A command of the package cannot read the tests' file; changing a limit changes this one."""
    assert compare.OFFICIAL_TOLERANCE == LOGITS_F32
    assert compare.FLOAT32_TOLERANCE == KERNEL_LOGITS_F32
    assert (compare.BF16_TOLERANCE, compare.RMS_SHARE) == (RELEASED_LOGITS_BF16, RELEASED_RMS_SHARE)
    assert compare.CPU_INTEGER_TOLERANCE * compare.RMS_SHARE == LOGITS_INT8_RMS
    assert compare.BF16_GRAPH_TOLERANCE == RELEASED_GRAPH_LOGITS_BF16
    assert snake.TOLERANCE == SNAKE_F32
