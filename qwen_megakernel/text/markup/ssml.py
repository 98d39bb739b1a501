"""The parser of SSML, the W3C's Speech Synthesis Markup Language.

It feeds the text to the standard library's expat piece by piece. Document types and entities are
errors. So is a tag of more than `MAX_TAG_CHARS` characters: expat scans an incomplete tag from its
beginning again with each piece. A text needs no <speak>, because the parser puts a root element
around every text. The positions in errors do not count that root element.
"""

import re
import reprlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn
from xml.parsers import expat

from qwen_megakernel.errors import MarkupError, UsageError
from qwen_megakernel.printable import printable
from qwen_megakernel.records import Manner
from qwen_megakernel.speech_options import MAX_SPEED, MAX_VOLUME, MIN_SPEED, MIN_VOLUME
from qwen_megakernel.text.cleaning import drop_controls
from qwen_megakernel.text.markup import values
from qwen_megakernel.text.markup.items import (
    Item,
    Pause,
    Place,
    Replaced,
    SayAs,
    SentenceEnd,
    Words,
)

MAX_DEPTH = 64  # of nested elements
MAX_TAG_CHARS = 2048
MAX_READ_AS_CHARS = 256  # of the text in <say-as>, <sub> and <phoneme>, and of its replacement

# The number of characters that expat gets at a time. Together with MAX_TAG_CHARS, it limits how
# often expat scans the same tag.
_SLICE_CHARS = 1024
_ROOT = "megakernel-root"
_DECLARATION = "<?xml"
_LANGUAGE = "xml:lang"
_STYLE = "mstts:express-as"  # of Microsoft's SSML
_READ_AS = ("say-as", "sub", "phoneme")
_SILENT = ("desc", "metadata")  # their text is not spoken
# The elements that have an effect, and their attributes. All others are ignored.
_ATTRIBUTES = {
    "speak": {_LANGUAGE},
    "p": {_LANGUAGE},
    "s": {_LANGUAGE},
    "lang": {_LANGUAGE},
    "break": {"time", "strength"},
    "prosody": {"rate", "volume"},
    "say-as": {"interpret-as", "format"},
    "sub": {"alias"},
    "phoneme": {"ph", "alphabet"},
    _STYLE: {"style"},
    "voice": {"name"},
}
_UNREMARKED = {"version", "xml:base", "xml:space", "xsi:schemaLocation", "id", "detail"}
_MISMATCH = expat.errors.codes[expat.errors.XML_ERROR_TAG_MISMATCH]
_UNDEFINED_ENTITY = expat.errors.codes[expat.errors.XML_ERROR_UNDEFINED_ENTITY]
_BAD_NUMBER = expat.errors.codes[expat.errors.XML_ERROR_BAD_CHAR_REF]
_CUT_PAIR = re.compile("[\ud800-\udbff]\\Z")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


