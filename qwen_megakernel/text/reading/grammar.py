"""The patterns of expressions, for every language that has a `Language`.

A grammar reads one segment (`segments`) at a time. At each place where an expression may begin, it
tries its rules in order and uses the first one that matches and returns words.
"""

import re
import unicodedata
from collections.abc import Iterator

from qwen_megakernel.text.reading.announced import MAX_PAST, announced
from qwen_megakernel.text.reading.language import (
    TYPED_SIGNS,
    Currency,
    Language,
    Noun,
    Say,
    any_of,
    roman_number,
)
from qwen_megakernel.text.reading.spoken import Draft, Piece
from qwen_megakernel.text.reading.surroundings import CLOSING, OPENING, bare, first_word, inside

_URL = re.compile(r"(?:(?:https?|ftp|wss?)://|www\.)[^\s<>\"'()\[\]{}]+", re.IGNORECASE)
_HOST_AND_PORT = re.compile(
    r"(?:localhost|\d{1,3}(?:\.\d{1,3}){3}):\d{1,5}(?!\d)(?:/[^\s<>\"'()\[\]{}]*)?", re.IGNORECASE
)
_DOMAIN = re.compile(
    r"(?:[a-z0-9][\w-]*\.)+(?:com|org|net|io|dev|ai|app|edu|gov|info|eu|de|fr|es|it|pt|br|ru|kr|jp"
    r"|cn|uk|us|ca|au|ch|at|co|ly|tv|gg|xyz|nl|pl)(?![\w-]|\.\w)"
    r"(?::\d{2,5}(?!\d))?(?:/[^\s<>\"'()\[\]{}]*)?",
    re.IGNORECASE,
)
_EMAIL = re.compile(r"[\w.+-]{1,64}@(?:[\w-]+\.)+[a-z]{2,}", re.IGNORECASE)
_TRAILING = ".,;:!?*_…"
# Digits in groups, and which of them are a telephone number or a code, not a quantity or a range:
# numbers with a prefix or a leading zero, and layouts of groups in which no quantity is written.
_GROUPS = re.compile(
    r"(?:\+ ?)?\(?\d{1,14}\)?(?:(?: ?[-–./] ?| ?(?=\()|(?<=\)) ?| )\(?\d{1,14}\)?)+"
    r"(?: ?x(?P<x>\d{1,6})(?!\w))?|\+\d{7,15}(?!\d)"
)
_PREFIXED = re.compile(r"\+|\(?0(?![./]\d\b)|\(\d{2,5}\)")
_LAYOUT = re.compile(
    r"(?:\d[-. ])?\d{3}[-–. ]\d{3}[-–. ]\d{4}|\d{3}-\d{2}-\d{4}|\d{3}[-–. ]\d{4}"
    r"|\d{4}(?:[ -]\d{4}){3}"
    r"|\d{3}[- ]\d{4}[- ]\d{4}|\d+(?:-\d+){3,}|\d{4} \d{3} \d{3}|\d{3}(?:[- .]\d\d){3}|\d{4} \d{6}"
    r"|\d(?:[ -]\d{3}){2}(?:[ -]\d\d){2}|\d \(\d{3,5}\) ?\d+(?:[- ]\d+)*|\d{2}[ -]\d{4,5}[ -]\d{4}"
    r"|\d{5} \d{5}|\d{4} \d{2} \d{2} \d{2}|\d{2} \d{3} \d{2} \d{2}"
)
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?: \d{3})+")
_MIN_PHONE_DIGITS = 7
_MIN_CODE_DIGITS = 7  # digits without a mark between thousands that are no quantity
_MIN_NUMBERED_DIGITS = 5  # the same behind a sign for "number"
_NUMBER_MARK = re.compile(r"(?:[nN]\.?[°º]|№|[nN]r\.?|[nN]o\.|[nN]\.)\s?$")
_RANGE_BEGIN = re.compile(r"[$€£¥(]?\d")
_VERSION = re.compile(r"\d+(?:\.\d+){2,}")
_SIGNS = "-−+±~≈<>≤≥"
_DASH = re.compile(r" ?[-–—] ?(?=[$€£¥]?\d)|(?<=\d)~(?=\d)")
_CHAIN = re.compile(r"\d+(?:-\d+){2,}(?![\w-])")  # a formation (4-3-3), the number of a part
_UNIT_POINT = r"(?:\.(?=\s+[a-zß-öø-ÿа-яё\d]))?"  # of a unit, where no sentence begins
# The letters of a model, a flight or a serial number before its digits, which are read one by one.
_NAME_AND_DASH = re.compile(r"(?:(?<![^\W_])[A-ZА-ЯЁ]{1,5}-?|[A-Za-z]\d{1,2}-)$")
_NAME = re.compile(r"(?<![A-Za-zА-яЁё])[A-ZА-ЯЁ]{2,5}$")
_LETTERS_OF_SCALES = ("k", "K", "B", "T")
_HIDDEN_DIGITS = re.compile("[₀-₉]+")
_DASHES = ("-", "–", "—")
_FIRST_YEAR, _LAST_YEAR = 1100, 2099  # four digits in this range are read as a year


