"""Finds the parts of a text that its model cannot read: scripts of other languages, and markup."""

import re
import unicodedata
from collections.abc import Iterable

from qwen_megakernel.errors import EmptyText
from qwen_megakernel.printable import printable

# A letter's Unicode name begins with its script: "GEORGIAN LETTER AN", "HANGUL SYLLABLE GA". Signs
# of no script (the micro sign, mathematical letters, modifiers) have no such name.
_NAME = re.compile(
    r"(?:FULLWIDTH |HALFWIDTH |SUPERSCRIPT )?(?!MODIFIER)([A-Z][A-Z -]*?)"
    r"(?: (?:CAPITAL|SMALL|FINAL|DIGRAPH|TURNED|SIDEWAYS|SUBJOINED|SUBSCRIPT|MODIFIER|EPIGRAPHIC"
    r"|AFRICAN|INDEPENDENT|MTAVRULI|SUPERFIXED|CLUSTER-INITIAL))*"
    r" (?:LETTER|LIGATURE|SYLLABLE|SYLLABICS|CHARACTER|VOWEL|HIEROGLYPH|CHOSEONG|JUNGSEONG"
    r"|JONGSEONG|(?:UNIFIED |COMPATIBILITY )?IDEOGRAPH)\b"
)
# Latin letters and digits in another style, by their names. Some letters of the mathematical
# alphabets are older than those, and have names of their own.
_STYLED = re.compile(
    r"FULLWIDTH (?:LATIN|DIGIT) |MATHEMATICAL "
    r"|(?:SCRIPT|BLACK-LETTER|DOUBLE-STRUCK) (?:CAPITAL|SMALL) "
)
# The names of scripts in messages; names that are not here are made like "Georgian letters".
_CALLED = {
    "STYLED": "full-width or styled letters",
    "CJK": "Chinese characters",
    **dict.fromkeys(("HIRAGANA", "KATAKANA", "HENTAIGANA"), "Japanese kana"),
    "HANGUL": "Korean letters",
}
# Languages that are not written in Latin letters alone. All texts may have Latin names in them; in
# East Asia, also in full width.
_SCRIPTS_OF = {
    "chinese": {"CJK", "BOPOMOFO", "STYLED"},
    "japanese": {"CJK", "HIRAGANA", "KATAKANA", "HENTAIGANA", "STYLED"},
    "korean": {"HANGUL", "CJK", "STYLED"},
    "russian": {"CYRILLIC"},
}
# Tags of SSML, and pauses. Other words in brackets may be meant to be read.
_MARKUP = re.compile(
    r"</?(?:speak|break|prosody|phoneme|say-as|sub|voice|emphasis|lang|audio|mark|p|s)"
    r"(?:\s[^<>]*)?/?>|\[pause\b[^\[\]]*\]",
    re.IGNORECASE,
)
_OBEYED = {"<": "{} ssml obeys it", "[": "{} pauses obeys [pause 1.5s] and [pause 500ms]"}
_PLAIN = "normalize on makes plain letters of them"
_MAX_TAG_CHARS = 200  # for a tag that may be completed by the next piece
_MAX_SHOWN_CHARS = 10
# A longer word in letters with spaces between words is no word: an encoded file, a key.
_NO_WORD = re.compile(r"[!-~\u00a1-\u052f]{200,}")


def script_of(char: str) -> str | None:
    """Return the script of a letter, as Unicode names it ("GEORGIAN"), or None."""
    match = _NAME.match(unicodedata.name(char, ""))
    return match[1] if match else None


class TextWatch:
    """Finds what a model cannot read in the text of one request, which may arrive in pieces.

    Args:
        languages: names of the languages that the model reads. None means that they are unknown;
            the watch then looks for markup only.
        option: the option that lets markup be obeyed, as the caller writes it.
        is_read: whether a reader makes plain letters of those in another style.
    """

    def __init__(
        self, languages: Iterable[str] | None, option: str = "text_format", *, is_read: bool = True
    ):
        self._option, self._is_read = option, is_read
        self._languages = [] if languages is None else sorted(languages)
        self._met: set[str] = set()
        self._open_tag = ""  # the end of the last piece, if it may be the beginning of a tag

    def look(self, text: str) -> list[str]:
        """Return the new warnings about the next piece of the text, each of them only once."""
        found: list[str] = []
        if self._languages:
            found += self._foreign_scripts(text)
        text = self._open_tag + text
        for tag in _MARKUP.findall(text):
            if tag[0] not in self._met:
                self._met.add(tag[0])
                found.append(
                    f"the text has markup ({printable(tag)}), which is not obeyed but read aloud; "
                    f"{_OBEYED[tag[0]].format(self._option)}"
                )
        if "word" not in self._met and (word := _NO_WORD.search(text)):
            self._met.add("word")
            found.append(
                f"the text has {len(word[0])} characters without a space "
                f"({printable(word[0][:_MAX_SHOWN_CHARS])}...), which are read as they stand"
            )
        begin = max(text.rfind("<"), text.rfind("["))
        is_open = begin >= 0 and not {">", "]"} & set(text[begin:])
        self._open_tag = text[begin:] if is_open and len(text) - begin < _MAX_TAG_CHARS else ""
        return found

    def check(self, text: str) -> None:
        """Raise EmptyText for words of a whole text in which the model reads no letter or digit."""
        chars = list(filter(str.isalnum, text)) if self._languages else []
        scripts = set(map(self._script_of, chars))
        if chars and not (scripts & self._scripts or None in scripts):
            raise EmptyText(
                f'Text "{text.strip()[:_MAX_SHOWN_CHARS]}" has no letter that this model reads.',
                f"It knows {', '.join(self._languages)}.",
                hint=f"{_PLAIN}." if "STYLED" in scripts else "",
            )

    @property
    def _scripts(self) -> set[str]:
        return {"LATIN"}.union(*(_SCRIPTS_OF.get(name, set()) for name in self._languages))

    def _script_of(self, char: str) -> str | None:
        is_styled = not self._is_read and _STYLED.match(unicodedata.name(char, ""))
        return "STYLED" if is_styled else script_of(char)

    def _foreign_scripts(self, text: str) -> list[str]:
        known = self._scripts
        foreign: dict[str, str] = {}
        for char in text:
            if char.isascii() or not char.isalnum():
                continue
            script = self._script_of(char)
            if script is not None and script not in known:
                name = _CALLED.get(script, f"{script.title()} letters")
                foreign[name] = foreign.get(name, "") + char
        found = []
        for name, letters in foreign.items():
            if name not in self._met:
                self._met.add(name)
                found.append(
                    f"the text has {name} ({letters[:_MAX_SHOWN_CHARS]}), which this model does "
                    f"not read; it knows {', '.join(self._languages)}"
                    + (f"; {_PLAIN}" if name == _CALLED["STYLED"] else "")
                )
        return found
