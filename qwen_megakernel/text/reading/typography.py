"""Typography: gives the characters of a text the forms that the rules know, before any rule runs.

Texts have several characters for one hyphen, space, apostrophe, digit or letter. The rules read one
of them. What no rule reads is still spoken as the user wrote it. Tags and entities of HTML, which
language models write, become line breaks, marks of Markdown and characters.
"""

import html
import re
import unicodedata

from qwen_megakernel.text.cleaning import REMOVED, SEPARATORS
from qwen_megakernel.text.reading.spoken import Draft
from qwen_megakernel.text.reading.tables import table
from qwen_megakernel.text.scripts import HAN

_ALIKE = {"-": "‐‑‒", "—": "―⸺", "'": "’‘‛ʼ", "/": "⁄∕", ":": "∶", "~": "〜∼"}
_SPACES = "\u00a0\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_FULL_WIDTH = "".join(map(chr, range(0xFF01, 0xFF5F))).replace("，", "") + "￥￡￦￠﹣﹘﹪﹩"
_PLAIN = {ord(char): plain for plain, chars in _ALIKE.items() for char in chars}
_PLAIN |= {ord(char): unicodedata.normalize("NFKC", char) for char in _SPACES + _FULL_WIDTH}
_COMBINING = "\u0300-\u036f\u1160-\u11ff\u3099\u309a"
_MARK = re.compile(f"[{_COMBINING}]")
# Of one character, at most three marks were taken apart. In a longer run NFC sorts the marks, which
# takes quadratic time, and composes none.
_DECOMPOSED = re.compile(rf"\w[{_COMBINING}]{{1,3}}(?![{_COMBINING}])")
_COMPATIBLE = re.compile(
    r"[①-⑳❶-➓Ⅰ-ⅿ㌀-㏿𝐀-𝟿Ａ-Ｚａ-ｚ]|[¼-¾⅐-⅞]|[₀-₉]|х(?=[\s\d])|[⁰¹²³⁴-⁹⁺⁻]+|[０-９](?:，[０-９]{3})+"
)
_BLOCKS = "address article aside blockquote br dd div dl dt footer header hr li main nav ol p pre"
_BLOCKS += " section table tbody tfoot thead tr ul h1 h2 h3 h4 h5 h6"
_INLINE = "a abbr b bdi cite code del em font i img ins kbd mark q s small span strike strong sub"
_INLINE += " sup td th time u var"
_TAG = re.compile(
    rf"<(?P<end>/?)(?P<name>{'|'.join(f'{_BLOCKS} {_INLINE}'.split())})(?:\s[^<>]{{0,240}})?/?>",
    re.IGNORECASE,
)
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|[A-Za-z][A-Za-z\d]{1,23});")
_OPEN_MARKUP = re.compile(
    r"<(?:/?[a-zA-Z][a-zA-Z\d]{0,9}(?:\s[^<>]{0,240})?|/?)/?$|&[#a-zA-Z\d]{0,24}$|\ufe0f$"
    r"|\x1b(?:\[[0-?]{0,32}[@-~]?)?$"
    r"|\$\$?(?:(?:[A-Za-z\\^]|[-\d(][\w.,()]{0,16}(?:\^| ?\\| ?$))[^$\n]{0,60}\$?\$?)?$"
    r"|\^?\\(?:[(\[]|[a-z]{0,12}(?:\{[^{}]{0,40}\}?){0,2})$|[\^_](?:\{[^{}]{0,20})?$"
)
# Codes of a terminal, such as those of colours, which belong to programs' output.
_TERMINAL = re.compile(r"\x1b\[[0-?]{0,32}[@-~]")
# Formulas of LaTeX, and the signs for which their commands stand.
_SIGNS = table(r"""times cdot: ×; div: ÷; pm: ±; le leq: ≤; ge geq: ≥; approx: ≈; ne neq: ≠; pi: π
    to rightarrow: →; infty: ∞; circ degree: °; left right quad: """)
_LATEX = re.compile(
    r"\\(?:[(\[]\s?|[)\]])|\$\$?(?P<formula>(?:(?=[A-Za-z]\$|[^$\n]*[\\^_=+<>])[A-Za-z\\^]"
    r"|[-\d(][\w.,()]{0,16}(?:\^| ?\\))[^$\n]{0,60})\$\$?"
    r"|\\[dt]?frac\{(?P<top>[^{}]{1,40})\}\{(?P<bottom>[^{}]{1,40})\}"
    r"|\\(?:text|math[a-z]{2}|boxed|(?P<root>sqrt))\{(?P<text>[^{}]{1,40})\}"
    rf"|(?P<raised>[\^_])\{{(?P<part>[^{{}}]{{1,20}})\}}|\^?\\(?P<sign>{'|'.join(_SIGNS)})(?![A-Za-z])"
)
_CLOSED = re.compile(rf"(?:{_LATEX.pattern})(?<=\$)(?!\$?\Z)")
_MAX_MARKUP = 256  # characters of a tag that are held back
_LATIN_NAME = re.compile(
    r"LATIN (?:SMALL |CAPITAL )?(?:LETTER|LIGATURE) (?:SMALL CAPITAL |SHARP |DOTLESS )?"
    r"([A-Z]{1,2}|THORN|ETH|ENG|SCHWA|OPEN E|OPEN O)(?: WITH .*)?"
)
_SPELT = {"THORN": "TH", "ETH": "D", "ENG": "NG", "SCHWA": "E", "OPEN E": "E", "OPEN O": "O"}
BEYOND_ASCII = re.compile(r"(?![\0-\x7f])[^\W\d_]")
_INVISIBLE = re.compile("[\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069]|\ufe0f?\u20e3")
# A character that the next one may change: a letter before a combining mark, or part of a run.
_FIXED_KANA = "ぁ-おな-のま-んァ-オナ-ノマ-ンー"
_OPEN = re.compile(rf"[^\W\d_{HAN}{_FIXED_KANA}]|[{_COMBINING}⁰¹²³⁴-⁹⁺⁻０-９，]")
_MAX_OPEN = 32  # characters of such a run that are held back


