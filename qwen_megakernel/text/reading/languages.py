"""The grammars of the languages that a library covers, and which one a text is read in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from qwen_megakernel.text.languages import AUTO
from qwen_megakernel.text.reading.chinese import chinese
from qwen_megakernel.text.reading.english import english
from qwen_megakernel.text.reading.french import french
from qwen_megakernel.text.reading.german import german
from qwen_megakernel.text.reading.grammar import Grammar
from qwen_megakernel.text.reading.italian import italian
from qwen_megakernel.text.reading.japanese import japanese
from qwen_megakernel.text.reading.joining import WordJoining
from qwen_megakernel.text.reading.korean import korean
from qwen_megakernel.text.reading.language import Language
from qwen_megakernel.text.reading.portuguese import portuguese
from qwen_megakernel.text.reading.russian import russian
from qwen_megakernel.text.reading.spanish import spanish

ENGLISH = "english"  # of Latin letters, where "auto" was asked for
_MAKERS: dict[str, Callable[[], Language]] = {
    "chinese": chinese,
    ENGLISH: english,
    "french": french,
    "german": german,
    "italian": italian,
    "japanese": japanese,
    "korean": korean,
    "portuguese": portuguese,
    "russian": russian,
    "spanish": spanish,
}


class Grammars:
    """The grammars of one engine, each made when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[str, tuple[Grammar | None, WordJoining]] = {}

    def of(self, language: str) -> tuple[Grammar | None, WordJoining]:
        """Grammar and joining of a language; no grammar for one that none is written for."""
        if language not in self._made:
            with self._lock:
                tables = _MAKERS[language]() if language in _MAKERS else None
                made = Grammar(tables) if tables else None, WordJoining(tables)
                self._made.setdefault(language, made)
        return self._made[language]


def known_languages() -> list[str]:
    """The languages that are read in words."""
    return sorted(_MAKERS)


def missing(language: str) -> str:
    """What to warn of where the expressions of a language are left as they are."""
    return (
        f"numbers and symbols are left as they are written: normalize reads no {language}; "
        f"it reads {', '.join(known_languages())}"
    )


class ScriptWatch:
    """The language of a text, from the letters so far: where "auto" was asked for.

    Args:
        language: named by the request, or "auto".
    """

    def __init__(self, language: str):
        self._named = None if language == AUTO else language
        self._counts: dict[str, int] = {}

    def is_known(self, words: str) -> bool:
        """Whether these words or those before them have a letter, or the request named one."""
        return bool(self._named or self._counts or any(map(str.isalpha, words)))

    def look(self, words: str) -> None:
        """Count the letters of words that have been read."""
        if not self._named:
            for script in _scripts(words):
                self._counts[script] = self._counts.get(script, 0) + 1

    def language(self, words: str) -> str:
        """The language of these words: of their own script, if it is not Latin."""
        if self._named:
            return self._named
        own = [script for script in _scripts(words) if script != ENGLISH]
        counts = self._counts
        script = own[0] if own else max(counts, key=counts.__getitem__, default=ENGLISH)
        has_kana = "japanese" in own or "japanese" in counts
        return "japanese" if script == "chinese" and has_kana else script


def _scripts(text: str) -> Iterator[str]:
    """The language that each script in a text stands for: once a word of Latin, else a letter."""
    was_latin = False
    for char in text:
        is_latin = char.isalpha() and (char < "\u0370" or "\u1e00" <= char < "\u2000")
        if is_latin and not was_latin:
            yield ENGLISH
        elif char.isalpha() and not is_latin and (name := _of_char(char)):
            yield name
        was_latin = is_latin


def _of_char(char: str) -> str | None:
    if "\u0400" <= char < "\u0530":
        return "russian"
    if "\uac00" <= char <= "\ud7a3" or "\u1100" <= char < "\u1200" or "\u3130" <= char < "\u3190":
        return "korean"
    if "\u3040" <= char < "\u3100" or "ｦ" <= char <= "ﾟ":
        return "japanese"
    return "chinese" if "\u3400" <= char <= "\u9fff" or char >= "\U00020000" else None