class Grammar:
    """The rules of one language.

    Args:
        language: the tables of the language.
        names_letters: whether letters that stand alone are spoken by their names, as words.
    """

    def __init__(self, language: Language, names_letters: bool = False):
        self.language, self._names_letters = language, names_letters
        self._say = {"code": language.spell, "version": self._version, "model": self._model}
        # Matches where no letter or digit follows. Only ASCII ones count in a language that writes
        # words directly after digits.
        self._edge = r"(?![A-Za-z0-9])" if language.letters_follow else r"(?![^\W_])"
        own = [(re.compile(pattern), say) for pattern, say in language.own_rules()]
        self._own = re.compile("|".join(_unnamed(pattern.pattern) for pattern, _ in own) or "(?!)")
        common = ((re.compile(pattern), say) for pattern, say in self._common_rules())
        self._rules = (*own, *common)
        self._interesting = re.compile(
            r"\d|[₀-₉]|\b[IVXLCDM]+(?:er?|re|ᵉ)?\b|://|www\.|@|"
            + any_of([".com", *language.symbols])
        )
        self._abbreviations = frozenset({*language.abbreviations, *language.opens})

    def read(self, segment: Draft, past: str = "", quotes: str = "") -> Iterator[Piece]:
        """Yield the pieces to speak for a segment.

        Quotation marks, brackets and other marks around an expression do not change its words: no
        rule sees them, except a point that may belong to an abbreviation.

        Args:
            segment: a segment without marks of Markdown.
            past: the text before the segment, or the end of it.
            quotes: the straight quotation marks that are open before the segment.
        """
        if not self._may_have_expressions(segment.text):
            yield from segment.kept(0, len(segment.text))
            return
        before = (past.split() or [""])[-1]
        begin, end = inside(segment.text, "" if bare(before).lower() in _ONE else quotes)
        yield from segment.kept(0, begin)
        kind, stop = announced(segment.text[:end], begin, past)
        if kind:
            yield segment.words(begin, stop, self.spoken(self._say[kind](segment.text[begin:stop])))
            begin = stop
        yield from self._read(segment[begin:], end - begin, before)
        yield from segment.kept(end, len(segment.text))

    def _read(self, draft: Draft, stop: int, before: str) -> Iterator[Piece]:
        text, done, place = draft.text, 0, 0
        last = ""  # the last character that is spoken
        while place < stop:
            end, words = self._expression(text, place, stop, before)
            if not end:
                place += 1
                continue
            if done < place:
                yield from self._apart(draft, done, last, text[done])
                yield from draft.kept(done, place)
                last = text[place - 1]
            words = self.spoken(words)
            lang = self.language
            is_suffix = lang.to_is_suffix and words.startswith(lang.to)
            is_apart = last.isalnum() and words[:1].isalnum() and not is_suffix
            yield draft.words(place, end, lang.space * is_apart + words)
            last = words[-1:] or last
            done = place = end
        if done < stop:
            yield from self._apart(draft, done, last, text[done])
            yield from draft.kept(done, stop)

    def spoken(self, words: str) -> str:
        """Return the words of an expression, with the names of letters if the model needs them."""
        return self.language.with_letter_names(words) if self._names_letters else words

    def _apart(self, draft: Draft, place: int, last: str, following: str) -> Iterator[Piece]:
        """Yield a space between words and the letters after them."""
        is_suffix = self.language.letters_follow and not following.isascii()
        is_suffix = is_suffix or not self.language.space
        if place and last.isalnum() and following.isalnum() and not is_suffix:
            yield Piece(" ", draft.starts[place], draft.starts[place])

    def _may_have_expressions(self, text: str) -> bool:
        return bool(
            self._interesting.search(text)
            or any(word.strip(OPENING) in self._abbreviations for word in _forms(text))
            or _DOMAIN.search(text)
            or self._own.search(text)
        )

    def _expression(self, text: str, place: int, stop: int, before: str) -> tuple[int, str]:
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
        if place and (char.isdigit() or char in _DASHES):
            kind, end = announced(text[:stop], place, text[max(0, place - MAX_PAST) : place])
            if kind:
                return end, self._say[kind](text[place:end])
        before = bare((text[:place].split() or [before])[-1])
        for pattern, say in self._rules:
            match = pattern.match(text, place, stop)
            if match and match.end() > place:
                words = say(match, before)
                if words is not None:
                    return match.end(), self.language.agreeing(words, before)
        return 0, ""

    # ---- rules -----------------------------------------------------------------------------------

    def _common_rules(self) -> Iterator[tuple[str | re.Pattern[str], Say]]:
        lang = self.language
        yield from ((each, self._web) for each in (_URL, _EMAIL, _HOST_AND_PORT, _DOMAIN))
        clock = r"(?P<h>\d\d):(?P<min>\d\d)(?::(?P<s>\d\d)(?:[.,]\d+)?)?(?P<utc>Z)?"
        yield rf"(?P<y>\d{{4}})-(?P<m>\d\d)-(?P<d>\d\d)T{clock}{self._edge}", self._date_and_time
        yield r"(?P<y>\d{4})\.(?P<m>\d\d)\.(?P<d>\d\d)(?!\.?\d)", lang.written_date
        yield r"(?P<y>\d{4})([-/])(?P<m>\d{1,2})\2(?P<d>\d{1,2})(?!\d)", lang.written_date
        numeric = r"(?P<{}>\d{{1,2}})([-./])(?P<{}>\d{{1,2}})\2(?P<y>\d{{4}}|\d\d)(?![\d./-]\d|\d)"
        yield r"(?P<d>\d\d)\.(?P<m>\d\d)\.(?P<y>\d{4})(?![\d./-]\d|\d)", lang.written_date
        yield numeric.format(*("dm" if lang.day_first else "md")), lang.written_date
        if lang.says_written_dates:
            links = any_of(lang.links)
            yield (
                rf"(?i)(?P<d>\d{{1,2}})(?:{lang.ordinal_marks})?\.?\s(?:{links}\s)?"
                rf"(?P<m>{lang.month_pattern()})(?:,?\s(?:{links}\s)?(?P<y>\d{{4}})(?!\d))?",
                lang.written_date,
            )
        if lang.letters_follow:
            yield r"(?<=[^\WA-Za-z_])\s?[~～]\s?(?=\d)", lambda *_: lang.between_ends
        if lang.due:
            yield r"(?P<d>\d{1,2})/(?P<m>\d{1,2})(?P<y>(?!))?(?![\d/])", self._day_and_month
        if lang.numbered:
            roman = r"(?P<r>[IVXLCDM]+)"
            yield rf"{roman}\s?[-–—]\s?(?P<to>[IVXLCDM]+)(?!\w|['’]\w)", lang.roman_range
            yield rf"{roman}(?:\.(?=\s|$)|ers?|re|ᵉ|e)?(?!\w|['’]\w)", self._roman
        yield (
            r"(?i)(?P<h>[01]?\d|2[0-4]):(?P<m>[0-5]\d)(?::(?P<s>[0-5]\d))?"
            rf"(?:{lang.time_marks})?(?![\d:])",
            lang.clock,
        )
        yield r"(?P<a>\d{1,4}):(?P<b>\d{1,4})(?![\d:])", self._ratio
        yield rf"(?P<n>\d{{1,3}})['′]\s?\+\s?(?P<m>\d{{1,2}}){self._edge}", self._extra_time
        yield _GROUPS, self._phone
        yield _CHAIN, self._chain
        years = r"(?P<y>1[89]\d\d|20\d\d)/(?P<z>\d\d|(?:19|20)\d\d)(?![\d/])"
        yield years, self._two_years
        yield r"24/7(?![\d/])", self._always
        yield r"(?P<a>\d{1,3})(?:[.,](?P<d>\d{1,2}))?/(?P<b>\d{1,3})(?![\d/])", self._score
        yield r"\d{1,3}(?:,\d{1,3}){2,}(?![\d,.]*\d)", self._list
        yield from self._size_rules()
        yield rf"(?P<n>\d{{1,4}})(?P<letter>[xyz]){self._edge}", self._term
        yield _HIDDEN_DIGITS, lambda match, _: lang.number(unicodedata.normalize("NFKC", match[0]))
        yield _VERSION, self._pointed
        yield from self._money_rules()
        if lang.degree_is_ordinal:
            noun = r"(?=\s[a-zà-ÿ]{3}(?<!\sall|\sdel|\snor|\ssud|\sest|\ssop|\ssob|\scon))"
            yield rf"(?P<w>\d{{1,2}})°{noun}", self._ordinal
            yield r"(?P<w>1)°(?=\s(?:al?|e|y|ao|o)(?!\w)|$)", self._first_day
        yield from self._unit_rules()
        unit = rf"(?P<unit>{any_of(lang.units)}){self._edge}{_UNIT_POINT}"
        bottom = rf"(?P<d>\d{{1,4}})(?![\d/])(?: ?{unit})?"
        yield (rf"(?:(?P<w>\d+)\s)?(?P<n>\d{{1,4}})(?: / |/){bottom}{self._edge}", self._fraction)
        whole = rf"\d{{1,3}}(?:{re.escape(lang.group_mark)}\d{{3}})+|\d+"
        yield rf"(?P<w>{whole})(?:{lang.ordinal_marks}){self._edge}", self._ordinal
        abbreviations = any_of(lang.abbreviations)
        yield rf"(?<![\w/])(?<!\w\.)(?:{abbreviations}){self._edge}(?!/)", self._abbreviation
        yield rf"#\s?{self._num('')}", self._with_number_sign
        yield r"(?:[nN]\.?[º°]|№|#)\s?(?=[A-ZА-Я]{1,4}-?\d)", lambda *_: lang.number_sign + " "
        if "km" in lang.units:
            yield r"km\s(?=\d)", self._at_kilometer
        scales = any_of(scale for scale in lang.scales if scale not in _LETTERS_OF_SCALES)
        if not lang.letters_follow:
            yield rf"{self._num('')}\s?(?P<scale>{scales}){self._edge}", self._scaled
        yield rf"{self._num('')}(?=\s(?P<noun>[^\W\d_]{{2,}}))", self._counted
        yield rf"(?P<sign>[{_SIGNS}]\s?)?{self._num('')}", self._number
        yield _DASH, self._dash
        yield r"-(?=\d)", lambda match, before: " " if match.start() and before[-1:] else None
        yield rf"(?P<sym>{any_of(lang.symbols)})(?!(?P=sym))", self._symbol

    def _num(self, name: str) -> str:
        """Return the pattern of a number, whose groups are `name` + "w" and `name` + "d"."""
        mark, decimal = re.escape(self.language.group_mark), re.escape(self.language.decimal)
        return (
            rf"(?P<{name}w>\d{{1,3}}(?:{mark}\d{{3}})+(?!\d)|\d{{1,3}}(?:[ '’]\d{{3}})+(?!\d)"
            # Numbers grouped as in India, and numbers with the marks of another language.
            rf"|\d{{1,2}}(?:{mark}\d\d)+{mark}\d{{3}}(?!\d)"
            rf"|\d{{1,3}}(?:{decimal}\d{{3}})+(?={mark}\d{{1,2}}(?!\d))"
            rf"|\d+|(?={decimal}\d))(?:[.,](?P<{name}d>\d+))?(?![.,]?\d)"
        )

    def _size_rules(self) -> Iterator[tuple[str, Say]]:
        one, units = r"\d{1,6}(?:[.,]\d{1,3})?", any_of(self.language.units)
        unit = rf"(?: ?(?P<unit>{units}){self._edge})"
        yield rf"(?P<sizes>{one}(?:(?: ?x ?|×){one})+)(?:{unit}|{self._edge})", self._size
        yield rf"(?P<sizes>{one}(?: × {one})+){unit}", self._size
        yield rf"(?P<sizes>{one}(?: × {one}){{2,}})(?P<unit>){self._edge}", self._size

    def _money_rules(self) -> Iterator[tuple[str, Say]]:
        signs = any_of(self.language.currencies)
        scales = any_of([*self.language.scales, *self.language.money_scales])
        number, sign = self._num(""), r"(?P<sign>[-−+~]\s?)?"
        scale = rf"(?:\s?(?P<scale>{scales}){self._edge})?"
        per = r"(?:/(?P<per>[^\W\d_]+))?"
        span = rf"(?:\s?[-–—]\s?(?:{signs})?{self._num('to')})?"
        span += r"(?:,[-–—]{1,2})?" if self.language.decimal == "," else ""
        codes = any_of(
            each for each in self.language.currencies if each.isupper() and len(each) == 3
        )
        code = rf"(?:\s(?P<code>{codes})(?!\w))?"
        yield rf"{sign}(?P<sym>{signs})\s?{number}{span}{scale}{code}{per}", self._money
        yield rf"{sign}{number}{span}{scale}\s?(?P<sym>{signs}){self._edge}{per}", self._money

    def _unit_rules(self) -> Iterator[tuple[str, Say]]:
        span = rf"(?:\s?[-–—]\s?{self._num('to')})?"
        number = rf"(?P<sign>[-−+±~≈<>≤≥]\s?)?{self._num('')}{span}"
        units = any_of(self.language.units)
        square = r"²|2(?!\d)" if "²" in self.language.symbols else r"(?!)"
        unit = rf"(?P<unit>{units})(?:/(?P<per>{units})(?P<square>{square})?)?{self._edge}"
        yield rf"{number}(?P<gap>[ -]?){unit}{_UNIT_POINT}", self._unit
        yield rf"{number}[ ]?%", self._percent
        areas = any_of(unit for unit in self.language.units if unit[-1] in "²³")
        yield rf"(?<=[^\W\d_])/(?P<per>{areas}){self._edge}", self._per_area

    # ---- words of a match ------------------------------------------------------------------------

    def _digits(self, match: re.Match[str], name: str = "") -> tuple[str, str]:
        return re.sub(r"\D", "", match[f"{name}w"]), match[f"{name}d"] or ""

    def _with_number_sign(self, match: re.Match[str], before: str) -> str:
        lang = self.language
        if len(match["w"]) >= _MIN_NUMBERED_DIGITS and match["w"].isdigit() and not match["d"]:
            return lang.number_sign + lang.space + lang.spell(match["w"])
        return lang.number_sign + lang.space + lang.number(*self._digits(match))

    def _joint(self, word: str) -> str:
        """Return a word with the spaces between it and two others."""
        return self.language.space + word + self.language.space

    def _sign(self, match: re.Match[str]) -> str:
        """Return the words of the sign before a number, followed by a space."""
        lang, sign = self.language, (match["sign"] or "").strip()
        if not sign:
            return ""
        words = {"-": lang.minus, "−": lang.minus, "+": lang.plus}
        return (words.get(sign) or lang.symbols.get(sign, "")) + lang.space

    def _number(self, match: re.Match[str], before: str) -> str | None:
        lang, (whole, decimals) = self.language, self._digits(match)
        if self._is_inside(match):
            return None  # a hyphen or a sum, whose sign another rule reads
        is_alone = len(match["w"]) == 4 and not decimals and not match["sign"]
        if self._is_code(match, whole, before):
            return lang.spell(whole)
        if is_alone and _FIRST_YEAR <= int(whole) <= _LAST_YEAR:
            return lang.year(int(whole))
        return self._sign(match) + lang.number(whole, decimals, self._after_article(before))

    def _after_article(self, before: str) -> str:
        """Return the gender of a number behind an article such as "las"; "": of its own."""
        return "f" if before.lower() in self.language.feminine_articles else ""

    def _scaled(self, match: re.Match[str], before: str) -> str:
        """Return the words of a number such as "1,3 Mio."."""
        lang, number = self.language, self._digits(match)
        scale = lang.scales[match["scale"]]
        words = lang.number(*number, scale.gender) + lang.space + lang.form(*number, scale)
        return words + lang.kept_point(match)

    def _counted(self, match: re.Match[str], before: str) -> str | None:
        """Return the words of a number before a noun that asks for another form of it."""
        lang, (whole, decimals) = self.language, self._digits(match)
        if decimals or before.lower() in lang.numbered:
            return None
        gender = self._after_article(before) or lang.gender_after(whole, match["noun"], before)
        return lang.number(whole, "", gender) if gender else None

    def _at_kilometer(self, match: re.Match[str], before: str) -> str:
        unit = self.language.units["km"]
        return (unit.many if before.lower() in ("les", "los", "os", "i") else unit.one) + " "

    def _is_code(self, match: re.Match[str], whole: str, before: str) -> bool:
        """Return whether a number is so long that its thousands would be marked in a quantity."""
        is_counted = match.string[match.end() : match.end() + 1].isalpha()
        is_plain = match[0] == whole and not whole.endswith("000")
        is_numbered = _NUMBER_MARK.search(match.string, 0, match.start()) is not None
        has_name = _NAME_AND_DASH.search(match.string, 0, match.start()) is not None
        if has_name or (
            len(whole) == 4 and _NAME.search(before) and match.start("w") == match.start()
        ):
            is_year = not has_name and _FIRST_YEAR <= int(whole) <= _LAST_YEAR
            is_round = len(whole) < 5 and whole.endswith("00")
            return match[0] == whole and len(whole) > 2 and not (is_year or is_round)
        # A postal code in an address: "rue de la Paix, 75002 Paris".
        is_postal = self.language.decimal == "," and before[-1:] == ","
        is_postal &= len(whole) == (6 if self.language.code == "ru" else 5)
        is_postal &= not before[:-1].isdigit()
        if is_postal and match[0] == whole:
            return True
        least = _MIN_NUMBERED_DIGITS if is_numbered else _MIN_CODE_DIGITS
        return is_plain and not is_counted and len(whole) >= least

    def _is_inside(self, match: re.Match[str]) -> bool:
        """Return whether the sign of a match stands behind a word or a number."""
        last = match.string[: match.start()][-1:]
        return bool(match["sign"]) and (last.isalnum() or last in _BEHIND_NUMBERS)

    def _range(self, match: re.Match[str], noun: Noun, before: str = "") -> str:
        """Return the words of a number or a range, and of the noun that is counted."""
        lang, (whole, decimals) = self.language, self._digits(match)
        noun = lang.noun_after(noun, before)
        first = ""
        if match["tow"] is not None:
            first = lang.number(whole, decimals, noun.gender) + self.language.between_ends
            whole, decimals = self._digits(match, "to")
        return self._sign(match) + lang.count(whole, decimals, noun, first)

    def _money(self, match: re.Match[str], before: str) -> str | None:
        lang = self.language
        if self._is_inside(match):
            return None  # the sign is the dash of a range
        code = match.groupdict().get("code")  # of "$80 MXN"
        currency: Currency = lang.currencies[code or match["sym"]]
        whole, cents = self._digits(match)
        if match["scale"]:
            scales, number = lang.scales | lang.money_scales, (whole, cents)
            scale = scales[match["scale"]]
            words = lang.number(*number, scale.gender)
            if match["tow"] is not None:
                number = self._digits(match, "to")
                words += self.language.between_ends + lang.number(*number)
            unit = lang.noun_after(currency.unit, before)
            joint = lang.space if scale.one == "mil" else lang.scale_joint
            words += lang.space + lang.form(*number, scale) + joint + unit.many
        elif match["tow"] is not None or len(cents) != 2:
            words = self._range(match, currency.unit, before) + self._per(match)
            return words + lang.kept_point(match)
        else:
            unit, cent = lang.noun_after(currency.unit, before), currency.cent
            currency = Currency(unit, lang.noun_after(cent, before) if cent else None)
            words = lang.money(whole, cents, currency)
        return self._sign(match) + words + self._per(match) + lang.kept_point(match)

    def _per(self, match: re.Match[str]) -> str:
        if not match["per"]:
            return ""
        noun = self.language.units.get(match["per"])
        return self._joint(self.language.per) + (noun.one if noun else match["per"])

    def _unit(self, match: re.Match[str], before: str) -> str | None:
        if self._is_inside(match):
            return None  # the sign is the dash of a range
        lang, noun = self.language, self.language.units[match["unit"]]
        if before.lower() in lang.numbered and match["unit"] in (noun.one, noun.few, noun.many):
            return None  # "chapter 1 page 3" counts no pages
        if match["gap"] == "-" and lang.has_compounds and match["tow"] is None:
            return self._sign(match) + lang.number(*self._digits(match)) + "-" + noun.one
        square = f" {lang.symbols['²']}" if match["square"] else ""
        return self._range(match, noun, before) + self._per(match) + square + lang.kept_point(match)

    def _per_area(self, match: re.Match[str], before: str) -> str:
        """Return the words of "/km²" behind a word."""
        return self._per(match)

    def _percent(self, match: re.Match[str], before: str) -> str | None:
        if self._is_inside(match):
            return None  # the sign is the dash of a range
        percent, is_around = self.language.percent, "{}" in self.language.percent
        noun = Noun(*(("",) if is_around else (percent,)) * 3)
        words = self._range(match, noun)
        if not is_around:
            return words
        sign = self._sign(match)
        return sign + percent.format(words.removeprefix(sign).strip())

    def _day_and_month(self, match: re.Match[str], before: str) -> str | None:
        """Return the words of a date without a year; None where it may be a fraction."""
        lang = self.language
        is_due = before.lower().strip(".,") in lang.due or "0" in (match["d"][0], match["m"][0])
        is_sure = is_due or (int(match["d"]) > lang.max_named_part and int(match["m"]) > 10)
        return lang.written_date(match, before) if is_sure else None

    def _roman(self, match: re.Match[str], before: str) -> str | None:
        """Return the words of a Roman numeral after a name or a word such as "chapter"."""
        lang, number = self.language, roman_number(match["r"])
        if not number or match.string[match.start() - 1 : match.start()].strip("(\"'"):
            return None
        noun = first_word(match.string[match.end() :])
        said = lang.roman(number, match, before, noun)
        return said + lang.kept_point(match) if said else None

    def _size(self, match: re.Match[str], before: str) -> str:
        """Return the words of dimensions such as "3 x 4 x 5 cm"."""
        lang, numbers = self.language, re.findall(r"[\d.,]+", match["sizes"])
        parts = [re.split("[.,]", number) for number in numbers]
        is_count = len(parts) == 2 and match["unit"] in lang.units and match["unit"] in _DOSES
        joint = lang.symbols["×"] if is_count else lang.by
        words = self._joint(joint).join(lang.number(*part) for part in parts)
        if not match["unit"]:
            return words
        return words + lang.space + lang.units[match["unit"]].many + lang.kept_point(match)

    def _always(self, match: re.Match[str], before: str) -> str:
        """Return the words of "24/7"."""
        return self.language.number("24") + self.language.space + self.language.number("7")

    def _score(self, match: re.Match[str], before: str) -> str | None:
        """Return the words of a rating such as "4.5/5" or "85/100"; None for a fraction."""
        lang, top, bottom = self.language, match["a"], match["b"]
        is_score = match["d"] or top == bottom or bottom == "100"
        if not lang.out_of or not is_score or (top in ("20", "50") and top == bottom):
            return None
        return lang.number(top, match["d"] or "") + self._joint(lang.out_of) + lang.number(bottom)

    def _list(self, match: re.Match[str], before: str) -> str | None:
        """Return the words of numbers with commas but no spaces between them, such as "1,2,3"."""
        first, *others = match[0].split(",")
        are_groups = len(others[-1]) == 3 and {len(each) for each in others[:-1]} in (
            {2},
            {3},
            set(),
        )
        if are_groups and first[0] != "0":
            return None
        return ("、" if not self.language.space else ", ").join(
            map(self.language.number, [first, *others])
        )

    def _two_years(self, match: re.Match[str], before: str) -> str | None:
        """Return "2019/20" as two years; None where the second does not follow the first."""
        lang, year, second = self.language, int(match["y"]), match["z"]
        if int(second[-2:]) != (year + 1) % 100:
            return None
        is_year = len(second) == 4 or (lang.years_joint is not None and second < "10")
        last = lang.year(year + 1) if is_year else lang.number(second)
        return lang.year(year) + (lang.years_joint or lang.space) + last

    def _term(self, match: re.Match[str], before: str) -> str | None:
        """Return the words of "2x" in a formula; None elsewhere."""
        following = match.string[match.end() :].lstrip()[:1]
        if not (following and following in "+-−=*/^²³") and before not in ("=", "+", "-", "−"):
            return None
        return self.language.number(match["n"]) + self._joint(match["letter"]).rstrip()

    def _ratio(self, match: re.Match[str], before: str) -> str | None:
        lang = self.language
        joint = self.language.between_ends if lang.ratio is None else self._joint(lang.ratio)
        joint = joint if joint.strip() else lang.space
        return lang.number(match["a"]) + joint + lang.number(match["b"])

    def _phone(self, match: re.Match[str], before: str) -> str | None:
        lang, extension = self.language, match["x"]
        text = match.group().partition("x")[0].rstrip()
        following = match.string[match.end() : match.end() + 2]
        if (following[:1].isalnum() and not lang.letters_follow) or following[
            :1
        ] in _MARKS_OF_MONEY:
            return None
        is_number = sum(map(str.isdigit, text)) >= _MIN_PHONE_DIGITS
        is_called = before.lower().strip(".:") in lang.phone_words
        if _THOUSANDS.fullmatch(text) and not is_called:
            is_number &= not (lang.groups_with_spaces or text.endswith(" 000"))
        elif not _PREFIXED.match(text) and not is_called:
            is_number &= _LAYOUT.fullmatch(text) is not None
        if re.fullmatch(r"\d{3} \d{4}", text) and before.strip(".,").isnumeric():
            return None
        is_version = _VERSION.fullmatch(text) and not _LAYOUT.fullmatch(text) and text[0] != "0"
        if not is_number or is_version or re.fullmatch(r"\d+\.\d+", text):
            return None
        plus = lang.plus + " " if text.startswith("+") else ""
        words = plus + ", ".join(map(lang.spell_phone, re.findall(r"\d+", text)))
        return words + (f" {lang.extension} {lang.spell(extension)}" if extension else "")

    def _pointed(self, match: re.Match[str], before: str) -> str | None:
        lang, parts = self.language, match.group().split(".")
        if lang.decimal == "," and all(len(part) == 3 for part in parts[1:]):
            return None  # a number whose thousands are grouped by points
        is_address = len(parts) == 4 and all(int(part) < 256 for part in parts)
        are_groups = all(len(part) == 3 for part in parts[1:]) and 0 < int(parts[0]) < 1000
        if are_groups and not is_address:
            return lang.number("".join(parts))
        if not is_address:
            return self._version(match[0])
        return self._joint(lang.web["."]).join(map(lang.spell, parts))

    def _version(self, text: str) -> str:
        """Return the words of "10.4.12", a version."""
        lang = self.language
        point = lang.point if lang.decimal == "." else lang.web["."]
        return self._joint(point).join(map(lang.number, text.split(".")))

    def _model(self, text: str) -> str:
        """Return the words of the "737-800" of a Boeing, which is no range."""
        say = self.language.spell if self.language.digits else self.language.number
        return self.language.space.join(map(say, text.split("-")))

    def _chain(self, match: re.Match[str], before: str) -> str | None:
        lang = self.language
        return lang.space.join(map(lang.number, match.group().split("-")))

    def _extra_time(self, match: re.Match[str], before: str) -> str:
        """Return the words of a minute of a match such as "45'+2"."""
        lang = self.language
        return lang.number(match["n"]) + self._joint(lang.plus) + lang.number(match["m"])

    def _date_and_time(self, match: re.Match[str], before: str) -> str | None:
        lang, second = self.language, match["s"]
        date = lang.written_date(match, before)
        if date is None or int(match["h"]) > 24 or int(match["min"]) > 59:
            return None
        time = lang.time(int(match["h"]), int(match["min"]), int(second) if second else None)
        return date + lang.space + time + (" UTC" if match["utc"] else "")

    def _fraction(self, match: re.Match[str], before: str) -> str | None:
        lang, top, bottom = self.language, int(match["n"]), int(match["d"])
        noun = lang.units[match["unit"]] if match["unit"] else None
        if match["w"] is None:
            if noun is None and top > bottom > 4:  # a reading such as 118/76, or a beat
                return lang.number(match["n"]) + self._joint(lang.over) + lang.number(match["d"])
            words = lang.fraction_of(top, bottom, noun) if noun else lang.fraction(top, bottom)
            return words + lang.kept_point(match)
        return lang.mixed(match["w"], top, bottom, noun) + (lang.kept_point(match) if noun else "")

    def _ordinal(self, match: re.Match[str], before: str) -> str | None:
        digits, _ = re.subn(r"\D", "", match["w"])
        return self.language.ordinal(int(digits)) if len(digits) < 7 else None

    def _first_day(self, match: re.Match[str], before: str) -> str | None:
        """Return "first" for the "1°" of a span of days, behind a word that only dates have."""
        return self.language.first_day if before.lower() in self.language.due else None

    def _abbreviation(self, match: re.Match[str], before: str) -> str | None:
        lang, key = self.language, match.group()
        return lang.abbreviations[key] + (
            lang.kept_point(match) if key in lang.final or key in lang.scales else ""
        )

    def _dash(self, match: re.Match[str], before: str) -> str | None:
        last = match.string[: match.start()][-1:]
        if self.language.letters_follow and (first := _LAST_NUMBER.search(before)):
            before = first[0]
        ends = before, re.split("[-–—]", before)[-1]  # not the second dash of "1-on-1"
        is_behind = last.isalnum() or last in _BEHIND_NUMBERS
        if not is_behind or not all(map(_RANGE_BEGIN.match, ends)):
            return None
        second = re.match(r"\d+", match.string[match.end() :])
        if (
            before.isdecimal()
            and len(before) >= _MIN_NUMBERED_DIGITS
            and second
            and (int(second[0]) < int(before))
        ):
            return self.language.space  # a number of two parts: "no. 48213-7"
        lang, is_minus = self.language, match.group() == " - " and ":" not in before
        is_minus |= _DIFFERENCE.match(match.string, match.end()) is not None
        second = _SCORED.match(match.string, match.end())
        is_score = second is not None and before.isdecimal() and int(before) > int(second[0])
        if is_score and not is_minus and lang.ratio is not None and len(before) < 4:
            return self._joint(lang.ratio) if lang.ratio else lang.space
        return (
            self._joint(lang.subtraction or lang.minus) if is_minus else self.language.between_ends
        )

    def _symbol(self, match: re.Match[str], before: str) -> str | None:
        words = self.language.symbols[match["sym"]]
        if match.string[: match.start()].endswith(match["sym"]):
            return None  # the symbol is repeated, as in a line of stars
        before_it, after_it = match.string[: match.start()][-1:], match.string[match.end() :][:1]
        if match["sym"] == "*" and not (before[-1:].isalnum() or before_it.endswith(")")):
            return None
        if match["sym"] == "~" and not after_it.isalnum():
            return None
        if match["sym"] in TYPED_SIGNS and (before_it + after_it).strip(" ") in tuple("=<>-!"):
            return None  # a longer sign: "===", "-->"
        is_beside = before_it and not before_it.isspace() and before_it not in OPENING
        space = self.language.space if is_beside else ""
        if not words.strip():
            return words if words and space and after_it.isalnum() else ""
        is_before_word = _BEGINS_WORD.match(match.string, match.end()) is not None
        return space + words + (self.language.space if is_before_word else "")

    def _web(self, match: re.Match[str], before: str) -> str | None:
        """Return the words of an address: its marks by their names, its digits one by one."""
        text = match.group()
        address = re.sub(r"(?i)^(?:https?|ftp|wss?)://", "", text).rstrip(_TRAILING + "/")
        rest = text[len(text.rstrip(_TRAILING)) :]
        words: list[str] = []
        for part in re.findall(r"(?i)^www|[^\W\d_]+|\d|.", address):
            if part.lower() == "www":
                words += ["w", "w", "w"]
            elif part.isdigit():
                words.append(self.language.spell(part))
            else:
                words.append(self.language.web.get(part, part))
        return " ".join(words) + rest


