"""Names of currencies, units and months from the Unicode CLDR, in every language."""

import re
from dataclasses import dataclass

# Signs of currencies, each with its code, and codes. A code that is an English word is left out.
_SIGNS = """HK$ HKD; NT$ TWD; S$ SGD; A$ AUD; C$ CAD; NZ$ NZD; MX$ MXN; R$ BRL; US$ USD; ₱ PHP
    ₺ TRY; ₴ UAH; ₫ VND; ₦ NGN; ₪ ILS; ฿ THB; ₡ CRC; ₲ PYG; ₸ KZT; ₵ GHS; zł PLN; Kč CZK; kr SEK
    Ft HUF; ₹ INR; Rs. INR; Rs INR; Rp IDR; RM MYR; ₩ KRW; ₽ RUB; € EUR; £ GBP; $ USD; ¥ JPY; SEK
    NOK; DKK; PLN; CZK; HUF; CHF; AUD; CAD; NZD; SGD; HKD; TWD; INR; CNY; JPY; KRW; BRL; MXN; ZAR
    COP; CLP; ARS; ILS; THB; PHP; IDR; MYR; VND; AED; SAR; RUB; UAH; GBP; EUR; USD"""
# Units, each with symbols that people type and the CLDR lacks in most languages.
_UNITS = """length-kilometer; length-meter: m м; length-centimeter; length-millimeter
    length-micrometer: um; length-nanometer; length-mile; length-yard; length-foot; area-hectare
    area-square-kilometer: km2; area-square-meter: m2 ㎡ м2; volume-cubic-meter: m3
    volume-liter: l L л; volume-milliliter: ml mL; volume-centiliter: cl cL; volume-deciliter: dl dL
    mass-tonne: t т; mass-kilogram; mass-gram: g г гр; mass-milligram; mass-microgram; mass-ounce
    mass-pound; duration-year; duration-month: мес; duration-week; duration-day; duration-hour: h ч
    duration-minute: min; duration-second: s с сек; duration-millisecond; duration-microsecond: us
    concentr-millimole-per-liter: mmol/l mmol/L ммоль/л; acceleration-meter-per-square-second: m/s2
    temperature-celsius: ℃ ºC; temperature-fahrenheit: ℉; angle-degree: °; speed-kilometer-per-hour
    speed-meter-per-second; speed-mile-per-hour; concentr-percent; consumption-mile-per-gallon
    digital-bit; digital-kilobit: kb Kb kbit Кбит; digital-megabit: Mb Mbit
    digital-gigabit: Gb Gbit; digital-kilobyte: KB kB КБ; digital-megabyte; digital-gigabyte
    digital-terabyte; frequency-hertz; frequency-kilohertz; frequency-megahertz; frequency-gigahertz
    power-watt: W; power-kilowatt; power-megawatt; power-gigawatt; power-milliwatt
    energy-kilowatt-hour; energy-kilojoule; energy-kilocalorie; electric-volt: V В
    electric-milliampere; electric-ohm; pressure-hectopascal; pressure-kilopascal; pressure-pascal
    pressure-millimeter-ofhg; light-lux; length-inch: " ″; volume-cup; volume-tablespoon: tbsp
    volume-teaspoon: tsp; graphics-pixel"""
# Units that are written as words, too; in these languages a number agrees with them.
_IN_WORDS = re.compile("duration-|volume-(?:cup|t)|mass-tonne")
_AGREEING = ("de", "es", "fr", "it", "pt_BR", "ru")
# Symbols that are also other things: "seat 12A", "3 m.", "a las 5 ha llegado".
_LETTER = re.compile(r"[^\W\dΩ]\.?")
_WORDS = {
    **dict.fromkeys(("es", "it"), ("ha", "mi")),
    **{"en": ('"', "″"), "fr": ("mi", "pi"), "pt_BR": ("mi", "um"), "de": ("um", "Um")},
}
_MASCULINE = ("byte", "joule", "ampere", "wattora", "día", "dia", "grama")  # despite their ending
_FEMININE = (  # French nouns, whose ending does not show it
    *("couronne", "livre", "roupie", "hryvnia", "heure", "minute", "seconde", "milliseconde"),
    *("tonne", "semaine", "année", "once", "kilocalorie", "cuillère", "tasse"),
)


