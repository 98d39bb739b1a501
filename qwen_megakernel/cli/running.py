"""Code around every command: reading the text, writing output, reporting errors, exit codes."""

import argparse
import codecs
import contextlib
import io
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from qwen_megakernel.errors import MissingPackageError, QwenTTSError, ResourceError, UsageError
from qwen_megakernel.installing import require
from qwen_megakernel.printable import get_logger, make_printable
from qwen_megakernel.signals import GracefulExit
from qwen_megakernel.torch_import import wait_passively

if TYPE_CHECKING:
    from qwen_megakernel.engine.speech import Speech
    from qwen_megakernel.engine.stream import SpeechStream

STANDARD_OUTPUT = "standard output"

logger = get_logger(__name__)

# How a warning about a speech that ended without an end token begins, by finish reason.
_ENDS = {
    "length": "Stopped",
    "silence": "The speech fell silent: stopped",
    "repeat": "The speech repeated itself: stopped",
}


def read_text(text: str) -> str:
    """Return the text itself, or standard input for "-"; raise UsageError if it is not UTF-8."""
    name = getattr(text, "path", "The text")  # of --file
    if text == "-":
        name = "Standard input"
        if sys.stdin is None:
            raise UsageError(
                "There is no standard input to read the text from.",
                hint="Give the text on the command line.",
            )
    elif os.path.isfile(text) or (text.endswith(".txt") and " " not in text):
        logger.warning("This speaks the name %s. --file %s speaks what it contains.", text, text)
    try:
        if text == "-":
            text = sys.stdin.read()
        # Python keeps other bytes of an argument, and of some locales' input, as surrogates.
        text.encode("utf-8", "surrogateescape").decode("utf-8")
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        is_utf16 = error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        hint = "Convert it first, for example with iconv -f "
        hint += f"{'UTF-16' if is_utf16 else 'LATIN1'} -t UTF-8."
        if error.encoding.lower() != "utf-8":  # the locale's, or PYTHONIOENCODING's
            hint = "If it is UTF-8, set PYTHONIOENCODING=utf-8."
        raise UsageError(
            f"{name} is not {error.encoding.upper()} text: {error}.", hint=hint
        ) from error
    return text


def read_speech(
    text: str,
    output: str | None,
    dump_codes: str | None = None,
    subtitles: str | None = None,
    encoding: str = "pcm",
    sample_rate: int | None = None,
    text_format: str = "plain",
    max_chars: int | None = None,
) -> str:
    """Return the cleaned text to speak; checks it and the outputs before a model is loaded.

    Args:
        text: the text, or "-" for standard input.
        output, dump_codes, subtitles: files of audio, codes and the words' times; None: none.
        sample_rate: samples per second of the audio file; None: the model's.
        max_chars: most characters of the text; None: the engine's limit.
    """
    from qwen_megakernel import audio
    from qwen_megakernel.output_files import check_writable
    from qwen_megakernel.text.cleaning import MAX_CHARS, check_length, validate
    from qwen_megakernel.text.markup.marked_text import check_markup
    from qwen_megakernel.timing.subtitles import check_path as check_subtitles

    files = [os.path.abspath(path) for path in (output, dump_codes, subtitles) if path]
    if twice := next((path for path in files if files.count(path) > 1), None):
        raise UsageError(f"{twice} is the file of two outputs; give each its own.")
    if output is not None:
        audio.check_path(output, encoding, sample_rate)
    if dump_codes is not None:
        check_writable(Path(dump_codes), "codes")
    if subtitles is not None:
        check_subtitles(Path(subtitles))
    text, max_chars = read_text(text), max_chars or MAX_CHARS
    if text_format == "plain":
        return validate(text, max_chars)
    check_length(len(text), max_chars)
    check_markup(text, text_format)
    return text


def warn_of_end(speech: "Speech | SpeechStream", seconds_per_frame: float) -> None:
    """Warn that a speech ended without an end token; what was spoken until then is kept."""
    how = _ENDS.get(speech.finish_reason or "")
    if how:
        num_frames = len(speech.codes)
        logger.warning(
            "%s at %d frame%s (%.1f s) without an end token (seed %d).",
            *(how, num_frames, "" if num_frames == 1 else "s"),
            *(num_frames * seconds_per_frame, speech.seed),
        )


