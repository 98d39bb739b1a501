"""Russian: three forms of each noun after a number, named decimals, dates in the genitive."""

import re
from functools import partialmethod

from qwen_megakernel.text.reading.language import MAX_DIGITS, Language, Noun, Rules, any_of

_TENTHS = {1: ("десятая", "десятых"), 2: ("сотая", "сотых"), 3: ("тысячная", "тысячных")}
# Words behind which a date is a subject, or an object in the accusative; none: a text begins.
_BEFORE_NOMINATIVE = frozenset(
    ("", "и", "или", "сегодня", "завтра", "вчера", "на", "по", "это", "было", "будет", "вот")
)
# Words -> the case of a number behind them: "from three to five hours", "by six".
_BEFORE_GENITIVE = """от до с со из без для после около кроме против более менее свыше больше
    меньше выше ниже старше младше раньше позже"""
_DAYS_OF = ["понедельника", "вторника", "среды", "четверга", "пятницы", "субботы", "воскресенья"]
_DAYS_ON = ["понедельник", "вторник", "среду", "четверг", "пятницу", "субботу", "воскресенье"]
_WEEK = ["пн", "вт", "ср", "чт", "пт", "сб", "вс"]
_CASES = dict.fromkeys(_BEFORE_GENITIVE.split(), "g") | dict.fromkeys(("к", "ко"), "d")
_CASES["между"] = "i"
_BEFORE_ACCUSATIVE = ("на", "за", "через", "про")
_PERCENT = Noun("процент", "процента", "процентов")


