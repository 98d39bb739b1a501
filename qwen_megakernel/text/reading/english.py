"""English: its numerals, and what only English writes (3:05 pm, 1990s, St., Henry VIII)."""

from __future__ import annotations

import re

from qwen_megakernel.text.reading.english_tables import ABBREVIATIONS, CURRENCIES, UNITS
from qwen_megakernel.text.reading.language import (
    Language,
    Numerals,
    Rule,
    currencies,
    month_forms,
    nouns,
    table,
)

_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_SCALES = ("", " thousand", " million", " billion", " trillion")
_REGNAL = frozenset(
    [
        "henry",
        "louis",
        "george",
        "charles",
        "james",
        "elizabeth",
        "edward",
        "william",
        "richard",
        "john",
        "pope",
        "pius",
        "napoleon",
        "philip",
        "peter",
        "catherine",
        "mary",
        "francis",
        "frederick",
        "alexander",
        "nicholas",
        "paul",
        "benedict",
        "gregory",
    ]
)
_HALVES = {2: ("half", "halves"), 4: ("quarter", "quarters")}
_MAX_PARTS = 20  # of a whole that have names; 120/80 is "over"
_NAMED_FRACTIONS = {(24, 7): "twenty-four seven", (9, 11): "nine eleven", (20, 20): "twenty twenty"}
_ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50}