_MARKS_OF_MONEY = frozenset("€$£¥₽%")
_DIFFERENCE = re.compile(r"\d+(?:[.,]\d+)? ?=")
_DOSES = ("mg", "g", "kg", "ml", "mL", "cl", "l", "L", "µg", "мг", "г", "кг", "мл", "л")
_SCORED = re.compile(r"\d{1,3}(?![\d.,:/-]\d|\d|\s?(?:Uhr|h|ч|点|时|時|시|%|€)(?!\w))")
_LAST_NUMBER = re.compile(r"\d[\d:.,]*$")
_BEGINS_WORD = re.compile(r"\w|[-$€£¥−.]\w")
_BEHIND_NUMBERS = frozenset("%°¢")
_ONE = ("a", "an")  # before the size of a thing: a 27" monitor


def _unnamed(pattern: str) -> str:
    """Return a pattern without names of groups, so that it can be joined with others."""
    flags, body = ("i", pattern[4:]) if pattern.startswith("(?i)") else ("", pattern)
    return rf"(?{flags}:{re.sub(r'[?]P<[a-z]+>', '?:', body)})"


def _forms(text: str) -> Iterator[str]:
    """Yield the words of a text, with and without the punctuation that follows them."""
    for word in text.split():
        word = word.strip(OPENING)
        yield word
        yield word.rstrip(",;:!?…" + CLOSING)
        yield word.rstrip(".,;:!?…" + CLOSING)
