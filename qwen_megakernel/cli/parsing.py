"""The parser of the commands, the demos and the benchmarks, and its types of values."""

import argparse
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from qwen_megakernel.speech_options import MAX_FACTOR, MIN_FACTOR


def whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def at_least(minimum: int) -> Callable[[str], int]:
    """Return an argparse type: whole numbers from `minimum` on."""

    def bounded(text: str) -> int:
        if (value := whole_number(text)) < minimum:
            raise argparse.ArgumentTypeError(f"{value} is less than {minimum}")
        return value

    return bounded


POSITIVE = at_least(1)


def temperature(text: str) -> float:
    """Parse a temperature, by which logits can be divided, as an argparse type."""
    if not MIN_FACTOR <= (value := number(text)) <= MAX_FACTOR:
        raise argparse.ArgumentTypeError(
            f"temperature is {text}; it must be above 0 and at most {MAX_FACTOR:.0f}. "
            "For greedy decoding use --greedy."
        )
    return value


def file_name(text: str) -> str:
    """Return the name of a file or a folder, as an argparse type; empty, it would be `.`."""
    if not text:  # of a shell's variable that is not set
        raise argparse.ArgumentTypeError("an empty text names no file")
    return text


class FileText(str):
    """The contents of a file, which may be longer than a text on a command line."""

    path = ""


def file_text(path: str) -> FileText:
    """Return the contents of a text file, as an argparse type."""
    try:
        text = FileText(Path(file_name(path)).read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path}: {error.strerror}") from error
    text.path = path
    return text


class TextAction(argparse.Action):
    """Stores the text, for which an option can stand instead of the positional argument."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, text: Any, option: Any = None
    ) -> None:
        """Store the text, and require no other; argparse calls this."""
        if getattr(namespace, self.dest, None) is not None:
            parser.error("the text is given twice")
        setattr(namespace, self.dest, text)
        for other in parser._actions:
            other.required &= other.dest != self.dest


_NO_DEFAULTS = (None, "", argparse.SUPPRESS)


class _Help(argparse.HelpFormatter):
    def _get_help_string(self, action: argparse.Action) -> str:
        """Return an option's help; argparse calls this. A default is added if it is not in it."""
        help, default = action.help or "", action.default
        says_nothing = isinstance(default, list | dict) or default in _NO_DEFAULTS
        if says_nothing or default is False or "(default" in help:
            return help
        return f"{help} (default: %(default){'g' if isinstance(default, float) else 's'})"


class Parser(argparse.ArgumentParser):
    """A parser with errors of two lines, which suggest the nearest option for an unknown one."""

    hints: Mapping[str, str] = {}  # words of an error, and what helps then

    def __init__(self, *arguments: Any, **settings: Any):
        super().__init__(*arguments, **{"formatter_class": _Help} | settings)
        # Of a docstring, the first paragraph; with -OO there is none.
        self.description = self.description and self.description.partition("\n\n")[0]
        # argparse's own errors of `type=int` and `type=float` would name the Python type.
        self.register("type", int, whole_number)
        self.register("type", float, number)

    def format_help(self) -> str:
        """Return the help; argparse itself would put -h and --quiet before a command's groups."""
        self._action_groups.sort(key=lambda group: group is self._optionals)
        return super().format_help()

    def error(self, message: str, hint: str = "") -> NoReturn:
        """Print the error and exit with 2; argparse itself would first print all options."""
        hint = next((own for words, own in self.hints.items() if words in message), hint)
        message += f"; {hint}" if hint else ""
        self.exit(2, f"{self.prog}: error: {message}\n{self.prog} --help explains all options.\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is none of an action's choices; argparse calls this."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            if near := get_close_matches(str(value), map(str, action.choices or ()), n=1):
                error.message += f"; did you mean {near[0]}?"
            raise

    # argparse's stub has overloads, one for each type of `namespace`.
    def parse_known_args(  # type: ignore[override]
        self, args: Any = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            names = [word.partition("=")[0] for word in unknown if word.startswith("-")]
            meant = ", ".join(filter(None, map(self._nearest, dict.fromkeys(names))))
            hint = f"did you mean {meant}?" if meant else ""
            if not names and "text" in known:
                hint = "put the text in quotes"
            self.error(f"unrecognized arguments: {' '.join(unknown)}", hint)
        return known, unknown

    def _nearest(self, name: str) -> str:
        """Return the option that an unknown one resembles most, or those of its letter."""
        known = self._option_string_actions
        of_letter = [each for each in known if len(name) == 2 and each.startswith(f"-{name}")]
        near = get_close_matches(name, known, n=1) or sorted(of_letter, key=len)[:3]
        return " or ".join(near)


def group(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """Return the group of options with a title, which is added if it is new."""
    found = (group for group in parser._action_groups if group.title == title)
    return next(found, None) or parser.add_argument_group(title)


def adder(parser: argparse.ArgumentParser, title: str = "") -> Callable[..., None]:
    """Return a function that adds options to the group of a title; "": to the last one.

    Its arguments are an option's names and metavar, with spaces between them, its help, its kind
    and its default. The kind is the type of its values, their collection, or an action of argparse;
    a bool needs no value, and a list grows with each use. That of a file or a folder is `file_name`
    or Path, which refuse an empty text.
    """
    to: Any = group(parser, title) if title else parser

    def add(names: str, help: str, kind: Any = str, default: Any = None, **more: Any) -> None:
        if names.split()[-1].isupper():
            names, _, more["metavar"] = names.rpartition(" ")
        if kind is Path:
            more |= {"type": lambda text: Path(file_name(text)), "default": default}
        elif kind is bool:
            more["action"] = "store_true"
        elif kind is list:
            more |= {"action": "append", "default": []}
        elif isinstance(kind, Collection):
            more |= {"choices": kind, "default": default}
        elif isinstance(kind, type) and issubclass(kind, argparse.Action):
            more |= {"action": kind, "default": default}
        else:
            more |= {"type": kind, "default": default}
        to.add_argument(*names.split(), help=help, **more)

    return add


def new_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], summary: str
) -> Any:
    """Add a command that calls `run`, described by the docstring of `run`, to `commands`."""
    command = commands.add_parser(name, help=summary, description=run.__doc__)
    command.set_defaults(run=run)
    return command


def commands_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers of all commands below a parser, or it itself if there are none."""
    groups = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    for command in (command for group in groups for command in group.choices.values()):
        yield from commands_of(command)
    if not groups:
        yield parser