def write_output(data: bytes) -> None:
    """Write all of `data` to standard output, at once; an OSError gets its name, for `run`."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except OSError as error:
        error.filename = STANDARD_OUTPUT
        raise


@contextlib.contextmanager
def needed(*extras: str, by: str, also: Sequence[str] = ()) -> Iterator[None]:
    """Exit with a pip command if the block cannot import a package.

    Args:
        extras: this package's extras that bring the packages that the block imports.
        by: the script's name.
        also: requirements of other packages.
    """
    try:
        with require(*extras, by=by, also=also):
            yield
    except MissingPackageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def run(main: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run a command; turn its errors into a message and an exit code.

    Returns:
        `main`'s exit code, an error's (2 usage, 3 environment, 4 model files, 5 resources, such as
        a disk that is full, 6 generation), or 128 and the signal's number after Ctrl-C (130),
        SIGTERM (143) or SIGHUP (129).
    """
    level = logging.DEBUG if args.debug else logging.ERROR if args.quiet else logging.WARNING
    own_output, own_reports = sys.stdout, sys.stderr
    sys.stderr = _reports()
    handler = logging.StreamHandler()
    handler.addFilter(make_printable)  # for the records of other packages, such as uvicorn's
    end = GracefulExit()
    # The terminal sends Ctrl-C to a compiler, too, whose end is then no failure to report.
    handler.addFilter(lambda record: not end.has_come)
    logging.basicConfig(level=level, format="%(message)s", handlers=[handler])
    wait_passively()
    own_errors = getattr(own_output, "errors", None)
    try:
        with end:
            _prepare_output()
            # numpy comes before torch, which would import it from C++ and swallow a Ctrl-C there.
            import numpy  # noqa: F401

            code = main(args)
            if sys.stdout:  # None if the caller closed it
                sys.stdout.flush()  # here, where an error can still be reported
            return code
    except QwenTTSError as error:
        if args.debug:
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, ImportError) as error:
        # numpy raises an ImportError of its own for a Ctrl-C that comes while it is imported.
        if isinstance(error, ImportError) and not end.has_come:
            raise
        print("interrupted", file=sys.stderr)
        return end.exit_code
    except OSError as error:  # a full disk, a folder without permission to write
        is_output = _has_output_failed() or error.filename == STANDARD_OUTPUT
        if is_output and isinstance(error, BrokenPipeError):
            return 0  # the program that read it has ended (`... | head`)
        if args.debug:
            traceback.print_exc()
        where = error.filename or (STANDARD_OUTPUT if is_output else None)
        what = error.strerror or error
        print(f"error: {where}: {what}." if where else f"error: {what}.", file=sys.stderr)
        return ResourceError.exit_code
    finally:  # a program that calls a command has its output back
        if isinstance(own_output, io.TextIOWrapper) and own_output.errors != own_errors:
            with contextlib.suppress(OSError):  # it writes what is left
                own_output.reconfigure(errors=own_errors)
        sys.stdout, sys.stderr = own_output, own_reports


class _Reports(io.FileIO):
    """Standard error, which drops what it cannot write: a full disk of logs ends no speech."""

    def write(self, data: Any, /) -> int:
        """Write bytes; return the number of those written or dropped."""
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _buffered(stream: TextIO, kind: type[io.FileIO]) -> TextIO:
    """Return a standard stream whose buffer holds lines, and writes them to a file of this kind."""
    lines = io.BufferedWriter(kind(stream.fileno(), "w", closefd=False))
    return io.TextIOWrapper(lines, stream.encoding, stream.errors, line_buffering=True)


def _reports() -> TextIO:
    """Return standard error as `_Reports`; text in memory, as it is."""
    if sys.stderr is None:  # the caller closed it; `print` would write to standard output instead
        return open(os.devnull, "w")
    try:
        return _buffered(sys.stderr, _Reports)
    except io.UnsupportedOperation:
        return sys.stderr


def _prepare_output() -> None:
    """Write an escape for what the encoding of standard output lacks, as standard error does, and
    buffer lines with PYTHONUNBUFFERED, too.

    A write that fails is then kept, so that `_has_output_failed` sees it fail again; and a write
    takes all bytes.
    """
    out = sys.stdout
    if not isinstance(out, io.TextIOWrapper):  # None if the caller closed it; or text in memory
        return
    if out.errors == "strict":
        out.reconfigure(errors="backslashreplace")
    if isinstance(out.buffer, io.RawIOBase):
        sys.stdout = _buffered(out, io.FileIO)


def _has_output_failed() -> bool:
    """Return whether standard output fails; if so, drop its unwritten data, on which Python would
    report an error at exit."""
    try:
        if sys.stdout:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False
