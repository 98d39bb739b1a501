"""Fills records from the JSON of config files, and checks every value on the way.

The annotation of a record's field declares the type of the value, its limits, and its key in the
file if that is not the field's name:

    num_layers: Annotated[int, "num_hidden_layers", Limits(1, 512)]

No record is filled in which a number has no limits, so no field can lack them.
"""

import json
import reprlib
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from operator import attrgetter
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from qwen_megakernel.errors import ModelFilesError

Record = TypeVar("Record")

_KINDS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
_HINT = "Download the file again; if the error stays, the file itself is wrong."


@dataclass(frozen=True, slots=True)
class Limits:
    """The numbers that a field may have.

    As `high` or `multiple_of`, a string names a field of the same record, with dots if it is in a
    record of that record: the number is then below that field, or a multiple of it.
    """

    low: float
    high: float | str
    multiple_of: int | str = 1
    length: tuple[int, int] = (1, 16)  # how many numbers a tuple may have


# Limits that fields share. They are far above every release, and so low that native code can
# multiply a few of them in an int32, and that no config names millions of tensors.
Width = Annotated[int, Limits(1, 2**16)]  # of a vector or of a side of a matrix
NumLayers = Annotated[int, "num_hidden_layers", Limits(1, 512)]
NumHeads = Annotated[int, "num_attention_heads", Limits(1, 1024, multiple_of="num_kv_heads")]
NumKvHeads = Annotated[int, "num_key_value_heads", Limits(1, 1024)]
HeadDim = Annotated[int, Limits(2, 1024, multiple_of=2)]  # RoPE rotates pairs
NumCodebooks = Annotated[int, Limits(2, 128)]  # the first codebook has a quantizer of its own
CodebookSize = Annotated[int, Limits(1, 2**16)]
Epsilon = Annotated[float, Limits(1e-12, 0.1)]
RopeTheta = Annotated[float, Limits(1, 1e9)]
SampleRate = Annotated[int, Limits(8000, 192_000)]  # Hz
Ratios = Annotated[tuple[int, ...], Limits(1, 64, length=(1, 8))]  # of sample rates, by layer


@dataclass(frozen=True, slots=True)
class Rule:
    """The declaration of a field, read from its annotation."""

    name: str
    key: str  # the field's name in the file
    kind: type  # of the value, or of each value of a tuple or dict: int, float, str or bool
    container: type | None  # tuple, dict, or None for a single value
    is_optional: bool  # whether the value may be null
    limits: Limits | None  # None: the value is no number

    def checked(self, value: Any, where: str) -> Any:
        """Return a value of the file as the field's type, or raise a ModelFilesError."""
        if value is None and self.is_optional:
            return None
        if self.container is dict:  # null has no entries
            found = Keys({} if value is None else value, f"{where} {self.key}").values
            return {name: self._one(each, where, name) for name, each in found.items()}
        if self.container is tuple:
            low, high = self.limits.length if self.limits else (0, 0)
            if not isinstance(value, list | tuple) or not low <= len(value) <= high:
                count = f"{low}" if low == high else f"{low} to {high}"
                raise self._error(value, where, (), f"a list of {count} numbers")
            return tuple(self._one(each, where, index) for index, each in enumerate(value))
        return self._one(value, where)

    def compare(self, record: object, where: str) -> None:
        """Compare the field of a filled record with the fields that its limits name."""
        limits, value = self.limits, getattr(record, self.name)
        if limits is None or value is None:
            return
        if isinstance(limits.high, str):
            high = attrgetter(limits.high)(record) - 1
            expected = f"a number from {limits.low} to {high}, below {limits.high}"
            for place, each in _numbers(value):
                if each > high:
                    raise self._error(each, where, place, expected)
        if isinstance(limits.multiple_of, str):
            divisor = attrgetter(limits.multiple_of)(record)
            expected = f"a multiple of {limits.multiple_of}, {divisor}"
            for place, each in _numbers(value):
                if each % divisor:
                    raise self._error(each, where, place, expected)

    def _one(self, value: Any, where: str, *place: int | str) -> Any:
        kinds = (int, float) if self.kind is float else self.kind
        fits = isinstance(value, kinds) and isinstance(value, bool) == (self.kind is bool)
        expected = _KINDS[self.kind]
        if limits := self.limits:
            high, divisor = limits.high, limits.multiple_of
            expected += f", {limits.low} or more"
            if not isinstance(high, str):
                expected = f"{_KINDS[self.kind]} from {limits.low} to {high}"
                fits = fits and value <= high
            fits = fits and value >= limits.low  # NaN is not
            if not isinstance(divisor, str) and divisor > 1:
                expected += f", a multiple of {divisor}"
                fits = fits and value % divisor == 0
        if not fits:
            raise self._error(value, where, place, expected)
        return self.kind(value)

    def _error(
        self, value: Any, where: str, place: tuple[int | str, ...], expected: str
    ) -> ModelFilesError:
        key = "".join([self.key, *(f"[{reprlib.repr(each)}]" for each in place)])
        return ModelFilesError(
            f"{where}: {key} is {reprlib.repr(value)}; it must be {expected}.", hint=_HINT
        )