@dataclass(frozen=True, slots=True)
class Noun:
    """A noun after a number: its forms for one, for two to four, and for more, and its gender.

    The gender is m, f or n. It is c for nouns before which a numeral has another form than alone,
    as in Italian "un" and "uno".
    """

    one: str
    few: str
    many: str
    gender: str = "m"


def currency_forms(language: str, gender: str) -> dict[str, Noun]:
    """Return each currency's names by its signs, some of which only this language has."""
    from babel import numbers

    found: dict[str, Noun] = {}
    for entry in _SIGNS.replace("\n", ";").split(";"):
        sign, code = (entry.split() * 2)[:2]
        forms = [numbers.get_currency_name(code, count, language) for count in (1, 2, 5)]
        if language == "pt_BR":  # whose names begin with a capital
            forms = [name[0].lower() + name[1:] for name in forms]
        found[sign] = _noun(language, gender, *forms)
        found.setdefault(numbers.get_currency_symbol(code, language), found[sign])
    return found


def unit_forms(language: str, gender: str) -> dict[str, Noun]:
    """Return the forms of each unit's name by its symbols.

    A "{}" in a name stands for the number, as in "秒速{}メートル".
    """
    from babel.units import format_unit

    found = {}
    for entry in re.split(r"[;\n]", _UNITS):
        unit, _, more = entry.strip().partition(": ")
        said = [
            [format_unit(int(n), unit, length, locale=language).replace(n, "{}") for n in "125"]
            for length in ("long", "short")
        ]
        forms, symbols = ([re.sub(r"^{}\s*", "", each) for each in row] for row in said)
        if any(unit in text for text in forms):
            forms = symbols  # Babel lacks the long pattern
        if any(unit in text for text in forms + symbols):
            continue
        if language in ("ja", "zh"):
            forms = [name.replace(" ", "") for name in forms]
        names = [re.sub(r"\s", " ", name).replace("’", "'") for name in forms]
        is_word = language in _AGREEING and _IN_WORDS.match(unit)
        keys = {*symbols} - {*forms}
        keys = {key for key in keys if not _LETTER.fullmatch(key)}
        keys |= {key for key in more.split() if language == "ru" or not "а" <= key.lower() <= "я"}
        keys -= {"in", *_WORDS.get(language, ())}
        for key in keys | ({*names} if is_word else set()):
            found[key.replace("μ", "µ")] = found[key] = _noun(language, gender, *names)
    return found


def month_names(language: str) -> list[str]:
    """Return the names of the months in dates; none where they are numbers."""
    from babel.dates import get_month_names

    names = get_month_names("wide", "format", language)
    return [] if names[1][0].isnumeric() else [names[month] for month in range(1, 13)]


def weekday_names(language: str) -> dict[str, str]:
    """Return the names of weekdays by their abbreviations, without a point, in three cases."""
    from babel.dates import get_day_names

    short, wide = (get_day_names(width, "format", language) for width in ("abbreviated", "wide"))
    forms = [*short.items()] + [(day, wide[day][:-1]) for day in wide if language == "ja"]  # "月曜"
    names = {form.rstrip("."): wide[day] for day, form in forms if form != wide[day]}
    return {form: names[low] for low in names for form in (low, low.capitalize(), low.upper())}


def _noun(language: str, gender: str, one: str, few: str, many: str) -> Noun:
    """Return a noun, which is feminine by its ending, or has the gender of most nouns."""
    head = one.split(" pro ")[0].split()[-1 if language == "de" else 0]
    endings = {"de": ("e", "Lira"), "ru": ("а", "я"), "fr": _FEMININE, "pt_BR": ("a", "colher")}
    is_feminine = head.endswith(endings.get(language, ("a",))) and not head.endswith(_MASCULINE)
    return Noun(one, few, many, "f" if is_feminine else gender)
