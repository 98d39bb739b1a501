"""Expressions that Faker and Babel write, against rules that need no written answers.

Each class has a generator, which yields texts with what must, and what must not, be spoken. Numbers
are compared with num2words, names of months, units and currencies with the Unicode CLDR.
"""

import datetime
import random
import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache

import pytest
from babel import dates, numbers, units
from faker import Faker
from num2words import num2words

from qwen_megakernel.text.reading.languages import LANGUAGES
from qwen_megakernel.text.reading.reader import Reading
from qwen_megakernel.text.sentences import sentence_spans

LOCALES = {
    **{"english": "en_US", "german": "de_DE", "french": "fr_FR", "italian": "it_IT"},
    **{"spanish": "es_ES", "portuguese": "pt_BR", "russian": "ru_RU"},
    **{"chinese": "zh_CN", "japanese": "ja_JP", "korean": "ko_KR"},
}
NUM_CASES = 24  # of each class and language; about 2,000 in all
NUM_SLOW_CASES = 240

Case = tuple[str, Callable[[str], bool]]  # a written expression, and the rule for its words
Generator = Callable[[str, Faker, random.Random], Iterator[Case]]

SURROUNDINGS = ("{}", "({})", "“{}”", "{}.", "{}?", "OK, {}, OK.")
_reading = Reading()


def spoken(language: str, text: str) -> str:
    return _reading.reader("on", language, None).whole(text)


@cache
def tables(language: str):
    return LANGUAGES[language]()


def cardinals(language: str, number: int) -> set[str]:
    """The words of a number in every gender."""
    own = tables(language)
    genders = ("", "m", "f", "n", own.noun_gender, *own.endings)
    words = {own.cardinal(number, gender) for gender in genders}
    return words | ({own.hour(number), own.native(number)} if language == "korean" else set())


def mended(language: str, words: str) -> str:
    """The words of a number, which num2words has without Italian accents."""
    return re.sub(r"\Btre\b", "tré", words) if language == "italian" else words


def has_any(words: set[str], text: str) -> bool:
    return any(each and each.lower() in text.lower() for each in words)


def is_unread(char: str) -> bool:
    return char.isdigit() or unicodedata.category(char) == "Sc" or char in "%°№#@&=+_<>*|"


# ---- classes -------------------------------------------------------------------------------------


def plain_numbers(language: str, fake: Faker, random: random.Random) -> Iterator[Case]:
    locale, own = LOCALES[language], tables(language)
    while True:
        number = random.randrange(10 ** random.randrange(1, 10))
        if own.code == "zh":  # num2words has no Chinese
            words = own.cardinal(number)
        else:
            words = num2words(number, lang=own.code).replace(",", "")
            words = mended(language, words)
        if language == "japanese" and not number:
            words = own.digits[0]
        yield (
            numbers.format_decimal(number, locale=locale),
            lambda said, words=words: said == words,
        )


def percentages(language: str, fake: Faker, random: random.Random) -> Iterator[Case]:
    locale = LOCALES[language]
    word = {"russian": "процент", "chinese": "百分之", "japanese": "パーセント"}
    percent = word.get(language) or tables(language).units["%"].one
    while True:
        value = random.randrange(1, 20_000) / random.choice((100, 1000, 10_000))
        written = numbers.format_percent(value, locale=locale, format="#,##0.##%")
        if random.random() < 0.5:
            value = random.randrange(1, 120) / 100
            written = numbers.format_percent(value, locale=locale)
        whole = cardinals(language, int(round(value * 100, 4)))
        yield (written, lambda said, whole=whole: said.count(percent) == 1 and has_any(whole, said))


def money(language: str, fake: Faker, random: random.Random) -> Iterator[Case]:
    locale, own = LOCALES[language], tables(language)
    while True:
        # A Han character before the number, as "元" in Japanese, is no sign that people write.
        code = random.choice(("USD", "EUR", "GBP", "JPY", "KRW", "INR", "CHF", "BRL", "CNY", "RUB"))
        if (language, code) == ("japanese", "CNY"):
            continue
        whole = random.randrange(1, 10 ** random.randrange(1, 7))
        cents = 0 if code in ("JPY", "KRW") else random.randrange(100)
        written = numbers.format_currency(whole + cents / 100, code, locale=locale)
        sign = numbers.get_currency_symbol(code, locale)
        forms = {numbers.get_currency_name(code, count, locale) for count in (1, 2, 5)}
        unit = own.currencies[sign if sign in own.currencies else code].unit
        forms |= {unit.one, unit.few, unit.many}
        name = re.compile("|".join(sorted(map(re.escape, forms), key=len, reverse=True)), re.I)
        words = cardinals(language, whole)
        yield (
            written,
            lambda said, name=name, words=words: (
                len(name.findall(said)) == 1 and has_any(words, said)
            ),
        )