def rules_of(record: type) -> dict[str, Rule]:
    """Return the rule of each field of a dataclass, by its name; fields that are records have none.

    Raises:
        TypeError: a field is a number without limits, or is of a kind that no file has.
    """
    hints = get_type_hints(record, include_extras=True)
    rules = {}
    for name, hint in hints.items():
        hint, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        key = next((each for each in extras if isinstance(each, str)), name)
        limits = next((each for each in extras if isinstance(each, Limits)), None)
        options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        hint, *others = (each for each in options if each is not NoneType)
        container = get_origin(hint)
        kind = {tuple: 0, dict: 1}.get(container)
        kind = hint if kind is None else get_args(hint)[kind]
        if is_dataclass(kind):
            continue
        if others or kind not in _KINDS or (kind in (int, float)) != (limits is not None):
            raise TypeError(f"{record.__name__}.{name} needs a type of JSON, a number Limits too.")
        rules[name] = Rule(name, key, kind, container, NoneType in options, limits)
    return rules


class Keys:
    """The values of one JSON object; `where` is its file, and its name there, for messages.

    Raises:
        ModelFilesError: `values` is not an object.
    """

    def __init__(self, values: Any, where: str):
        if not isinstance(values, dict):
            raise ModelFilesError(f"{where} is {reprlib.repr(values)}, not an object.")
        self.values, self.where = values, where

    def __call__(self, key: str) -> Any:
        try:
            return self.values[key]
        except KeyError:
            raise ModelFilesError(
                f"{self.where} has no key {key!r}.",
                "Every dimension and id must be in the checkpoint; none has a default.",
            ) from None

    def read(self, record: type[Record], **given: Any) -> Record:
        """Fill a record.

        Args:
            record: a dataclass; a key may be missing if its field has a default.
            given: values of fields that are not simply the value of their key. They are checked,
                too, except for records. A function is called with the other fields, checked, and
                returns the value.
        Raises:
            ModelFilesError: a key is missing, or its value has another type or is outside the
                field's limits; the message names the key and the value.
        """
        assert is_dataclass(record)
        rules: dict[str, Rule] = rules_of(record)
        values: dict[str, Any] = {}
        for field in sorted(fields(record), key=lambda field: callable(given.get(field.name))):
            name, rule = field.name, rules.get(field.name)
            if name in given:
                values[name] = given[name]
                if callable(given[name]):
                    values[name] = given[name](SimpleNamespace(**values))
            elif rule and (rule.key in self.values or field.default is MISSING):
                values[name] = self(rule.key)
            else:
                values[name] = field.default
            if rule:
                values[name] = rule.checked(values[name], self.where)
        filled = record(**values)
        for rule in rules.values():
            rule.compare(filled, self.where)
        return filled


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ModelFilesError: the file is missing, is not JSON, or is not an object.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFilesError(f"Cannot read {path}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise ModelFilesError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(values, dict):
        raise ModelFilesError(f"{path} holds a {type(values).__name__}, not an object.")
    return values


def _numbers(value: Any) -> Iterator[tuple[tuple[int | str, ...], Any]]:
    """Yield the place and the value of each number of a field."""
    if isinstance(value, dict):
        yield from (((name,), each) for name, each in value.items())
    elif isinstance(value, tuple):
        yield from (((index,), each) for index, each in enumerate(value))
    else:
        yield (), value
