"""Finds the expressions of a text by the rules of its language.

A language's rules are lines of the tables `RULES` of its class and of the classes above it:

    behind >> pattern => words

The regular expression `pattern` finds an expression. `behind`, which may be left out, is a regular
expression for the word before it, in lower case, or, if it ends with "$", for the text before it
without marks such as quotes at its end. `words` is a template (`Words.fill`) whose fields are the
groups of the pattern, {num} for its number, and {end} for a full stop that it also is; or ".name"
for the method `read_name`. In both patterns, a name in capitals is an attribute of the language or
one of `Language.patterns`.

A grammar reads one segment (`segments`) at a time. At each place where an expression may begin, it
tries the rules in order and uses the first one that matches and returns words.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from qwen_megakernel.text.reading.codes import MAX_PAST, Codes
from qwen_megakernel.text.reading.joining import WordJoining
from qwen_megakernel.text.reading.language import Language
from qwen_megakernel.text.reading.spoken import Draft, Piece
from qwen_megakernel.text.reading.surroundings import OPENING, Found, bare, inside
from qwen_megakernel.text.reading.tables import any_of

_DASHES = ("-", "–", "—")
_LETTER = re.compile(r"(?<![\w'’])[A-Za-z](?![\w'’])")
_ROW = re.compile(r"\S.*?(?:\n.*?)*? => .*")
_compiled = cache(re.compile)  # when a text needs it: most texts meet few of the rules


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern, what the word before it must be, and the function that says what is found."""

    pattern: str
    behind: str
    say: Callable[[Found], str | None]


def rules_of(language: Language) -> Iterator[Rule]:
    """Yield the rules for codes, a language's own, those for marks before numbers, and the rest."""
    patterns = language.patterns()

    def named(match: re.Match[str]) -> str:
        value: Any = patterns.get(match[1]) or getattr(language, match[1].lower())
        if isinstance(value, bool):
            return "" if value else "(?!)"
        return full(value) if isinstance(value, str) else any_of(value)

    def full(pattern: str) -> str:
        return re.sub(r"\{([A-Z_]+)\}", named, pattern)

    for each in (Codes, *type(language).__mro__[: type(language).__mro__.index(Codes)]):
        if each is Language:
            for mark, word in language.before_digits.items():
                say = _saying(language, f"{word}~")
                yield Rule(rf"(?:{mark})(?=\d|[IVXL]+(?!\w))", "", say)
        for row in _ROW.findall(each.__dict__.get("RULES", "")):
            parts = re.split(r"\s+(?:>>|=>)\s+", row)
            *behind, pattern, said = (re.sub(r"\n\s+", "", part) for part in parts)
            before = "".join(map(full, behind))
            before = before if before[-1:] in ("", "$") else rf"\A(?:{before})\Z"
            yield Rule(full(pattern), before, _saying(language, said))


def _saying(language: Language, said: str) -> Callable[[Found], str | None]:
    """Return the method that a rule names, or a function that fills its template."""
    if said[0] == ".":
        return getattr(language, f"read_{said[1:]}")

    def say(found: Found) -> str:
        fields = found.match.groupdict("") | {"end": language.kept_point(found)}
        if "w" in fields:
            fields["num"] = language.number(*language.digits_of(found))
        return language.fill(said, fields)

    return say