class Russian(Language):
    code = "ru"
    minus, plus, point, decimal = "минус", "плюс", "и", ","
    percent, per, to, number_sign = "процентов", "в", "до", "номер"
    by, over, ratio, out_of, groups_with_spaces = "на", "на", "", "из", True
    NUMBERED = """глава главу главе главы том тома томе часть части книга книгу книге раздел раздела
        разделе статья статью статье статьи акт акте фаза фазу фазе тип"""
    CENTURIES = "век века веке веков"
    PHONE_WORDS = "тел телефон телефону звоните позвоните факс номеру"
    ordinal_marks = "-?(?:й|ый|ой)"
    UNITS = """кг: килограмм, -а, -ов; г гр: грамм, -а, -ов; мг: миллиграмм, -а, -ов
        дБ: децибел, -а, децибел; шт шт.: штука, штуки, штук, f; чел: человек, -а, человек
        ст.л.: столовая ложка, столовые ложки, столовых ложек, f; раз раза: раз, раза, раз
        ч.л.: чайная ложка, чайные ложки, чайных ложек, f; стакан стакана стаканов: стакан, -а, -ов
        книга книги книг: книга, книги, книг, f"""
    SCALES = """тыс. тыс: тысяча, тысячи, тысяч, f; млн млн.: миллион, -а, -ов
        млрд млрд.: миллиард, -а, -ов"""
    CURRENCIES = """₽ руб руб. р. RUB: рубль, рубля, рублей / копейка, копейки, копеек, f
        $ USD: доллар, -а, -ов / цент, -а, -ов; € EUR: евро / цент, -а, -ов
        £ GBP: фунт, -а, -ов / пенс, -а, -ов; ¥ JPY: иена, иены, иен, f"""
    money_joint = " "
    SHORT_MONTHS = "янв февр/фев мар апр - июн июл авг сент/сен окт нояб/ноя дек"
    says_written_dates, LINKS = True, "по до и"
    ABBREVIATIONS = """т.е. т.~е.: то есть; т.д. т.~д.: так далее; т.п. т.~п.: тому подобное
        т.к.: так как; др.: другие; г.: год; гг.: годы; в.: век; ул.: улица; пр.: проспект; д.: дом
        кв.: квартира; стр.: страница; каб.: кабинет; гл. Гл.: глава; рис.: рисунок; коп.: копеек
        см.: смотри; напр.: например; нач.: начало; тел.: телефон; тыс.: тысяч
        млн: миллионов; млрд: миллиардов; г-н: господин; г-жа: госпожа; д-р: доктор
        д-ра: доктора; д-ру: доктору; г-на: господина; г-ну: господину; г-жи г-же: госпоже
        проф.: профессор; тов.: товарищ; им.: имени; ок.: около; доб.: добавочный; т.: том
        пн: понедельник; вт: вторник
        ср: среда; чт: четверг; пт: пятница; сб: суббота; вс: воскресенье"""
    FINAL = "т.д. т.п. др. г. в."
    STARTERS = """А В Вы Ещё Если Для За Затем И Из Как Когда Кто Мы На Но Он Она Они По После Потом
        Сейчас Сегодня Так Также Там Тогда Только Ты У Что Это Этот Я"""
    SYMBOLS = """&: и; @: собака; =: равно; ÷: разделить на; ×: умножить на; °: градусов; ≈ ~: около
        <: меньше; >: больше; ≤: не больше; ≥: не меньше; ±: плюс минус; §: параграф; №: номер"""
    WEB = ".: точка; /: слэш; -: дефис; _: подчёркивание; ?: вопрос; #: решётка; :: двоеточие"
    OPENS, FOLLOWERS = "№ т. д. стр. г.", "г года году"

    def rules(self) -> Rules:
        """Dates, years before "года" or "году", cases and genders of numbers, percentages."""
        year = r"(?P<y>\d{4})(?:\s(?:г\.|года))?"
        month = rf"\s(?P<m>{self.month_pattern()})"
        yield rf"(?i)(?P<d>\d{{1,2}}){month}(?:\s{year})?", self.written_date
        link = r"(?:\s(?P<link>по|до|и)\s|\s?[-–—]\s?)"
        yield rf"(?i)(?P<a>\d{{1,2}}){link}(?P<b>\d{{1,2}})(?={month})", self.days_of_month
        yield r"(?P<a>\d{1,6})(?P<b>\sи\s)(?P<c>\d{1,6})(?![\d:/-]|[.,]\d)", self.both
        hour = r"(?P<{0}>[01]?\d|2[0-4]):(?P<{0}m>[0-5]\d)"
        yield rf"{hour.format('a')}\s?[-–—]\s?{hour.format('b')}(?![:\d])", self.hours
        yield r"(?P<d>[0-3]?\d)\.(?P<m>[01]?\d)\.(?P<y>\d{4})(?:\sг\.)?(?!\d)", self.written_date
        year = r"(?P<y>1\d{3}|20\d\d)"
        yield rf"{year}\sг\.", self.year_of
        yield rf"{year}\sгода(?!\w)", "{y:genitive} года"
        yield rf"{year}\sгод(?!\w)", "{y:masculine} год"
        yield rf"{year}\sгоду(?!\w)", "{y:prepositional} году"
        yield r"(?P<n>\d{1,4})-?(?:х|ых)(?!\w)", "{n:of_decades}"
        # "20-е" and "30-е" may be days.
        yield r"(?P<n>[4-9]0|\d{2,3}0)-е(?!\w)", "{n:decades}"
        yield r"(?P<n>\d{1,4})-?(?:я|ая)(?!\w)", "{n:feminine}"
        yield r"(?P<n>\d{1,4})-?(?:е|ое)(?!\w)", "{n:neuter}"
        yield r"(?P<n>\d{1,4})-?(?:го|ого)(?!\w)", "{n:genitive}"
        yield r"(?P<n>\d{1,4})-(?:м|ом|ем)(?!\w)", "{n:prepositional}"
        yield r"(?P<n>\d{1,4})-(?:му|ому)(?!\w)", "{n:dative}"
        yield r"(?P<n>\d{1,4})-(?:ю|ую)(?!\w)", "{n:accusative}"
        yield r"(?P<d>[0-3]?\d)\.(?P<m>0[1-9]|1[0-2])(?P<y>(?!))?(?!\.?\d)", self.written_date
        yield r"г\.(?=\s[А-ЯЁ])", lambda _, before: None if before[-1:].isdigit() else "город"
        number = r"(?P<n>\d{1,3}(?:\s\d{3})+|\d{1,9})(?:,(?P<d>\d{1,3}))?(?![\d,])"
        nouns = any_of([*self.units, *self.currencies, *self.scales, "%"])
        first = r"(?:(?P<from>\d{1,6})\s?[-–—]\s?)?"
        unit = rf"(?:(?P<scale>{any_of(self.scales)})\s?)?(?P<unit>{nouns})"
        yield rf"{first}{number}\s?{unit}(?!\w)\.?", self.in_case
        yield r"(?P<n>\d{1,6})(?:,(?P<d>\d{1,3}))?\s?%", self.percents
        yield r"(?P<from>\d{1,4})[-–—](?P<n>\d{1,4})(?![\w-]|[.,:/=]\d|\s?=)", self.numbers
        yield r"(?P<n>\d{1,6})(?![\d:/–-]|[.,]\d|\s\d{3})", self.after_preposition

    def _ordinal(self, case: str, gender: str, number: int) -> str:
        return self.say(number, "ordinal", case=case, gender=gender)

    masculine = partialmethod(_ordinal, "n", "m")
    neuter, feminine = partialmethod(_ordinal, "n", "n"), partialmethod(_ordinal, "n", "f")
    genitive, prepositional = partialmethod(_ordinal, "g", "m"), partialmethod(_ordinal, "p", "m")

    def after_preposition(self, match: re.Match[str], before: str) -> str | None:
        """Return a number in the case that the word before it asks for; None: it asks for none."""
        case, number = _CASES.get(before.lower()), int(match["n"])
        is_span = match.string[match.end() :].lstrip().startswith(("по ", "до "))
        if before.lower() in ("с", "со") and 1900 <= number < 2100 and is_span:  # years
            return self.genitive(number)
        return case and self.say(number, case=case, gender="m")

    def both(self, match: re.Match[str], before: str) -> str | None:
        """Return the words of two numbers behind "between"; None behind other words."""
        if before.lower() != "между":
            return None
        first, last = (self.say(int(match[each]), case="i", gender="m") for each in "ac")
        return f"{first} и {last}"

    def agreeing(self, words: str, before: str) -> str:
        """Return words with "one" and the noun after it in the accusative behind "на" or "за"."""
        if before.lower() not in _BEFORE_ACCUSATIVE:
            return words
        words = re.sub(r"\bодна( \w+)а\b", r"одну\1у", words)
        return re.sub(r"\bодна$", "одну", words)

    def in_case(self, match: re.Match[str], before: str) -> str | None:
        """Return a number and its noun in the genitive, in a range or behind "up to" or "about"."""
        is_asked = _CASES.get(before.lower()) == "g"
        if not (is_asked or match["from"]):
            return None
        unit, scale = match["unit"], match["scale"] and self.scales[match["scale"]]
        noun = _PERCENT if unit == "%" else self.units.get(unit) or self.scales.get(unit)
        noun = noun or self.currencies[unit].unit
        whole, decimals = re.sub(r"\s", "", match["n"]), match["d"]
        head = scale or noun
        if decimals:
            part = _TENTHS[len(decimals)][0 if self.plural(int(decimals)) == 0 else 1]
            one = "целой" if self.plural(int(whole)) == 0 else "целых"
            numbers = (self.say(int(each), case="g", gender="f") for each in (whole, decimals))
            number = f"{next(numbers)} {one} {next(numbers)} {part.replace('ая', 'ой')}"
        else:
            number = self.say(int(whole), case="g", gender=head.gender)
        is_few = bool(decimals) or self.plural(int(whole)) == 0
        words = f"{number} {head.few if is_few else head.many}"
        words += f" {noun.many}" if scale else ""
        if match["from"]:
            first = self.say(int(match["from"]), case="g", gender=head.gender)
            words = f"{first} {words}" if is_asked else f"от {first} до {words}"
        return words + self.kept_point(match)

    def numbers(self, match: re.Match[str], before: str) -> str | None:
        """Return the words of a range of numbers, "from five to ten"; None for a score."""
        first, last = int(match["from"]), int(match["n"])
        if first >= last or match.string[match.start() - 1 : match.start()] in tuple("-–+№/"):
            return None
        if 1900 <= first < last < 2100:
            return f"с {self.genitive(first)} по {self.masculine(last)}"
        return (
            f"от {self.say(first, case='g', gender='m')} до {self.say(last, case='g', gender='m')}"
        )

    def hours(self, match: re.Match[str], before: str) -> str:
        """Return the words of hours of opening, "from nine to eighteen hours"."""
        pairs = match.group("a", "am"), match.group("b", "bm")
        first, last = (self._hour_in_case(int(hour), int(minute), "g") for hour, minute in pairs)
        return f"с {first} до {last}" + " часов" * (match["bm"] == "00")

    def _hour_in_case(self, hour: int, minute: int, case: str) -> str:
        zero = [self.say(0, case=case)] if 0 < minute < 10 else []
        numbers = [hour, minute] if minute else [hour]
        words = [self.say(each, case=case, gender="m") for each in numbers]
        return " ".join([words[0], *zero, *words[1:]])

    def clock(self, match: re.Match[str], before: str) -> str:
        case, groups = _CASES.get(before.lower()), match.groupdict()
        if not case or groups.get("s"):
            return super().clock(match, before)
        hour, minute = int(groups["h"]), int(groups["m"] or 0)
        names = {"g": ("часа", "часов"), "d": ("часу", "часам"), "i": ("часом", "часами")}
        name = names[case][self.plural(hour) != 0]
        return self._hour_in_case(hour, minute, case) + ("" if minute else f" {name}")

    def days_of_month(self, match: re.Match[str], before: str) -> str | None:
        """Return the words of two days of a month, such as "с 5 по 10" and "5–10"."""
        link, word = match["link"], before.lower()
        first, last = int(match["a"]), int(match["b"])
        if not 0 < first <= 31 or not 0 < last <= 31:
            return None
        if link == "и":
            case = _CASES.get(word, "g")
            return " и ".join(self._ordinal(case, "n", each) for each in (first, last))
        opening = "" if word in ("с", "со", "от") else "с "
        end = self.genitive(last) if link == "до" else self.neuter(last)
        return f"{opening}{self.genitive(first)} {link or 'по'} {end}"

    def days(self, match: re.Match[str], before: str) -> str | None:
        groups = match.groupdict()
        names = [groups[each].lower() for each in "ab" if groups.get(each)]
        if len(names) < 2 or not {*names} <= {*_WEEK}:
            return super().days(match, before)
        first, last = map(_WEEK.index, names)
        word = "" if before.lower() in ("с", "со") else "с" + "о" * (first == 1) + " "
        return f"{word}{_DAYS_OF[first]} по {_DAYS_ON[last]}{self.kept_point(match)}"

    def gender_after(self, number: str, noun: str, before: str) -> str:
        if (
            not noun.islower()
            or len(noun) < 4
            or noun in ("года", "этажа")
            or not number.isdecimal()
        ):
            return ""
        form = self.plural(int(number))
        if form == 1 and number[-1] == "2":
            return "f" if noun[-1] in "ыи" and noun not in ("дни", "или", "пути") else ""
        if form == 0:
            if noun[-1] in "ую" and before.lower() in (*_BEFORE_ACCUSATIVE, ""):
                return "f"  # "за 1 неделю"
            return "f" if noun[-1] in "ая" else "n" if noun[-1] in "ое" else ""
        return ""

    def of_decades(self, number: int) -> str:
        """Return a number in the genitive, "of three", or a decade, "of the eighties"."""
        if number < 10:
            return self.say(number, case="g", gender="m")
        return self.genitive(number).removesuffix("ого") + "ых"

    def decades(self, number: int) -> str:
        """Return a decade: "the eighties"."""
        return self.genitive(number).removesuffix("ого") + "ые"

    dative, accusative = partialmethod(_ordinal, "d", "m"), partialmethod(_ordinal, "a", "f")

    def roman(self, number: int, match: re.Match[str], before: str, following: str) -> str | None:
        if following in self.centuries:
            cases = {"века": self.genitive, "веке": self.prepositional}
            return cases.get(following, self.ordinal)(number)
        return super().roman(number, match, before, following)

    def regnal(self, number: int, name: str) -> str | None:
        return self.feminine(number) if name[-1] in "ая" else self.ordinal(number)

    def mixed(self, whole: str, top: int, bottom: int, noun: Noun | None) -> str:
        """Return words such as "полтора стакана" and "два с половиной стакана"."""
        if (top, bottom) != (1, 2):
            return super().mixed(whole, top, bottom, noun)
        words = f"{self.number(whole, '', noun.gender if noun else '')} с половиной"
        if whole == "1":
            words = "полторы" if noun and noun.gender == "f" else "полтора"
        return words + (f" {self.form('2' if whole == '1' else whole, '', noun)}" if noun else "")

    def fraction_of(self, top: int, bottom: int, noun: Noun) -> str:
        words = "половина" if (top, bottom) == (1, 2) else self.fraction(top, bottom)
        few = noun.few if noun.few[-2:] != "ки" else noun.few.replace("ые ", "ой ")
        return f"{words} {few}"

    def cardinal(self, number: int, gender: str = "") -> str:
        """Return the words of a number; without a gender, the masculine ones."""
        return self.say(number, gender=gender or "m")

    def plural(self, number: int) -> int:
        """Return 0 for a number that ends in 1, 1 for 2 to 4, 2 for all others (11 to 14 too)."""
        if number % 10 == 1 and number % 100 != 11:
            return 0
        return 1 if number % 10 in (2, 3, 4) and number % 100 not in (12, 13, 14) else 2

    def form(self, whole: str, decimals: str, noun: Noun) -> str:
        """Return the form of a noun after a number; decimals take the form for two to four."""
        is_whole = whole and not decimals and len(whole) <= MAX_DIGITS
        return super().form(whole, decimals, noun) if is_whole else noun.few

    def percents(self, match: re.Match[str], before: str) -> str:
        """Return the words of a whole percentage."""
        return self.count(str(int(match["n"])), match["d"] or "", _PERCENT)

    def day(self, number: int, before: str) -> str:
        """Return the day: "on the third" (genitive) behind most words, else "the third"."""
        word = before.lower().strip(".,:;!?—–-")
        if word in ("к", "ко", "между"):
            return self._ordinal(_CASES[word], "n", number)
        is_subject = word in _BEFORE_NOMINATIVE
        return self.neuter(number) if is_subject else self.genitive(number)

    def year_of(self, match: re.Match[str], before: str) -> str:
        """Return the words of a year before "г.": "in the year" behind "в"."""
        number, is_in = int(match["y"]), before.lower() in ("в", "во")
        words = f"{self.prepositional(number)} году" if is_in else f"{self.genitive(number)} года"
        return words + self.kept_point(match)

    def dated_year(self, number: int) -> str:
        return f"{self.genitive(number)} года"

    def time(self, hour: int, minute: int, second: int | None) -> str:
        """Return a time of day; a zero is spoken before a single digit of minutes or seconds."""
        if not minute and not second:
            return self.count(str(hour), "", self.units["ч"])
        words = f"{self.say(hour)} {'' if minute > 9 else 'ноль '}{self.say(minute)}"
        if second is None:
            return words
        return f"{words} {'' if second > 9 else 'ноль '}{self.say(second)}"

    def fraction(self, top: int, bottom: int) -> str:
        parts = {2: ("вторая", "вторых"), 3: ("треть", "трети"), 4: ("четверть", "четверти")}
        if bottom in parts:
            part = parts[bottom][0 if top == 1 else 1]
        elif top == 1:
            part = self.feminine(bottom)
        else:
            part = self.genitive(bottom).removesuffix("ого") + "ых"
        return f"{self.say(top, gender='f')} {part}"

    def number(self, whole: str, decimals: str = "", gender: str = "") -> str:
        """Return the words of a number; "3,14" is "three wholes, fourteen hundredths"."""
        if not whole or len(whole) > MAX_DIGITS or len(decimals) not in _TENTHS:
            return super().number(whole, decimals, gender)
        one = "целая" if self.plural(int(whole)) == 0 else "целых"
        part = _TENTHS[len(decimals)][0 if self.plural(int(decimals)) == 0 else 1]
        words = self.say(int(whole), gender="f"), one, self.say(int(decimals), gender="f"), part
        return " ".join(words)