class SsmlParser:
    """An `items.Parser` for SSML.

    Args:
        check: raises a UsageError for a manner whose voice or style is unknown.
    """

    def __init__(self, check: Callable[[Manner], object] = lambda _: None) -> None:
        self.error: MarkupError | None = None
        self._check = check
        self._expat = expat.ParserCreate("utf-8")  # overrides the encoding in a declaration
        # From 2.6.0 on, expat itself defers the scan of an incomplete tag; what it holds back then
        # would not be read before more text comes. `MAX_TAG_CHARS` limits the scans.
        if hasattr(self._expat, "SetReparseDeferralEnabled"):
            self._expat.SetReparseDeferralEnabled(False)
        self._expat.StartElementHandler = self._start
        self._expat.EndElementHandler = self._end
        self._expat.CharacterDataHandler = self._characters
        self._expat.StartDoctypeDeclHandler = self._doctype
        self._num_bytes = 0  # bytes that expat has received
        self._pair = ""  # the first half of a surrogate pair, at the end of a piece
        self._before: str | None = ""  # the text until its XML declaration is complete; then None
        self._root_place: Place | None = None  # where the root element was inserted
        self._recent = b""  # the latest bytes, which show what an error is about
        self._items: list[Item] = []
        self._warnings: list[str] = []
        self._has_ignored = False
        self._elements: list[tuple[str, Place]] = []  # the open elements
        self._manners = [Manner()]  # the manner outside all elements, and inside each open one
        self._manner = Manner()  # the manner of the latest item
        self._text = ""  # text for the next item
        self._is_after_space = True
        self._num_silent = 0  # the number of open elements whose text is not spoken
        # The open <say-as>, <sub> or <phoneme>: its name, its depth, and the function that makes an
        # item of its text.
        self._read_as: tuple[str, int, Callable[[str], Item]] | None = None
        self._pauses_s = 0.0

    def take_warnings(self) -> list[str]:
        warnings, self._warnings = self._warnings, []
        return warnings

    def feed(self, text: str) -> list[Item]:
        text = self._pair + text
        half = _CUT_PAIR.search(text)
        self._pair = half.group() if half else ""
        text = _PAIR.sub(_joined, text[: len(text) - len(self._pair)])
        text = drop_controls(text)
        try:
            for first in range(0, len(text), _SLICE_CHARS):
                self._take(text[first : first + _SLICE_CHARS])
        except MarkupError as error:
            self.error = self.error or error
        return self._taken()

    def end(self) -> list[Item]:
        try:
            if self._before is not None and not self.error:
                self._put_root(self._before)
            if not self.error and self._num_pending():
                self._refuse("the text ends inside a tag.")
            if not self.error and self._elements:
                name, place = self._elements[-1]
                raise _error(place, f"<{name}> is not closed.", f"Close it with </{name}>.")
        except MarkupError as error:
            self.error = self.error or error
        return self._taken()

    def _taken(self) -> list[Item]:
        self._say()
        items, self._items = self._items, []
        return items

    # ---- expat -----------------------------------------------------------------------------------

    def _take(self, text: str) -> None:
        if self.error:
            return
        if self._before is None:
            self._parse(text)
            return
        self._before += text
        begin = self._before[: len(_DECLARATION)]
        if begin == _DECLARATION:
            end = self._before.find("?>") + 2
            if end < 2 and len(self._before) > MAX_TAG_CHARS:
                raise _error(Place(1, 1), "the XML declaration has no end.")
        else:
            end = 0
        if end > 1 or not _DECLARATION.startswith(begin):
            self._put_root(self._before[:end], self._before[end:])

    def _put_root(self, declaration: str, text: str = "") -> None:
        self._before = None
        self._parse(declaration)
        lines = declaration.split("\n")
        self._root_place = Place(len(lines), len(lines[-1]))
        self._parse(f"<{_ROOT}>")
        self._parse(text)

    def _parse(self, text: str) -> None:
        data = text.encode()
        num_pending = self._num_pending()
        self._recent = self._recent[len(self._recent) - num_pending :] + data
        self._num_bytes += len(data)
        try:
            self._expat.Parse(data, False)
        except expat.ExpatError as error:
            # If a closing tag names the wrong element, expat reports the place of that name, which
            # comes after the "</".
            column = error.offset - (len("</") if error.code == _MISMATCH else 0)
            place = self._placed(error.lineno, column)
            raise _error(place, f"{expat.ErrorString(error.code)}.", self._hint(error)) from error
        if self._num_pending() > MAX_TAG_CHARS:
            self._refuse(f"a tag has more than {MAX_TAG_CHARS} characters.")

    def _num_pending(self) -> int:
        """Return how many bytes of an incomplete tag expat holds."""
        index = self._expat.CurrentByteIndex
        return max(0, self._num_bytes - index) if self._num_bytes else 0

    def _hint(self, error: expat.ExpatError) -> str:
        if error.code == _UNDEFINED_ENTITY:
            return "The only entities allowed are &lt; &gt; &amp; &quot; &apos; and &#...;."
        if error.code == _BAD_NUMBER:
            return "XML has no character of this number; remove the reference."
        if error.code == _MISMATCH:
            if not self._elements:
                return "No element is open; remove the closing tag."
            name, place = self._elements[-1]
            return f"The open element is <{name}> at {place}."
        at = self._expat.ErrorByteIndex - self._num_bytes + len(self._recent)
        if self._recent[max(0, at - 2) : at + 1] in (b"<!D", b"<!E"):
            return "Document types and entities are not allowed."
        return "Write & as &amp; and < as &lt;."

    def _place(self) -> Place:
        return self._placed(self._expat.CurrentLineNumber, self._expat.CurrentColumnNumber)

    def _placed(self, line: int, column: int) -> Place:
        root = self._root_place
        if root and line == root.line and column >= root.column + len(_ROOT) + 2:
            column -= len(_ROOT) + 2
        return Place(line, column + 1)

    def _refuse(self, what: str, hint: str = "") -> NoReturn:
        raise _error(self._place(), what, hint)

    def _ignore(self, what: str) -> None:
        """Warn that markup has no effect, once for each text."""
        if not self._has_ignored:
            self._has_ignored = True
            self._warnings.append(
                f"{printable(what)} (SSML, {self._place()}) is not supported and has no effect; "
                "this warning names only the first such place"
            )

    # ---- handlers --------------------------------------------------------------------------------

    def _doctype(self, *_: Any) -> None:
        self._refuse("document types and entities are not allowed.")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name == _ROOT and not self._elements and len(self._manners) == 1:
            self._manners.append(Manner())
            return
        if len(self._elements) >= MAX_DEPTH:
            self._refuse(f"elements are nested deeper than {MAX_DEPTH}.")
        self._elements.append((name, self._place()))
        manner = self._manners[-1]
        if name not in _ATTRIBUTES:
            if name in _SILENT:
                self._num_silent += 1
            self._ignore(f"<{name}>")
        elif self._read_as:
            self._ignore(f"<{name}> in <{self._read_as[0]}>")
        else:
            if unknown := sorted(attributes.keys() - _ATTRIBUTES[name] - _UNREMARKED):
                known = [each for each in unknown if not each.startswith("xmlns")]
                if known:
                    self._ignore(f"{known[0]} of <{name}>")
            manner = self._begin(name, attributes, manner)
        self._manners.append(manner)

    def _begin(self, name: str, attributes: dict[str, str], manner: Manner) -> Manner:
        """Begin a known element; returns the manner inside it."""
        if name == "break":
            self._pause(attributes)
        elif name in ("p", "s", "speak"):
            self._space()
        elif name in _READ_AS:
            self._say()
            self._read_as = name, len(self._elements), self._reading(name, attributes)
        elif name == "prosody":
            return self._prosody(attributes, manner)
        elif name == _STYLE:
            manner = replace(manner, style=self._attribute(name, attributes, "style"))
            self._checked(self._check, manner)
        elif name == "voice":
            self._space()
            who = self._attribute(name, attributes, "name")
            manner = replace(manner, voice=who, style=None)
            self._checked(self._check, manner)
        elif name == "lang" and not attributes.get(_LANGUAGE, "").strip():
            self._refuse("<lang> has no xml:lang.", 'Name the language, such as xml:lang="fr".')
        if language := attributes.get(_LANGUAGE, "").strip():
            return replace(manner, language=language)
        return manner

    def _end(self, name: str) -> None:
        if not self._elements:
            self._refuse(f"</{name}> has no opening tag.")
        self._elements.pop()
        self._manners.pop()
        if name in _SILENT:
            self._num_silent -= 1
        if self._read_as and self._read_as[1] == len(self._elements) + 1:
            self._end_reading()
        elif name in ("p", "s") and not self._read_as:
            self._say()
            self._items.append(SentenceEnd())
            self._space()
        elif name == "voice" and not self._read_as:
            self._space()

    def _characters(self, text: str) -> None:
        if self._num_silent:
            return
        if self._read_as:
            self._text += text
            if len(self._text) > MAX_READ_AS_CHARS:
                self._refuse(
                    f"<{self._read_as[0]}> has more than {MAX_READ_AS_CHARS} characters of text."
                )
            return
        if text[:1].isspace():
            self._space()  # before the turn, as if it had come alone
        if words := " ".join(text.split()):
            self._turn()
            self._text += words
            self._is_after_space = False
        if text[-1:].isspace():
            self._space()

    # ---- items -----------------------------------------------------------------------------------

    def _say(self) -> None:
        """Make an item of the text that was collected."""
        if self._text and not self._read_as:
            self._items.append(Words(self._text))
            self._text = ""

    def _space(self) -> None:
        """Put a space after the collected text, unless it ends with one."""
        if not self._is_after_space:
            self._text += " "
            self._is_after_space = True

    def _turn(self) -> None:
        """Add an item for the manner of the text that follows, if the manner has changed."""
        if self._manners[-1] != self._manner:
            self._say()
            self._manner = self._manners[-1]
            self._items.append(self._manner)

    def _pause(self, attributes: dict[str, str]) -> None:
        if "time" in attributes:
            seconds = self._checked(values.seconds_of, attributes["time"])
        else:
            seconds = self._checked(values.strength_of, attributes.get("strength", "medium"))
        self._pauses_s += seconds
        if self._pauses_s > values.MAX_PAUSES_S:
            self._refuse(f"the pauses are longer than {values.MAX_PAUSES_S:g} s in total.")
        self._space()
        self._say()
        if seconds:
            self._items.append(Pause(seconds))

    def _prosody(self, attributes: dict[str, str], manner: Manner) -> Manner:
        speed, volume = manner.speed, manner.volume
        if "rate" in attributes:
            speed *= self._checked(values.rate_of, attributes["rate"])
        if "volume" in attributes:
            volume += self._checked(values.volume_of, attributes["volume"])
        speed = min(max(speed, MIN_SPEED), MAX_SPEED)
        volume = min(max(volume, MIN_VOLUME), MAX_VOLUME)
        return replace(manner, speed=speed, volume=volume)

    def _end_reading(self) -> None:
        """Make an item of the text in <say-as>, <sub> or <phoneme>."""
        assert self._read_as
        _, _, item_of = self._read_as
        written, self._text, self._read_as = " ".join(self._text.split()), "", None
        self._turn()
        self._items.append(item_of(written))
        self._is_after_space = self._is_after_space and not written

    def _reading(self, name: str, attributes: dict[str, str]) -> Callable[[str], Item]:
        """Return the function that makes an item of the text in <say-as>, <sub> or <phoneme>."""
        if name != "say-as":
            spoken = self._attribute(name, attributes, "alias" if name == "sub" else "ph")
            return partial(Replaced, spoken=spoken, is_phonemes=name == "phoneme")
        kind = self._attribute(name, attributes, "interpret-as")
        form = attributes.get("format", "").strip()
        if kind not in values.SAY_AS:
            self._ignore(f"interpret-as {reprlib.repr(kind)} of <say-as>")
            return Words
        if kind == "date" and form:
            form = self._checked(values.date_form_of, form)
        return partial(SayAs, kind=values.SAY_AS[kind], form=form if kind == "date" else "")

    def _attribute(self, name: str, attributes: dict[str, str], wanted: str) -> str:
        value = " ".join(attributes.get(wanted, "").split())
        if not value:
            self._refuse(f"<{name}> has no {wanted}.")
        if len(value) > MAX_READ_AS_CHARS:
            self._refuse(f"{wanted} of <{name}> has more than {MAX_READ_AS_CHARS} characters.")
        return value

    def _checked(self, parse: Callable[[Any], Any], value: Any) -> Any:
        """Return `parse(value)`; a UsageError becomes a MarkupError that names the place."""
        try:
            return parse(value)
        except UsageError as error:
            raise _error(self._place(), error.what, error.hint) from error


def _joined(pair: re.Match[str]) -> str:
    return pair.group().encode("utf-16", "surrogatepass").decode("utf-16")


def _error(place: Place, what: str, hint: str = "") -> MarkupError:
    return MarkupError(f"SSML, {place}: {what}", hint=hint)
