"""Text of clients, made fit for a line of a log or the value of a header; the package's loggers."""

import logging
from numbers import Number

MAX_QUOTE_CHARS = 200  # of a client's text, in an error, a warning or a header
MAX_LINE_CHARS = 1000  # of a line of an error
_MAX_RECORD_CHARS = 1000  # of each part of a log record, in case that it quotes more


def printable(text: str, max_chars: int = MAX_QUOTE_CHARS) -> str:
    r"""Return `text` as one line that a terminal shows as it is.

    Characters that `repr` would escape become escapes, such as "\n", "\x1b" and "\u202e": control
    characters, line separators, marks of direction, half surrogate pairs, spaces other than " ".
    A backslash stays a backslash, so a text that is printable already is returned unchanged.

    Args:
        text: any text, of a client for example.
        max_chars: the most characters returned, 3 or more; a longer text is cut and ends in "...".
    """
    line = _escaped(text[: max_chars + 1])
    return line if len(line) <= max_chars else f"{line[: max_chars - 3]}..."


def printable_lines(text: str) -> str:
    """Return lines as `printable` does, but a long one, of a path for example, loses its middle."""
    half = MAX_LINE_CHARS // 2
    return "\n".join(
        _escaped(each if len(each) <= MAX_LINE_CHARS else f"{each[:half]} ... {each[-half:]}")
        for each in text.split("\n")
    )


def get_logger(name: str) -> logging.Logger:
    """Return the logger `name`, each of whose records is one printable line.

    All modules of the package log with it. The records are made printable before any handler sees
    them, so they are so in the log of a program that uses the package, too.
    """
    logger = logging.getLogger(name)
    logger.addFilter(make_printable)
    return logger


def make_printable(record: logging.LogRecord) -> bool:
    """Make a log record printable; a filter for loggers, and for handlers of others' records.

    The message becomes one line: line ends of its template and of an exception become spaces, all
    else is escaped. The lines of a traceback are indented, so none looks like a record.
    """
    if isinstance(record.args, tuple):
        record.args = tuple(map(_argument, record.args))
    elif record.args:
        record.args = {name: _argument(value) for name, value in record.args.items()}
    template = _one_line(str(record.msg))
    record.msg = template if record.args else printable(template, _MAX_RECORD_CHARS)
    if record.exc_info and not record.exc_text:
        trace = logging.Formatter().formatException(record.exc_info)
        lines = (printable(line, _MAX_RECORD_CHARS) for line in trace.split("\n"))
        record.exc_text = "\n".join(f"  {line}" for line in lines)
    return True


def _argument(value: object) -> object:
    """Return a log record's argument: a number, which may be formatted, or printable text."""
    if isinstance(value, Number):
        return value
    text = str(value)[: _MAX_RECORD_CHARS + 1]
    return printable(_one_line(text) if isinstance(value, Exception) else text, _MAX_RECORD_CHARS)


def _one_line(text: str) -> str:
    return _escaped(" ".join(line for line in text.split("\n") if line))


def _escaped(text: str) -> str:
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
