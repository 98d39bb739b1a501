"""The parser of the W3C's Pronunciation Lexicon Specification (PLS).

An `alias` gives the respelling of its graphemes. A `phoneme` is an error, because the models read
letters. Entities and document types are errors, because a small file can become huge with them.
"""

from typing import Any, NoReturn
from xml.parsers import expat

from qwen_megakernel.errors import UsageError
from qwen_megakernel.text.languages import language_of_code

Word = tuple[str, str, str | None]  # a word, its respelling, and the name of its language
NAMESPACE = "http://www.w3.org/2005/01/pronunciation-lexicon"
_LANGUAGE = "http://www.w3.org/XML/1998/namespace lang"
_MAX_TEXT_CHARS = 512  # in each element


def parse(data: bytes, where: str) -> list[tuple[int, Word]]:
    """Return the words of a PLS file, each with the number of its line.

    Raises:
        UsageError: the file is not a PLS lexicon; the message names the line.
    """
    reader = _Reader(where)
    parser = reader.parser
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise UsageError(
            f"{where}, line {error.lineno}: {expat.ErrorString(error.code)}."
        ) from error
    return reader.words


class _Reader:
    def __init__(self, where: str):
        self.words: list[tuple[int, Word]] = []
        self._where = where
        self._path: list[str] = []
        self._graphemes: list[tuple[int, str]] = []  # with their lines
        self._alias: str | None = None
        self._language: str | None = None
        self._text = ""
        self.parser = expat.ParserCreate(namespace_separator=" ")
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters
        self.parser.StartDoctypeDeclHandler = self._doctype
        self.parser.EntityDeclHandler = self._doctype

    def _refuse(self, what: str, hint: str = "") -> NoReturn:
        line = self.parser.CurrentLineNumber
        raise UsageError(f"{self._where}, line {line}: {what}", hint=hint)

    def _doctype(self, *_: Any) -> None:
        self._refuse("document types and entities are not allowed in a lexicon.")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        name = name.removeprefix(f"{NAMESPACE} ")
        if not self._path and name != "lexicon":
            self._refuse(
                f"the root element is <{name}>; a PLS lexicon has <lexicon>.",
                f'Begin the file with <lexicon xmlns="{NAMESPACE}">.',
            )
        if len(self._path) > 8:
            self._refuse("elements are nested more than 8 deep.")
        if name == "lexicon":
            code = attributes.get(_LANGUAGE)
            self._language = language_of_code(code) or code.lower() if code else None
        elif name == "phoneme":
            self._refuse("<phoneme> cannot be spoken.", "Spell the word in an <alias>.")
        elif name == "lexeme":
            self._graphemes, self._alias = [], None
        self._path.append(name)
        self._text = ""

    def _characters(self, text: str) -> None:
        self._text += text
        if len(self._text) > _MAX_TEXT_CHARS:
            self._refuse(f"an element has more than {_MAX_TEXT_CHARS} characters.")

    def _end(self, name: str) -> None:
        name, text = self._path.pop(), " ".join(self._text.split())
        self._text = ""
        if name == "grapheme":
            self._graphemes.append((self.parser.CurrentLineNumber, text))
        elif name == "alias":
            self._alias = text
        elif name == "lexeme":
            if not self._graphemes or self._alias is None:
                self._refuse("a <lexeme> needs a <grapheme> and an <alias>.")
            said = self._alias, self._language
            self.words += [(line, (word, *said)) for line, word in self._graphemes]