def english() -> Language:
    """The tables of English."""
    say = Numerals("en")

    def cardinal(number: int, gender: str = "") -> str:
        """In groups of three digits, each of which is remembered."""
        if number < 1000:
            return say(number)
        words: list[str] = []
        for scale in _SCALES:
            number, group = divmod(number, 1000)
            if group:
                joint = "and " if not scale and group < 100 else ""
                words.insert(0, joint + say(group) + scale)
        return " ".join(words)

    def ordinal(number: int) -> str:
        """The last word of the cardinal, changed."""
        head, tail = divmod(number, 100)
        if not tail or not head:
            return say(number, "ordinal")
        return f"{cardinal(head * 100)} and {say(tail, 'ordinal')}"

    def year(number: int) -> str:
        return say(number, "year").replace("oh-", "oh ").replace(" and ", " ")

    def date(day: int, month: int, year_number: int | None, before: str) -> str:
        words = f"{_MONTHS[month - 1]} {ordinal(day)}"
        return words if year_number is None else f"{words}, {year(year_number)}"

    def written_date(match: re.Match[str], before: str) -> str | None:
        """ "5 March 2026", as the British write it."""
        words = f"{ordinal(int(match['d']))} of {_MONTHS[months[match['m'].lower()] - 1]}"
        if before.lower() != "the":
            words = f"the {words}"
        return words + (f" {year(int(match['y']))}" if match["y"] else "")

    def day_of_month(match: re.Match[str], before: str) -> str | None:
        """ "5, 2026" behind the name of a month."""
        if before.lower().strip("*_(\"'.") not in months or not 1 <= int(match["d"]) <= 31:
            return None
        return ordinal(int(match["d"])) + (f", {year(int(match['y']))}" if match["y"] else "")

    def time(hour: int, minute: int, second: int | None) -> str:
        if second is not None:
            words = f"{cardinal(hour)} {minutes(minute)} and {cardinal(second)} "
            return words + ("second" if second == 1 else "seconds")
        if minute:
            return f"{cardinal(hour)} {minutes(minute)}"
        return f"{cardinal(hour)} o'clock" if 1 <= hour <= 12 else f"{cardinal(hour)} hundred"

    def minutes(minute: int) -> str:
        return cardinal(minute) if minute > 9 else f"oh {cardinal(minute)}"

    def half_day(match: re.Match[str], before: str) -> str | None:
        """ "3:05 pm", "3pm"."""
        words = cardinal(int(match["h"]))
        if match["m"] and int(match["m"]):
            words += " " + minutes(int(match["m"]))
        words += f" {match['mark'][0].lower()} m"
        rest = match.string[match.end() :]
        ends = match["mark"].endswith(".") and (not rest.strip() or re.match(r"\s+[A-Z]", rest))
        return words + ("." if ends else "")

    def decade(match: re.Match[str], before: str) -> str | None:
        century, tens = match["c"] or "", int(match["t"])
        if tens:
            plural = say(tens)[:-1] + "ies"
            return f"{cardinal(int(century))} {plural}" if century else plural
        if not century:
            return None
        number = int(century)
        if number % 10:
            return f"{cardinal(number)} hundreds"
        return f"{cardinal(number // 10)} thousands"

    def fraction(top: int, bottom: int) -> str:
        if (top, bottom) in _NAMED_FRACTIONS:
            return _NAMED_FRACTIONS[top, bottom]
        if top == bottom:
            return f"{cardinal(top)} out of {cardinal(bottom)}"
        if bottom < 2 or (bottom > _MAX_PARTS and bottom != 100):
            return f"{cardinal(top)} over {cardinal(bottom)}"
        one, many = _HALVES.get(bottom) or (ordinal(bottom), ordinal(bottom) + "s")
        return f"{cardinal(top)} {one if top == 1 else many}"

    def saint_or_street(match: re.Match[str], before: str) -> str | None:
        return _by_neighbours(match, before, "saint", "street")

    def doctor_or_drive(match: re.Match[str], before: str) -> str | None:
        return _by_neighbours(match, before, "doctor", "drive")

    def roman(match: re.Match[str], before: str) -> str | None:
        """A numeral behind a name or a title: "Henry VIII", "Chapter IV"."""
        if not before[:1].isupper() or before.isupper() or not before.isalpha():
            return None
        number = _roman_number(match.group())
        if before.lower() in _REGNAL:
            return f"the {ordinal(number)}"
        return cardinal(number)

    def power(match: re.Match[str], before: str) -> str | None:
        words = {2: "squared", 3: "cubed"}.get(int(match["n"]))
        return " " + (words or f"to the power of {cardinal(int(match['n']))}")

    def feet(match: re.Match[str], before: str) -> str | None:
        words = f"{cardinal(int(match['ft']))} foot"
        return words + (f" {cardinal(int(match['in']))}" if match["in"] else "")

    months = month_forms(_MONTHS, "jan feb mar apr - jun jul aug sep/sept oct nov dec")
    names = "|".join(sorted(months, key=len, reverse=True))
    extra: tuple[Rule, ...] = (
        (
            re.compile(
                r"(?P<h>1[0-2]|0?[1-9])(?::(?P<m>[0-5]\d))?\s?(?P<mark>[ap]\.m\.?|[ap]m)(?!\w)",
                re.IGNORECASE,
            ),
            half_day,
        ),
        (re.compile(r"['’]?(?P<c>1\d|20)?(?P<t>\d0)['’]?s\b"), decade),
        (
            re.compile(
                rf"(?P<d>[12]\d|3[01]|0?[1-9])(?:st|nd|rd|th)?\s(?:of\s)?(?P<m>{names})\b\.?"
                r"(?:,?\s(?P<y>\d{4})(?!\d))?",
                re.IGNORECASE,
            ),
            written_date,
        ),
        (
            re.compile(
                r"(?P<d>\d{1,2})(?:st|nd|rd|th)?(?:,?\s(?P<y>\d{4}))?(?![\d:%]|\.\d|,\d)(?![^\W_])"
            ),
            day_of_month,
        ),
        (re.compile(r"St\b\.?(?!\w)"), saint_or_street),
        (re.compile(r"Dr\b\.?(?!\w)"), doctor_or_drive),
        (
            re.compile(r"(?:N[or]|Nos|#)\.?\s(?=\d)"),
            lambda match, before: "numbers " if match.group().startswith("Nos") else "number ",
        ),
        (re.compile(r"Fig\.?\s(?=\d)"), lambda match, before: "figure "),
        (re.compile(r"Vol\.?\s(?=\d)", re.IGNORECASE), lambda match, before: "volume "),
        (re.compile(r"pp\.\s?(?=\d)"), lambda match, before: "pages "),
        (re.compile(r"p\.\s?(?=\d)"), lambda match, before: "page "),
        (re.compile(r"[IVXL]{2,7}(?![\w.])"), roman),
        (re.compile(r"(?P<ft>\d)['′’](?:(?P<in>1[01]|\d)(?:\"|″|'')?)?(?!\w)"), feet),
        (re.compile(r"(?:[A-Z]\.){2,}(?!\w)"), _initials),
        (re.compile(r"\^(?P<n>\d{1,3})(?!\d)"), power),
        (re.compile(r"v(?=\d+\.\d)", re.IGNORECASE), lambda match, before: "version"),
        (
            re.compile(r"(?P<a>\d{1,6})(?:\s?x\s?|×)(?P<b>\d{1,6})(?!\w)"),
            lambda match, before: f"{cardinal(int(match['a']))} by {cardinal(int(match['b']))}",
        ),
        (
            re.compile(r"(?P<n>\d{1,3})(?:\.(?P<d>\d))?k(?!\w)"),
            lambda match, before: (
                cardinal(int(match["n"]))
                + (f" point {cardinal(int(match['d']))}" if match["d"] else "")
                + " thousand"
            ),
        ),
    )
    return Language(
        code="en",
        cardinal=cardinal,
        ordinal=ordinal,
        year=year,
        minus="minus",
        plus="plus",
        point="point",
        ordinal_marks="st|nd|rd|th|ST|ND|RD|TH",
        months=_MONTHS,
        month_forms=months,
        day_first=False,
        date=date,
        time=time,
        units=nouns(UNITS),
        per="per",
        currencies=currencies(CURRENCIES),
        money_joint=" and ",
        scales=nouns(
            "k K: thousand\nthousand: thousand\nM mn million: million\nB bn billion: billion"
            "\nT tn trillion: trillion"
        ),
        percent="percent",
        to="to",
        fraction=fraction,
        abbreviations=table(ABBREVIATIONS),
        final=frozenset(
            [
                "Jr.",
                "Sr.",
                "etc.",
                "Inc.",
                "Ltd.",
                "Corp.",
                "Co.",
                "Ave.",
                "Blvd.",
                "Rd.",
                "a.m.",
                "p.m.",
            ]
        ),
        symbols=table(
            "&: and\n@: at\n²: squared\n³: cubed\n++: plus plus\n+: plus\n=: equals\n%: percent"
            "\n÷: divided by\n×: times"
            "\n°: degrees\n≈ ~: about\n<: less than\n>: more than\n≤: at most\n≥: at least"
            "\n±: plus or minus\n©: copyright\n§: section\n→: to\n*: times"
        )
        | {"™": "", "®": "", "/": " "},
        web=table(
            ".: dot\n@: at\n/: slash\n-: dash\n_: underscore\n?: question mark\n=: equals\n&: and"
            "\n#: hash\n%: percent\n~: tilde\n+: plus\n:: colon"
        ),
        links=frozenset({"of"}),
        number_sign="number",
        extra=extra,
        followers=frozenset(["am", "pm", "a.m", "p.m"]),
        opens=frozenset(
            ["St.", "St", "Dr.", "Dr", "No.", "Nos.", "no.", "Fig.", "Vol.", "vol.", "p.", "pp."]
        ),
    )


def _by_neighbours(match: re.Match[str], before: str, title: str, street: str) -> str | None:
    """A title where a name follows, a street where one stands before and none follows."""
    rest = match.string[match.end() :]
    is_name_next = re.match(r"\s+[\"'“]?[A-Z]", rest) is not None
    is_name_before = before[:1].isupper() and before[-1:].isalpha()
    if is_name_next and not (is_name_before and not match.group().endswith(".")):
        if not is_name_before or before.lower() in ("the", "and", "in", "to", "from"):
            return title
        return street + "." if re.match(r"\s", rest) else street
    if not is_name_before:
        return title if not rest.strip() else None
    return street + ("." if match.group().endswith(".") and not rest.strip() else "")


def _initials(match: re.Match[str], before: str) -> str:
    return " ".join(match.group().replace(".", ""))


def _roman_number(text: str) -> int:
    values = [_ROMAN[char] for char in text]
    pairs = zip(values, [*values[1:], 0], strict=True)
    return sum(-value if value < following else value for value, following in pairs)
