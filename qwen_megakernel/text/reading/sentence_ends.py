"""Where sentences end: which points belong to an abbreviation, an initial or an ordinal.

The tables of all languages decide together, because a text may be in any of them: its language need
not be known, and a word of one language is hardly ever an abbreviation of another. Such words
("no.", "art.") are abbreviations only before a number.
"""

import functools
import re
from collections.abc import Iterator

from qwen_megakernel.text.reading.german import ORDINAL_ARTICLES, ORDINAL_STEMS
from qwen_megakernel.text.reading.languages import LANGUAGES
from qwen_megakernel.text.reading.surroundings import (
    CLOSING,
    OPENING,
    POINTS,
    WIDE_CLOSING,
    WIDE_POINTS,
)
from qwen_megakernel.text.reading.tables import table

# So many characters before the next word decide whether a sentence ends there. Longer runs of
# white space end none.
WINDOW = 160
_CLOSERS, _OPENERS = re.escape(CLOSING + "“‘"), re.escape(OPENING)
# A place at which a sentence may end: marks, what closes behind them, and white space; full-width
# marks need no white space. Some always end one: "!" and "?" before a space, whatever follows, an
# empty line, and a paragraph's separator.
_PLACE = re.compile(
    rf"(?P<sure>(?<![{POINTS}])[!?؟।॥]++)\s"
    rf"|(?P<marks>(?<![{POINTS}])[{POINTS}]++)[{_CLOSERS}]{{0,8}}\s{{1,64}}"
    rf"|(?P<wide>[{WIDE_POINTS}])(?P<closed>[{WIDE_CLOSING}”’)\]*_\"']{{0,8}})\s{{0,64}}(?![{WIDE_POINTS}])"
    r"|\n[^\S\n]{0,64}\n\s{0,64}|\u2029"
)
_TOKEN = re.compile(r"\S{1,32}\Z")
_NEXT = re.compile(
    rf"(?:[-–—•]\s)?[{_OPENERS}]{{0,64}}(?P<word>\w[^\s.,;:!?…]*)(?P<after>.?)", re.DOTALL
)
_UNDECIDED = re.compile(rf"[{_OPENERS}–—• -]{{0,64}}\Z")  # a word may follow
_LETTERS = re.compile(r"[^\W\d_](?:\.-?[^\W\d_])*\.")  # "J.", "z.B.", "J.-C."
_START = re.compile(rf"(?:\A|\n|[{POINTS}{WIDE_POINTS}][^\w\s]{{0,8}}\s)\s*\Z")
# Abbreviations in one language, and words with which a sentence may end in another.
_WORDS = frozenset(
    ("art.", "cap.", "est.", "fig.", "max.", "min.", "no.", "sec.", "vol.", "pt.", "am.", "mar.")
)
_BEFORE_NAMES_TOO = frozenset(("Dr.", "St.", "Ste."))  # of streets, after which a sentence may end
_AFTER_NUMBERS = frozenset(("г.", "в.", "гг."))  # before a name, "г." is a town


class _Tables:
    """What all languages say about words with a point."""

    def __init__(self) -> None:
        self.final = set[str]()  # abbreviations with which a sentence may end
        self.inner = set[str]()  # all others
        self.numbered = set[str]()  # words that announce a number, and names of months
        self.starters = set[str]()  # words with which sentences begin
        self.after_final = set[str]()  # capitalised words that begin none after an abbreviation
        for language in LANGUAGES.values():
            keys = {key.replace("~", " ") for key in table(language.ABBREVIATIONS)}
            own = {key for key in language.final if key.endswith(".")}
            self.final |= own
            parts = (part for key in keys - own for part in re.findall(r"[^ ]+\.", key))
            self.inner |= {*parts, *(key for key in keys - own if key.endswith("."))}
            self.numbered |= {word for word in language.opens if word.endswith(".")}
            months = re.split(r"[\s/]+", language.SHORT_MONTHS)
            self.numbered |= {f"{form}." for month in months for form in (month, month.title())}
            self.starters |= language.starters
            self.after_final |= language.after_final


_tables = functools.cache(_Tables)


def places(text: str) -> Iterator[tuple[int, bool | None]]:
    """Yield the places where a sentence may end, and whether it does.

    None means that text behind the end of `text` decides: the next word begins there, or goes on.
    """
    for match in _PLACE.finditer(text):
        yield match.end(), _is_end(text, match)


def _is_end(text: str, match: re.Match[str]) -> bool | None:
    place = match.end()
    if match["sure"]:
        return True
    if place == len(text):
        return None
    if not match["marks"]:
        return not (match["closed"] and text.startswith(("と", "って"), place))
    following = _NEXT.match(text, place)
    if not following:
        return None if _UNDECIDED.match(text, place) else False
    word = following["word"]
    token = _TOKEN.search(text, max(0, match.start("marks") - 32), match.start("marks") + 1)
    if word[0].islower():
        before = text[max(0, match.start() - WINDOW // 2) : match.start()]
        if match["marks"] != "." or not token or any(map(str.isupper, before)):
            return False
        tables, said = _tables(), token[0].lstrip(OPENING)  # a text without capitals, or phonemes
        known = tables.inner | tables.numbered | tables.final
        return (
            known.isdisjoint((said, said.capitalize()))
            and not _LETTERS.fullmatch(said)
            and not said[:-1].isdecimal()
        )
    if match["marks"] != "." or not token:
        return True
    return _ends_after(token, word, following["after"])


def _ends_after(token: re.Match[str], word: str, after: str) -> bool | None:
    """Return whether a sentence ends between a word with a point and a capital or a digit."""
    tables, said = _tables(), token[0].lstrip(OPENING)
    text = token.string[max(0, token.start() - WINDOW // 2) : token.start()]
    before = text.split()[-2:]
    last = before[-1] if before else ""
    is_known = said in tables.inner or said in tables.numbered
    is_final = said in tables.final and not (said in _AFTER_NUMBERS and not last[-1:].isdigit())
    is_upper = word[0].isupper()
    is_number = said[:-1].isdecimal()
    is_first = _START.search(text) and last not in tables.inner | tables.numbered
    if is_number and (word[0].isdecimal() or is_first):  # of a list, or of a larger number
        return False
    if word[0].isdecimal():
        return is_final or not (is_known or _LETTERS.fullmatch(said))
    if not is_upper:  # a script without capitals
        return True
    if is_number:
        is_ordinal = len(said) <= 3 and before != ["I", "am"] and _announces_ordinal(last.lower())
    elif is_final and not is_known:
        return word not in tables.after_final if after else None
    else:
        is_ordinal = False
    is_letters = said[0].isalpha() and _LETTERS.fullmatch(said) is not None
    is_inner = said in tables.inner and said not in _WORDS
    if not (is_ordinal or is_letters or is_inner or said in _BEFORE_NAMES_TOO):
        return True
    if is_inner and said[0].isupper() and not (is_final or is_letters or said in _BEFORE_NAMES_TOO):
        return False
    if not after:
        return None
    return word in tables.starters and not (after == "." and len(word) == 1)


def _announces_ordinal(word: str) -> bool:
    """Return whether a German word, in lower case, stands before an ordinal: "am 3. Mai"."""
    stem = next((each for each in ORDINAL_STEMS if word.startswith(each)), None)
    return word in ORDINAL_ARTICLES or (stem is not None and len(word) - len(stem) <= 2)
