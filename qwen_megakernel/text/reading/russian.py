"""Russian: its numerals, the three forms of what is counted, and dates in the genitive."""

from __future__ import annotations

import re

from qwen_megakernel.text.reading.language import (
    Language,
    Numerals,
    currencies,
    month_forms,
    nouns,
    table,
)

_MONTHS = (
    *("января", "февраля", "марта", "апреля", "мая", "июня", "июля"),
    *("августа", "сентября", "октября", "ноября", "декабря"),
)
_UNITS = """
    км: километр, километра, километров
    м: метр, метра, метров
    см: сантиметр, сантиметра, сантиметров
    мм: миллиметр, миллиметра, миллиметров
    м² м2: квадратный метр, квадратных метра, квадратных метров
    км²: квадратный километр, квадратных километра, квадратных километров
    м³: кубический метр, кубических метра, кубических метров
    кг: килограмм, килограмма, килограммов
    г гр: грамм, грамма, граммов
    мг: миллиграмм, миллиграмма, миллиграммов
    т: тонна, тонны, тонн, f
    л: литр, литра, литров
    мл: миллилитр, миллилитра, миллилитров
    °C ℃: градус Цельсия, градуса Цельсия, градусов Цельсия
    °: градус, градуса, градусов
    ч: час, часа, часов
    мин: минута, минуты, минут, f
    с сек: секунда, секунды, секунд, f
    мс: миллисекунда, миллисекунды, миллисекунд, f
    КБ: килобайт, килобайта, килобайт
    МБ: мегабайт, мегабайта, мегабайт
    ГБ: гигабайт, гигабайта, гигабайт
    ТБ: терабайт, терабайта, терабайт
    Гц: герц, герца, герц
    кГц: килогерц, килогерца, килогерц
    МГц: мегагерц, мегагерца, мегагерц
    ГГц: гигагерц, гигагерца, гигагерц
    Вт: ватт, ватта, ватт
    кВт: киловатт, киловатта, киловатт
    В: вольт, вольта, вольт
    дБ: децибел, децибела, децибел
    шт: штука, штуки, штук, f
    чел: человек, человека, человек
"""
_CURRENCIES = """
    ₽ руб руб. RUB: рубль, рубля, рублей / копейка, копейки, копеек, f
    $ USD: доллар, доллара, долларов / цент, цента, центов
    € EUR: евро / цент, цента, центов
    £ GBP: фунт, фунта, фунтов / пенс, пенса, пенсов
    ¥ JPY: иена, иены, иен, f
"""
_ABBREVIATIONS = """
    т.е.: то есть
    т.д.: так далее
    т.п.: тому подобное
    т.к.: так как
    др.: другие
    г.: год
    гг.: годы
    в.: век
    ул.: улица
    пр.: проспект
    д.: дом
    кв.: квартира
    стр.: страница
    см.: смотри
    напр.: например
    тел.: телефон
    тыс.: тысяч
    млн: миллионов
    млрд: миллиардов
    г-н: господин
    г-жа: госпожа
    д-р: доктор
    проф.: профессор
    им.: имени
    ок.: около
"""
_TENTHS = {1: ("десятая", "десятых"), 2: ("сотая", "сотых"), 3: ("тысячная", "тысячных")}