def prices(language: str, fake: Faker, random: random.Random) -> Iterator[Case]:
    while True:
        written = fake.pricetag()
        digits = re.sub(r"\D", "", written)
        whole = int(digits[:-2])  # Faker's prices have cents
        words = cardinals(language, whole) | (
            set() if whole else cardinals(language, int(digits[-2:]))
        )
        yield written, lambda said, words=words: has_any(words, said)


def year_words(language: str, year: int) -> str:
    own = tables(language)
    if language == "chinese":
        return "".join(own.digits[int(char)] for char in str(year))
    if language == "russian":
        return num2words(year, to="ordinal", lang="ru", case="g")
    to = "year" if language in ("english", "german") else "cardinal"
    words = num2words(year, to=to, lang=own.code).replace(",", "")
    words = mended(language, words)
    return words.replace("oh-", "oh ").replace(" and ", " ")


def some_dates(language: str, fake: Faker, random: random.Random) -> Iterator[Case]:
    locale = LOCALES[language]
    months = dates.get_month_names("wide", "format", locale)
    weekdays = dates.get_day_names("wide", "format", locale)
    while True:
        day = fake.date_between(datetime.date(1970, 1, 1), datetime.date(2069, 12, 31))
        form = random.choice(("short", "medium", "long", "full"))
        month, weekday = months[day.month], weekdays[day.weekday()]
        if month[0].isdigit():
            month = spoken(language, month)
        parts = [month, year_words(language, day.year), *([weekday] if form == "full" else [])]
        yield (
            dates.format_date(day, form, locale),
            lambda said, parts=parts: all(part.lower() in said.lower() for part in parts),
        )


def times(language: str, fake: Faker, random: random.Random) -> Iterator[Case]:
    locale = LOCALES[language]
    while True:
        time = datetime.time(*(random.randrange(most) for most in (24, 60, 60)))
        written = dates.format_time(time, random.choice(("short", "medium")), locale=locale)
        is_half = language in ("english", "korean")
        hour = cardinals(language, (time.hour % 12 or 12) if is_half else time.hour)
        hour |= {"两点"} if time.hour == 2 else set()
        minute = cardinals(language, time.minute) if time.minute else {""}
        yield (
            written,
            lambda said, hour=hour, minute=minute: (
                has_any(hour, said)
                and (minute == {""} or has_any(minute, said))
                and ":" not in said
            ),
        )


UNITS = (
    *("length-kilometer", "length-meter", "length-centimeter", "length-millimeter"),
    *("mass-kilogram", "mass-gram", "mass-milligram", "volume-liter", "volume-milliliter"),
    *("duration-hour", "duration-minute", "duration-second", "duration-millisecond"),
    *("temperature-celsius", "digital-kilobyte", "digital-megabyte", "digital-gigabyte"),
    *("digital-terabyte", "frequency-hertz", "frequency-kilohertz", "frequency-megahertz"),
    *("frequency-gigahertz", "power-watt", "power-kilowatt", "electric-volt", "area-square-meter"),
    *("area-square-kilometer", "volume-cubic-meter", "speed-kilometer-per-hour"),
    *("speed-meter-per-second", "energy-kilowatt-hour", "area-hectare", "mass-tonne"),
    *("duration-day", "duration-week", "duration-month", "duration-year", "length-mile"),
)


# Symbols that are words: "a las 5 ha llegado", "alle 5 mi chiama", "2 sett." (September).
WORDS = {
    **{"spanish": ("ha", "mi"), "italian": ("ha", "mi", "sett."), "french": ("mi",)},
    "portuguese": ("mi",),
}


def folded(text: str) -> str:
    return re.sub("qu|ch", "k", re.sub(r"[-\s]", "", text.lower()))


