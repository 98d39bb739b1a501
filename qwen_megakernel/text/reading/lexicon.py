"""A user's lexicon: words, and the respellings with which a voice pronounces them right.

Each line of a file is "word<TAB>respelling"; further columns may hold a language and "exact".
`pls` parses files of the W3C's Pronunciation Lexicon Specification. An entry matches whole words
only. If several match, the longest one is used. A respelling is not looked up again, so entries
cannot refer to each other. Two entries that respell the same word differently, for the same
language and case rule, are an error; a repeated entry is not.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qwen_megakernel.errors import UsageError, check_type
from qwen_megakernel.text.cleaning import REMOVED
from qwen_megakernel.text.languages import AUTO, language_of_code
from qwen_megakernel.text.reading import pls
from qwen_megakernel.text.reading.languages import ScriptWatch
from qwen_megakernel.text.reading.typography import plain
from qwen_megakernel.text.scripts import UNSPACED

MAX_ENTRIES = 20_000
MAX_FILE_BYTES = 4 * 2**20
MAX_WORD_CHARS, MAX_RESPELLING_CHARS = 64, 256

_CASES = ("exact", "any")  # whether upper and lower case differ
_SPACE = re.compile(r"\s")
_UNSPACED_CHAR = re.compile(f"[{UNSPACED}]")


@dataclass(frozen=True, slots=True)
class Entry:
    """One word or phrase, and its respelling."""

    word: str
    respelling: str
    language: str | None = None  # None: every language
    is_exact: bool = False  # whether upper and lower case differ
    line: int | None = None  # the entry's line in its file


class Lexicon:
    """A set of entries that finds the entry with which a text continues.

    Args:
        entries: at most `MAX_ENTRIES`.
        where: the name of their source in error messages.
    Raises:
        UsageError: an entry is empty or too long, two contradict each other, or there are too many.
    """

    def __init__(self, entries: Iterable[Entry], where: str = "lexicon"):
        self._exact: dict[str, list[Entry]] = {}
        self._any: dict[str, list[Entry]] = {}
        firsts: dict[tuple[bool, str, str | None], tuple[Entry, str]] = {}  # with their places
        for number, entry in enumerate(entries, start=1):
            if number > MAX_ENTRIES:
                raise UsageError(
                    f"{where} has more than {MAX_ENTRIES} entries.",
                    hint="Give only the words of this text.",
                )
            place = f"line {entry.line}" if entry.line else f"entry {number}"
            _check(entry, f"{where}, {place}")
            plain_entry = replace(entry, word=plain(entry.word))
            key = plain_entry.word if entry.is_exact else folded(plain_entry.word)
            row = entry.is_exact, key, entry.language
            if row not in firsts:
                firsts[row] = entry, place
                words = self._exact if entry.is_exact else self._any
                words.setdefault(key, []).append(plain_entry)
                continue
            first, first_place = firsts[row]
            if first.respelling != entry.respelling:
                raise UsageError(
                    f"{where}, {place}: {entry.word!r} is respelled {entry.respelling[:40]!r}, "
                    f"but {first_place} respells {first.word!r} {first.respelling[:40]!r}.",
                    hint="Keep one of the two, or give them different languages.",
                )
        self._keys = [sorted(words) for words in (self._exact, self._any)]
        self._begins = frozenset(key[0] for keys in self._keys for key in keys)

    def __len__(self) -> int:
        return sum(map(len, (*self._exact.values(), *self._any.values())))

    @staticmethod
    def of(value: Any) -> Lexicon | None:
        """Return the lexicon for a caller's value: a lexicon, a file, a dict, or None.

        Raises:
            UsageError: the value is none of these, or contains an error; the message names its
                place.
        """
        if value is None or isinstance(value, Lexicon):
            return value
        if isinstance(value, str | os.PathLike):
            return Lexicon.read(value)
        check_type("lexicon", value, Mapping, "a file, a Lexicon or a dict")
        return Lexicon(Entry(word, respelling) for word, respelling in value.items())

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Lexicon:
        """Read a lexicon from a file: PLS if it begins like XML, otherwise lines with tabs.

        Raises:
            UsageError: the file cannot be read, is too large, or contains an error; the message
                names the line.
        """
        try:
            with Path(path).open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except (OSError, ValueError) as error:  # a name with a null byte is a ValueError
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"Cannot read the lexicon {path}: {reason}.") from error
        if len(data) > MAX_FILE_BYTES:
            raise UsageError(f"{path} has more than {MAX_FILE_BYTES // 2**20} MiB.")
        return Lexicon.parse(data, str(path))

    @staticmethod
    def parse(data: bytes | str, where: str = "lexicon") -> Lexicon:
        """Read a lexicon from the contents of a file; see `read`."""
        data = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
        if data.lstrip(b"\xef\xbb\xbf\xff\xfe\0 \t\r\n").startswith(b"<"):
            words = pls.parse(data, where)
            return Lexicon((Entry(*word, line=line) for line, word in words), where)
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data[: error.start].count(b"\n") + 1
            raise UsageError(f"{where}, line {line}: not UTF-8 ({error.reason}).") from error
        rows = enumerate(text.split("\n"), start=1)
        filled = ((number, row.rstrip("\r")) for number, row in rows if row.strip())
        return Lexicon((_entry(row, where, line) for line, row in filled if row[0] != "#"), where)

    def find(
        self, text: str, lower: str, begin: int, is_ended: bool, language: str
    ) -> Entry | int | None:
        """Return the longest entry that matches whole words at `begin`.

        Args:
            lower: the result of `folded` for the text.
            is_ended: whether the text is complete.
            language: the text's language; with "auto", an entry must fit the script of its word.
        Returns:
            The entry, or 0 if none matches, or None while later text may still change that.
        """
        if lower[begin] not in self._begins and text[begin] not in self._begins:
            return 0
        if text[begin].isalnum() and not _is_edge(text, begin):
            return 0
        best: Entry | None = None
        stop = min(len(text), begin + MAX_WORD_CHARS)
        is_open = stop == len(text) and not is_ended
        for keys, words, source in zip(
            self._keys, (self._exact, self._any), (text, lower), strict=True
        ):
            given = source[begin:stop]
            place = bisect_left(keys, given)
            if is_open and "".join(keys[place : place + 1]).startswith(given):
                return None  # a longer entry may match, or the word may go on
            for length in range(len(given), len(best.word) if best else 0, -1):
                found = words.get(given[:length])
                fits = _entry_of(found, language) if found else None
                if fits and _is_edge(text, begin + length):
                    best = fits
                    break
        return best or 0


def _entry_of(entries: Sequence[Entry], language: str) -> Entry | None:
    if entries and language == AUTO:
        language = ScriptWatch(AUTO).language(entries[0].word)
    fitting = [entry for entry in entries if entry.language in (None, language)]
    return max(fitting, key=lambda entry: entry.language is not None, default=None)


def _is_edge(text: str, place: int) -> bool:
    """Return whether a word may begin or end at `place`; Han and kana may always do so."""
    if place in (0, len(text)):
        return True
    before, after = text[place - 1], text[place]
    if _UNSPACED_CHAR.match(before) or _UNSPACED_CHAR.match(after):
        return True
    return not (before.isalnum() and (after.isalnum() or after in "_\u0300\u0301\u0308"))


def folded(text: str) -> str:
    """Return the text in lower case and with plain spaces; its length stays the same."""
    lower = text.lower()
    if len(lower) != len(text):
        lower = "".join(low if len(low := char.lower()) == 1 else char for char in text)
    return _SPACE.sub(" ", lower)


def _entry(row: str, where: str, line: int) -> Entry:
    place = f"{where}, line {line}"
    word, *columns = row.split("\t")
    if not columns or len(columns) > 3:
        raise UsageError(
            f"{place}: {row[:40]!r} has {f'{len(columns) + 1} columns' if columns else 'no tab'}.",
            hint='A line is word<TAB>respelling; a language and "exact" or "any" may follow.',
        )
    respelling, language, case = (each.strip() for each in [*columns, "", ""][:3])
    if case not in ("", *_CASES):
        raise UsageError(f"{place}: case is {case[:20]!r}; known: {', '.join(_CASES)}.")
    language = language_of_code(language) or language.lower()
    return Entry(word.strip(), respelling, language or None, case == "exact", line)


def _check(entry: Entry, where: str) -> None:
    for name, value, limit in (
        ("word", entry.word, MAX_WORD_CHARS),
        ("respelling", entry.respelling, MAX_RESPELLING_CHARS),
    ):
        check_type(f"{where}: the {name}", value, str, "a string")
        if len(value) > limit:
            raise UsageError(
                f"{where}: the {name} {value[:20]!r}... has {len(value)} characters; the limit is "
                f"{limit}."
            )
        if unspeakable := REMOVED.search(value):
            raise UsageError(
                f"{where}: the {name} has the character U+{ord(unspeakable[0][0]):04X}, "
                "but control characters and lone surrogates are removed from every text."
            )
    if not any(map(str.isalnum, entry.word)):
        raise UsageError(f"{where}: the word {entry.word!r} has no letter or digit.")