def russian() -> Language:
    """The tables of Russian."""
    say = Numerals("ru")

    def cardinal(number: int, gender: str) -> str:
        return say(number, gender=gender or "m")

    def plural(number: int) -> int:
        if number % 10 == 1 and number % 100 != 11:
            return 0
        return 1 if number % 10 in (2, 3, 4) and number % 100 not in (12, 13, 14) else 2

    def date(day: int, month: int, year: int | None, before: str) -> str:
        words = f"{say(day, 'ordinal', case='n', gender='n')} {_MONTHS[month - 1]}"
        return words if year is None else f"{words} {of_year(year)}"

    def of_year(number: int) -> str:
        return say(number, "ordinal", case="g", gender="m") + " года"

    def time(hour: int, minute: int, second: int | None) -> str:
        if not minute and not second:
            return f"{say(hour)} {('час', 'часа', 'часов')[plural(hour)]}"
        words = f"{say(hour)} {'' if minute > 9 else 'ноль '}{say(minute)}"
        return words if second is None else f"{words} {'' if second > 9 else 'ноль '}{say(second)}"

    def fraction(top: int, bottom: int) -> str:
        if bottom == 2:
            return f"{say(top, gender='f')} {'вторая' if top == 1 else 'вторых'}"
        if bottom in (3, 4):
            forms = {3: ("треть", "трети"), 4: ("четверть", "четверти")}[bottom]
            return f"{say(top, gender='f')} {forms[0] if top == 1 else forms[1]}"
        part = say(bottom, "ordinal", gender="f")
        if top != 1:
            part = say(bottom, "ordinal", case="g", gender="m").removesuffix("ого") + "ых"
        return f"{say(top, gender='f')} {part}"

    def decimal(match: re.Match[str], before: str) -> str | None:
        """ "3,14": three wholes, fourteen hundredths."""
        whole, decimals = int(match["w"]), match["d"]
        tenths = _TENTHS.get(len(decimals))
        if not tenths:
            return None
        parts = int(decimals)
        one = "целая" if plural(whole) == 0 else "целых"
        part = tenths[0] if plural(parts) == 0 else tenths[1]
        sign = "минус " if match["s"] else ""
        return f"{sign}{say(whole, gender='f')} {one} {say(parts, gender='f')} {part}"

    months = month_forms(_MONTHS, "янв февр/фев мар апр - июн июл авг сент/сен окт нояб/ноя дек")
    unit_signs = "|".join(sorted(map(re.escape, nouns(_UNITS)), key=len, reverse=True))
    return Language(
        code="ru",
        cardinal=cardinal,
        ordinal=lambda number: say(number, "ordinal"),
        year=say,
        plural=plural,
        minus="минус",
        plus="плюс",
        point="и",
        decimal=",",
        months=_MONTHS,
        month_forms=months,
        ordinal_marks="-?(?:й|ый|ой)",
        says_written_dates=True,
        date=date,
        time=time,
        units=nouns(_UNITS),
        per="в",
        currencies=currencies(_CURRENCIES),
        money_joint=" ",
        scales=nouns(
            "тыс. тыс: тысяча, тысячи, тысяч, f\nмлн млн.: миллион, миллиона, миллионов"
            "\nмлрд млрд.: миллиард, миллиарда, миллиардов"
        ),
        percent="процентов",
        to="до",
        fraction=fraction,
        abbreviations=table(_ABBREVIATIONS)
        | {"т. е.": "то есть", "т. д.": "так далее", "т. п.": "тому подобное"},
        final=frozenset({"т.д.", "т.п.", "др.", "г.", "в."}),
        symbols=table(
            "&: и\n@: собака\n+: плюс\n=: равно\n%: процентов\n÷: разделить на\n×: умножить на"
            "\n°: градусов\n≈ ~: около\n<: меньше\n>: больше\n≤: не больше\n≥: не меньше"
            "\n±: плюс минус\n§: параграф\n№: номер"
        )
        | {"™": "", "®": "", "/": " "},
        web=table(
            ".: точка\n@: собака\n/: слэш\n-: дефис\n_: подчёркивание\n?: вопрос"
            "\n=: равно\n&: и\n#: решётка\n+: плюс\n:: двоеточие"
        ),
        number_sign="номер",
        extra=(
            (
                re.compile(
                    rf"(?P<d>\d{{1,2}})\s(?P<m>{'|'.join(sorted(months, key=len, reverse=True))})"
                    r"\b\.?(?:\s(?P<y>\d{4})(?:\s(?:г\.|года))?)?",
                    re.IGNORECASE,
                ),
                lambda match, before: date(
                    int(match["d"]),
                    months[match["m"].lower()],
                    int(match["y"]) if match["y"] else None,
                    before,
                ),
            ),
            (
                re.compile(r"(?P<d>[0-3]?\d)\.(?P<m>[01]?\d)\.(?P<y>\d{4})(?:\sг\.)?(?!\d)"),
                lambda match, before: (
                    date(int(match["d"]), int(match["m"]), int(match["y"]), before)
                    if 1 <= int(match["m"]) <= 12 and 1 <= int(match["d"]) <= 31
                    else None
                ),
            ),
            (
                re.compile(r"(?P<y>1\d{3}|20\d\d)\sг(?:\.|ода)(?!\w)"),
                lambda match, before: of_year(int(match["y"])),
            ),
            (
                re.compile(r"(?P<y>1\d{3}|20\d\d)\sгоду(?!\w)"),
                lambda match, before: (
                    say(int(match["y"]), "ordinal", case="p", gender="m") + " году"
                ),
            ),
            (
                re.compile(r"(?P<n>\d{1,4})-?(?:я|ая)(?!\w)"),
                lambda match, before: say(int(match["n"]), "ordinal", gender="f"),
            ),
            (
                re.compile(r"(?P<n>\d{1,4})-?(?:е|ое)(?!\w)"),
                lambda match, before: say(int(match["n"]), "ordinal", gender="n"),
            ),
            (
                re.compile(r"(?P<n>\d{1,4})-?(?:го|ого)(?!\w)"),
                lambda match, before: say(int(match["n"]), "ordinal", case="g", gender="m"),
            ),
            (
                re.compile(r"(?P<n>\d{1,6})\s?%"),
                lambda match, before: (
                    f"{say(int(match['n']))} "
                    + ("процент", "процента", "процентов")[plural(int(match["n"]))]
                ),
            ),
            (
                re.compile(
                    r"(?P<s>[-−]\s?)?(?P<w>\d{1,9}),(?P<d>\d{1,3})(?![\d,])"
                    rf"(?!\s?(?:[$€£₽]|руб|{unit_signs})(?!\w))(?!\s?(?:тыс|млн|млрд))"
                ),
                decimal,
            ),
        ),
        followers=frozenset({"г", "года", "году"}),
        opens=frozenset({"№", "т.", "д.", "стр."}),
    )