def measures(language: str, fake: Faker, random: random.Random) -> Iterator[Case]:
    locale = LOCALES[language]
    while True:
        unit = random.choice(UNITS)
        number = random.choice((1, 2, 5, random.randrange(1, 1000), random.randrange(1, 999) / 10))
        written = units.format_unit(number, unit, "short", locale=locale)
        name = re.sub(r"[\d.,\s]", " ", units.format_unit(number, unit, "long", locale=locale))
        if unit in written or unit in name:
            continue  # Babel has no pattern for this number
        symbol = re.sub(r"^[\d.,\s]*", "", written)
        if re.fullmatch(r"\w\.|[a-zA-Z]", symbol) and symbol not in tables(language).units:
            continue  # a letter such as "j" (jours) may be that of a flat or a seat
        if symbol in WORDS.get(language, ()):
            continue
        if language == "chinese" and re.search(r"[^\W\da-zA-Z]", symbol):
            name = symbol  # which is spoken as it is written
        if language == "chinese" and unit.startswith("digital"):
            continue  # spoken by their letters
        # "Metric" and "Celsius" go without saying; kW are chilowatt or kilowatt in Italian.
        name = re.sub(r"m[eé]tri\w+|메트릭|公(?=吨)|摂氏|섭씨", "", name)
        names = [folded(word) for word in name.split() if len(word) > 1]
        words = {word[: max(3, len(word) - 3)] for word in names}
        yield (written, lambda said, words=words: all(word in folded(said) for word in words))


def phones(language: str, fake: Faker, random: random.Random) -> Iterator[Case]:
    own = tables(language)
    while True:
        written = fake.phone_number()
        words = "".join(
            own.digits[int(c)] if own.digits else own.cardinal(int(c))
            for c in written
            if c.isdigit()
        )

        def holds(said: str, words: str = words) -> bool:
            said = said.replace("幺", "一")
            for other in (own.plus, "extension", "の"):
                said = said.replace(other, "")
            return re.sub(r"[\W_]", "", said) == words

        yield written, holds


def addresses(language: str, fake: Faker, random: random.Random) -> Iterator[Case]:
    while True:
        written = fake.address()
        lines = written.count("\n")
        yield written, lambda said, lines=lines: said.count("\n") == lines


def names(language: str, fake: Faker, random: random.Random) -> Iterator[Case]:
    while True:
        # Faker's "Ind." (individual) and "Misc." are no titles that people write.
        prefix = fake.prefix() if language not in ("chinese", "japanese", "korean") else ""
        if prefix in ("Ind.", "Misc."):
            continue
        name = f"{prefix} {fake.name()}".strip()
        words = [word for word in name.split() if "." not in word and len(word) > 4]
        yield (
            name,
            lambda said, words=words, name=name: (
                all(word in said for word in words)
                and not re.search(r"\w\.\s+\w", said)
                and len(sentence_spans(f"OK, {name} ok.")) == 1
            ),
        )


CLASSES = (
    plain_numbers,
    percentages,
    money,
    prices,
    some_dates,
    times,
    measures,
    phones,
    addresses,
    names,
)


def failures(make: Generator, language: str, count: int) -> list[tuple[str, str]]:
    """The texts of a class that are not read as its rule says, with what is spoken."""
    fake = Faker(LOCALES[language])
    fake.seed_instance(43)
    chance = random.Random(43)
    wrong = []
    cases = make(language, fake, chance)
    for place in range(count):
        written, holds = next(cases)
        before, after = SURROUNDINGS[place % len(SURROUNDINGS)].split("{}")
        after = after.lstrip(".") if written[-1] == "." else after
        text = before + written + after
        said = spoken(language, text)
        inner = said.removeprefix(before).removesuffix(after)
        are_kept = len(said) - len(inner) == len(text) - len(written)
        if not are_kept or any(map(is_unread, said)) or not holds(inner):
            wrong.append((text, said))
    return wrong


@pytest.mark.parametrize("language", LOCALES)
@pytest.mark.parametrize("make", CLASSES, ids=lambda make: make.__name__)
@pytest.mark.parametrize("count", [NUM_CASES, pytest.param(NUM_SLOW_CASES, marks=pytest.mark.slow)])
def test_what_others_write_is_read(make: Generator, language: str, count: int):
    assert not failures(make, language, count)
