"""The grammars of all languages that can be read, and the choice of one for a text."""

import functools
import re

from qwen_megakernel.text.languages import AUTO
from qwen_megakernel.text.reading.chinese import Chinese
from qwen_megakernel.text.reading.english import English
from qwen_megakernel.text.reading.french import French
from qwen_megakernel.text.reading.german import German
from qwen_megakernel.text.reading.grammar import Grammar
from qwen_megakernel.text.reading.italian import Italian
from qwen_megakernel.text.reading.japanese import Japanese
from qwen_megakernel.text.reading.korean import Korean
from qwen_megakernel.text.reading.language import Language
from qwen_megakernel.text.reading.portuguese import Portuguese
from qwen_megakernel.text.reading.russian import Russian
from qwen_megakernel.text.reading.spanish import Spanish
from qwen_megakernel.text.scripts import HAN, KANA

_SCRIPTS = re.compile(
    r"(?=[^\W\d_])(?:(?P<english>(?:(?=[\0-\u036f\u1e00-\u1fff])[^\W\d_])+)"
    r"|(?P<russian>[\u0400-\u052f])|(?P<korean>[\uac00-\ud7a3\u1100-\u11ff\u3130-\u318f])"
    rf"|(?P<japanese>[{KANA}])|(?P<chinese>[{HAN}]))"
)
ENGLISH = "english"  # with "auto", the language of Latin letters
_EUROPEAN = (English, French, German, Italian, Portuguese, Russian, Spanish)
LANGUAGES = {each.__name__.lower(): each for each in (*_EUROPEAN, Chinese, Japanese, Korean)}


@functools.lru_cache(64)
def grammar_of(language: str, names_letters: bool = False) -> Grammar | None:
    """Return the grammar of a language, or None if it has no tables; see `Grammar`."""
    return Grammar(_tables_of(language), names_letters) if language in LANGUAGES else None


@functools.cache
def _tables_of(language: str) -> Language:
    return LANGUAGES[language]()


def known_languages() -> list[str]:
    return sorted(LANGUAGES)


def missing(language: str) -> str:
    """Return the warning that a language has no grammar."""
    return (
        f"numbers and symbols stay as they are written, because normalize has no rules for "
        f"{language}; it knows {', '.join(known_languages())}"
    )


class ScriptWatch:
    """Finds the language of a text, by the scripts of its letters, if the request says "auto"."""

    def __init__(self, language: str):
        self._named = None if language == AUTO else language
        self._counts: dict[str, int] = {}

    def is_known(self, words: str) -> bool:
        """Return whether the language of these words is certain.

        It is certain if the request names it, or if the text so far or these words have a letter.
        """
        return bool(self._named or self._counts or any(map(str.isalpha, words)))

    def look(self, words: str) -> None:
        """Count the letters of each script in words that have been read."""
        if not self._named:
            for script in _scripts(words):
                self._counts[script] = self._counts.get(script, 0) + 1

    def language(self, words: str) -> str:
        """Return the language of these words.

        That is the named language; or else the language of the words' script, if it is not Latin;
        or else the language to which most letters of the text so far belong.
        """
        if self._named:
            return self._named
        own = [script for script in _scripts(words) if script != ENGLISH]
        counts = self._counts
        script = own[0] if own else max(counts, key=counts.__getitem__, default=ENGLISH)
        has_kana = "japanese" in own or "japanese" in counts
        return "japanese" if script == "chinese" and has_kana else script


def _scripts(text: str) -> list[str]:
    """Return the language of each letter's script; Latin letters count once for each word."""
    return [match.lastgroup or "" for match in _SCRIPTS.finditer(text)]