class Grammar:
    """The rules of one language.

    Args:
        language: the tables of the language.
        names_letters: whether letters that stand alone are spoken by their names, as words.
    """

    def __init__(self, language: Language, names_letters: bool = False):
        self.language, self._names_letters = language, names_letters
        self.joining = WordJoining(language)
        self._rules = [*rules_of(language)]
        # All rules as one pattern, whose groups are the rules.
        self._any = _compiled("|".join(f"({_unnamed(rule.pattern)})" for rule in self._rules))
        self._has_expressions = lru_cache(4096)(lambda text: bool(self._any.search(text)))

    def read(
        self, segment: Draft, past: str = "", quotes: str = "", rest: str = ""
    ) -> Iterator[Piece]:
        """Yield the pieces to speak for a segment.

        Quotation marks, brackets and other marks around an expression do not change its words: no
        rule sees them, except a point that may belong to an abbreviation.

        The segment has no marks of Markdown. `past` is the end of the text before it, and `quotes`
        are the straight quotation marks that are open there; `rest` begins the text behind it.
        """
        if not self._has_expressions(segment.text):
            yield from segment.kept(0, len(segment.text))
            return
        begin, end = inside(segment.text, quotes)
        yield from segment.kept(0, begin)
        draft = Draft(segment.text[begin:] + rest, segment.origins[begin:])
        yield from self._read(draft, end - begin, past)
        yield from segment.kept(end, len(segment.text))

    def _read(self, draft: Draft, stop: int, past: str) -> Iterator[Piece]:
        lang, text, done, place = self.language, draft.text, 0, 0
        last = ""  # the last character that is spoken
        while place < stop:
            end, words = self._expression(text, place, stop, past)
            if not end:
                place += 1
                continue
            if done < place:
                yield from self._apart(draft, done, last, text[done])
                yield from draft.kept(done, place)
                last = text[place - 1]
            words = self.spoken(words)
            is_suffix = words.startswith(lang.suffixes)
            is_apart = last.isalnum() and words[:1].isalnum() and not is_suffix
            said = lang.space * is_apart + draft.filled(words, place, end)
            yield Piece(said, *draft.place(place, end))
            last = words[-1:] or last
            done = place = end
        if done < stop:
            yield from self._apart(draft, done, last, text[done])
            yield from draft.kept(done, stop)

    def spoken(self, words: str) -> str:
        """Return the words, with names of single letters ("pee em") if the model needs them."""
        names = self.language.letters if self._names_letters else {}
        return _LETTER.sub(lambda match: names.get(match[0].lower(), match[0]), words)

    def _apart(self, draft: Draft, place: int, last: str, following: str) -> Iterator[Piece]:
        """Yield a space between words and the letters after them."""
        is_suffix = self.language.letters_follow and not following.isascii()
        is_suffix = is_suffix or not self.language.space
        if place and last.isalnum() and following.isalnum() and not is_suffix:
            yield Piece(" ", draft.origins[place][0], draft.origins[place][0])

    def _expression(self, text: str, place: int, stop: int, past: str) -> tuple[int, str]:
        """Return the end of the expression at `place` and its words; (0, "") for none.

        No rule matches a character from `stop` on; only the kept points depend on those.
        """
        char, last = text[place], text[place - 1 : place]
        if char.isspace() and text[place + 1 : place + 2] not in _DASHES:
            return 0, ""
        is_suffix = self.language.letters_follow and last.isascii() != char.isascii()
        if last.isalnum() and char.isalpha() and not is_suffix:
            return 0, ""
        if last.isdecimal() and char.isdecimal():
            return 0, ""
        behind = (past + text[:place])[-MAX_PAST:]
        first = self._any.match(text, place, stop)
        if not first or not first.lastindex:
            return 0, ""
        before = bare((text[:place].split() or past.rstrip(OPENING + " ").split() or [""])[-1])
        for rule in self._rules[first.lastindex - 1 :]:
            match = _compiled(rule.pattern).match(text, place, stop)
            seen = behind.rstrip(OPENING) if rule.behind.endswith("$") else before.lower()
            if match and match.end() > place and _compiled(rule.behind).search(seen):
                said = rule.say(Found(match, before, behind))
                if said is not None:
                    return match.end(), self.language.agreeing(said, before)
        return 0, ""


def _unnamed(pattern: str) -> str:
    """Return a pattern that matches at least what `pattern` does, and can be joined with others."""
    flags, body = ("i", pattern[4:]) if pattern.startswith("(?i)") else ("", pattern)
    body = re.sub(r"[?]P<[a-z]+>", "?:", body)
    return rf"(?{flags}:{re.sub(r'[(][?]P=[a-z]+[)]', '.{1,3}', body)})"