class Typography:
    """The pass for typography over one text, which may arrive in pieces.

    Args:
        is_normalizing: whether signs such as "½" and "㎏" become digits and letters, too.
    """

    def __init__(self, is_normalizing: bool) -> None:
        self._is_normalizing = is_normalizing
        self._open = ""  # characters that the next piece may change
        self._last = ""  # the character before them

    def take(self, piece: str, end: int, *, is_ended: bool) -> Draft:
        """Return the text that no later piece can change, in the forms that the rules know.

        `end` is the place in the user's text at which its next piece ends, and `is_ended` whether
        no text follows that can combine with the piece.
        """
        text, done = self._open + piece, len(self._open) + len(piece)
        while not is_ended and 0 < done > len(text) - _MAX_OPEN and _OPEN.match(text[done - 1]):
            done -= 1
            if text[done].isalpha() and not _MARK.match(text[done]):
                break
        if self._is_normalizing and not is_ended:
            # The last "$" of a formula that text follows opens none.
            closed = _CLOSED.sub(lambda formula: " " * len(formula[0]), text)
            found = _OPEN_MARKUP.search(closed, max(0, len(text) - _MAX_MARKUP))
            done = min(done, found.start()) if found else done
        self._open = text[done:]
        draft = Draft.at(text[:done], end - len(text))
        if self._is_normalizing and ("<" in draft.text or "&" in draft.text):
            draft = draft.replace(_TAG, _break)
            draft = draft.replace(_ENTITY, lambda found: html.unescape(found[0]))
        if self._is_normalizing and _LATEX.search(draft.text):
            draft = draft.replace(_LATEX, _unformatted)
        if self._is_normalizing and "\x1b" in draft.text:
            draft = draft.replace(_TERMINAL, "")
        if not draft.text.isascii():
            draft = self._plain(draft)
        self._last = text[done - 1] if done else self._last
        return draft.replace(SEPARATORS, " ").replace(REMOVED, "")

    def _plain(self, draft: Draft) -> Draft:
        draft = draft.replace(_DECOMPOSED, _composed, is_spoken=False)
        if self._is_normalizing:
            draft = draft.replace(_COMPATIBLE, self._compatible).replace(_INVISIBLE, "")
        return Draft(draft.text.translate(_PLAIN), draft.origins)

    def _compatible(self, match: re.Match[str]) -> str:
        """Return the plain form: "kg" for "㎏", "1/2" for "½" (after a digit, behind a space)."""
        char, begin = match[0], match.start()
        before = match.string[begin - 1] if begin else self._last
        if char == "х":  # the Cyrillic letter as "x", in "2х500 мл" and "2 х 500 мл"
            is_between = before.isdigit() and match.string[match.end()].isdigit()
            return "x" if is_between or before.isspace() else char
        form = unicodedata.normalize("NFKC", char).replace("⁄", "/").replace("−", "-")
        if "/" in form:
            return f" {form}" if before.isdigit() else form
        if form.lstrip("+-").isdigit() and char[0] in "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻":
            is_power = char not in "²³" and (before.isdecimal() or before == ")")
            return f"^{form}" if is_power else char
        if "❶" <= char <= "➓" or "①" <= char <= "⑳":
            form = str(int(unicodedata.numeric(char)))
            return f" {form}" if before.isnumeric() else form
        return form if form[0] not in "⁺⁻" else char


def _break(tag: re.Match[str]) -> str:
    """Return the line break, and the mark of Markdown, for which a tag stands."""
    name = tag["name"].lower()
    if name not in _BLOCKS.split():
        return " " if name in ("td", "th") else ""
    if tag["end"] or name not in ("li", "h1", "h2", "h3", "h4", "h5", "h6"):
        return "\n"
    return "\n- " if name == "li" else "\n# "


def _unformatted(found: re.Match[str]) -> str:
    """Return the plain text of a formula, or of a part of one: "3/4" for "\\frac{3}{4}"."""
    if formula := found["formula"]:
        return _LATEX.sub(_unformatted, formula).replace("\\", "")
    if found["top"]:
        return f"{found['top']}/{found['bottom']}"
    if found["sign"]:
        return _SIGNS[found["sign"]]
    if found["text"]:
        return "√" * bool(found["root"]) + found["text"]
    return (found["raised"] or "") + (found["part"] or "")


def _composed(match: re.Match[str]) -> str:
    """Return the one character of a letter and its marks; the match if there is none."""
    char = unicodedata.normalize("NFC", match[0])
    return char if len(char) == 1 else match[0]


def base_letter(match: re.Match[str]) -> str:
    """Return the plain letters of a Latin one: "e" for "é", "oe" for "œ"; others unchanged."""
    found = _LATIN_NAME.fullmatch(unicodedata.name(match[0], ""))
    name = _SPELT.get(found[1], found[1]) if found else match[0]
    return name.title() if match[0].isupper() else name.lower()


def plain(text: str) -> str:
    """Return a text in the form in which the rules and the lexicons compare it."""
    return _DECOMPOSED.sub(_composed, text).translate(_PLAIN)
