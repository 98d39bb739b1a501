"""Russian: three forms of each noun after a number, named decimals, dates in the genitive."""

import re
from typing import ClassVar

from qwen_megakernel.text.reading.cldr import Noun
from qwen_megakernel.text.reading.language import Language
from qwen_megakernel.text.reading.roman_numerals import roman_number
from qwen_megakernel.text.reading.surroundings import Found, first_word
from qwen_megakernel.text.reading.tables import words
from qwen_megakernel.text.reading.words import MAX_DIGITS

_TENTHS = {1: "десят", 2: "сот", 3: "тысячн"}  # by the number of decimals, without endings
# Words behind which a date is a subject, or an object in the accusative; none: a text begins.
_BEFORE_NOMINATIVE = {"", *words("и или сегодня завтра вчера на по это было будет вот")}
# Words -> the case of a number behind them: "from three to five hours", "by six".
_BEFORE_GENITIVE = words("""от до с со из без для после около кроме против более менее свыше больше
    меньше выше ниже старше младше раньше позже позднее у ради среди вместо из-за
    течение теч. продолжение размере объёме количестве порядка хватает нет""")
_DAYS_OF = ["понедельника", "вторника", "среды", "четверга", "пятницы", "субботы", "воскресенья"]
_WEEK = ["пн", "вт", "ср", "чт", "пт", "сб", "вс"]
_DAYS_ON = ["понедельник", "вторник", "среду", "четверг", "пятницу", "субботу", "воскресенье"]
_CASES = dict.fromkeys(_BEFORE_GENITIVE, "g") | dict.fromkeys(("к", "ко"), "d")
_CASES |= {"между": "i", "ок.": "g", **dict.fromkeys("<>≤≥≈~", "g")}
_CASES |= dict.fromkeys(("при", "о", "об"), "p")
_BEFORE_ACCUSATIVE = ("на", "за", "через", "про")
_IMPERATIVES = ("йте", "ите", "ьте", "жать", "брать")  # endings of verbs before an accusative
_FROM = re.compile(r"\sот(?!\w)")  # "в 5 км от города"
_PLACES = words("город улица проспект дом квартира страница кабинет глава том статья пункт телефон")
_PLACE_CASES = _CASES | dict(в="p", во="p", на="p", по="d", согласно="d", у="g")
_BEFORE_GOALS = (*_BEFORE_ACCUSATIVE, "в", "во", "по", "каждые")  # before a range
_CENTURY, _QUARTER = Noun("век", "века", "веков"), Noun("квартал", "квартала", "кварталов")
_TIMES = ("час", "минуту", "секунду", "день", "сутки", "неделю", "месяц", "год")
_CENTURIES = dict(века="g", веков="g", веку="d", векам="d", веком="i", веке="p", веках="p")
_IN_CENTURIES = _CASES | dict.fromkeys(("в", "во"), "p") | dict.fromkeys(_BEFORE_ACCUSATIVE, "n")
# A number that ends in one or not, the word before it, the ending of the noun behind it -> the case
# and the gender that they show, as in "с 1 ребёнком", "в 5 городах".
_AT, _WITH = "(?:во?|на|об?|при)", "(?:со?|между|над|под|перед)"
_FORMS = [
    (re.compile(f"{place} {noun}"), form)
    for place, noun, form in (
        (f"1 {_WITH}", "[а-яё]{2,}[оеё]м", "im"),
        (f"1 {_WITH}", "[а-яё]{2,}[оеё]й", "if"),
        (f"1 {_AT}", "[а-яё]+е", "pm"),
        ("1 по", "[а-яё]+[еи]", "df"),
        (r"5 \S*", "[а-яё]+(?:ами|ями|ьми)", "im"),
        (f"5 {_AT}", "[а-яё]+[ая]х", "pm"),
        ("5 (?:ко?|по)", "[а-яё]+[ая]м", "dm"),
    )
]
# Parts whose names are nouns, without their endings; those of one part and of several.
_PARTS = {3: "трет", 4: "четверт"}
_ONE_PART, _PARTS_OF = (
    dict(n="ь", g="и", d="и", a="ь", i="ью", p="и"),
    dict(n="и", g="ей", d="ям", i="ями", p="ях"),
)
_FRACTION_ENDINGS = dict(n="ых", g="ых", p="ых", d="ым", i="ыми")
# For each case, the endings of nouns in the singular (of hard and soft stems, masculine and
# feminine), and in the plural.
_ENDINGS = {"d": ("у ю е е", "м"), "i": ("ом ем ой ей", "ми"), "p": ("е е е е", "х")}


class Russian(Language):
    each: ClassVar = dict(сут="сутки", нед="неделю", мес="месяц", д="день")
    days_of: ClassVar = dict(zip(_WEEK, _DAYS_OF, strict=True))
    days_on: ClassVar = dict(zip(_WEEK, _DAYS_ON, strict=True))
    ranked = words("путь этаж этаже класс классе курс курсе подъезд подъезде квартал квартале")
    followers = (
        words("век веке века г года году годе годах гг. годы в. вв. кв. эт. от число") | ranked
    )

    aged = r"\b(?:дет|реб|взросл|возраст|гаранти|ипотек|кредит|срок|стаж|опыт)[^.!?]{0,25}\s"
    addressed = r"(?:[А-ЯЁ][а-яё-]+,?\s|\bд\.\s?|\bдом[аеу]?\s)"
    year_form = r"(?P<y>1\d{3}|20\d\d|\d{1,4}(?=\sгод[уе]|\s\w+\.?\s(?:до\s)?н\.\s?э))"

    RULES = r"""
    (?i)(?P<d>\d{1,2})\s(?P<m>{MONTH})(?:\s(?P<y>\d{4})(?:\s(?:г\.|года))?)? => .date
    (?i)(?P<a>\d{1,2})(?:\s(?P<link>по|до|и)\s|\s?[-–—]\s?)(?P<b>\d{1,2})(?=\s{MONTH})
        => .days_of_month
    1,5\s(?=раза(?!\w)) => полтора~
    д\.|дом[аеу]? >> (?P<a>\d{1,3})/(?P<b>\d{1,3})(?!\w|/) => {a} на {b}
    ст\. >> (?P<n>\d{1,4})\sч\.(?=\s\d) => {n} часть
    во? >> {HOUR}\.{MINUTE}(?:\sчас(?:ов|а)?(?!\w))?
        (?![\d.,]\d|\d|\s?(?:%|раза?(?!\w)|(?:{UNITS}|{CURRENCIES})(?!\w))) => .time
    {VERSES} >> (?P<a>\d{1,3}):(?P<b>\d{1,3})\s?[-–—]\s?(?P<c>\d{1,3})(?![\d:]) => {a}, {b} — {c}
    между >> (?P<a>\d{1,6})\sи\s(?P<c>\d{1,6})(?![\d:/-]|[.,]\d) => {a:im} и {c:im}
    (?P<a>[01]?\d|2[0-4]):(?P<am>[0-5]\d)\s?[-–—]\s?(?P<b>[01]?\d|2[0-4]):(?P<bm>[0-5]\d)(?![:\d])
        => .hours
    (?P<r>[IVXХ]+|[12]?\d)(?:-(?:й|м|го))?(?:(?P<link>\s?[-–—]\s?|\sи\s)(?P<to>[IVXХ]+|[12]?\d))?
        \s(?P<what>вв?\.|кв\.(?=\s20)|(?<=[IVX]\s)(?:кв\.|век[а-я]*)|век[еу]?(?!\w)) => .centuries
    во? >> (?P<a>1\d{3}|20\d\d)\s?[-–—]\s?(?P<b>1\d{3}|20\d\d)\s(?:гг\.|годах)
        => {a:ordinal:pm} — {b:ordinal:pm} годах{end}
    (?P<a>[1-9]|[1-9]\d)/(?P<b>[1-9]\d?)\sэтаже => {a:ordinal:pm} этаже из {b:gm}
    (?P<a>[1-9]|[1-9]\d)/(?P<b>[1-9]\d?)\s(?:этаж(?!\w)|эт\.) => {a:ordinal:nm} этаж из {b:gm}
    \b(?:д|дом|к|корп|вл|влад)\.?\s?\d+\w?,?\s$ >> стр\.(?=\s\d) => строение
    (?i)\b(?:ул\w*|пр(?:-[кт]т?|осп\w*)?|пер\w*|наб\w*|ш|шоссе|б-р|бул\w*|мкр)\.?\s[\w. ]{2,27},\s$
        >> (?P<a>\d{1,4})-(?P<b>\d{1,4})(?![\w-]) => {a} {b}
    {ADDRESSED}$ >> (?P<n>\d{1,3})(?:\sк\.\s?|к)(?=\d) => {n} корпус~
    {ADDRESSED}\d+[а-я]?(?:/\d+)?,?\s$ >> к\.(?=\s?\d) => корпус
    12|24|36|48|\D* >> (?P<n>12|24|36|48)/(?=\d\d\s?(?:ч|час(?:ов|а)?)(?!\w)) => {n} —~
    (?i)(?:{AGED}(?:от|до|с)|старше|младше)\s$ >> (?P<n>\d{1,2})\sл\. => {n:gm} лет
    (?i){AGED}$ >> (?P<n>\d{1,2})\s[лг]\. => {n:counted:год}
    (?i){AGED}$ >> (?P<n>\d{1,2})\s?[-–]\s?(?P<b>\d{1,2})\sл\. => от {n:gm} до {b:gm} лет
    на >> (?P<n>[1-9]|[1-9]\d)\sэт\. => {n:ordinal:pm} этаже{end}
    (?P<n>[1-9]|[1-9]\d)\sэт\. => {n:ordinal:nm} этаж{end}
    (?:.*[₽€$]|руб\.?|р\.) >> /(?=100\s?(?:г|мл)(?!\w)) => ~за~
    \b(?:р|раза?|табл?|капс?|мл|шт)\.?\sв\s$ >> (?P<per>сут|нед|мес|д)(?!\w)\.? => {per:each}{end}
    со? >> (?P<a>\d{1,2})\sпо\s(?=\d{1,2}\.(?:0[1-9]|1[0-2])(?!\d)) => {a:ordinal:gn} по~
    за >> шт\.? => штуку{end}
    во? >> {YEAR_FORM}\sг\. => {y:ordinal:pm} году{end}
    ко? >> {YEAR_FORM}\s(?:г\.|году(?!\w)) => {y:ordinal:dm} году{end}
    по >> {YEAR_FORM}\s(?:г|гг|год|годы)(?!\w)\.? => {y:ordinal:nm} год{end}
    $|и|или|это|было|вот >> {YEAR_FORM}\sг\.(?=\s(?:до\s)?н\.) => {y:ordinal:nm} год
    {YEAR_FORM}\s(?:г\.|года(?!\w)) => {y:ordinal:gm} года{end}
    {YEAR_FORM}\sгод(?!\w) => {y:ordinal:nm} год
    {YEAR_FORM}\s(?P<what>год[уе])(?!\w) => {y:ordinal:pm} {what}
    (?P<a>\d{1,2})\sпо\s(?P<b>\d{1,2})(?=\sчисло) => {a:ordinal:gn} по {b:ordinal:nn}
    во? >> (?P<a>{DAYS_ON})(?!\w)\.? => {a:days_on}{end}
    со?|до|от|после >> (?P<a>{DAYS_ON})(?!\w|\.?\s?[-–]|\.?\sпо\s)\.? => {a:days_of}{end}
    (?P<n>\d{1,4})-(?:ти|ми)(?!\w) => {n:gm}
    (?P<n>\d{1,3})%-(?P<ending>н?[а-яё]{1,3})(?!\w) => .compound
    (?P<n>\d{1,3})-(?:(?P<short>комн|эт|мест)\.|(?P<what>[а-яё]{4,})(?!\w)) => .compound
    во? >> (?P<n>\d{1,4})-?(?:х|ых)\sгг\. => {n:of_decades} годах{end}
    (?P<n>\d{1,4})-?(?:х|ых)\sгг\. => {n:of_decades} годов{end}
    (?P<n>\d{1,4})-?(?:х|ых)(?!\w) => {n:of_decades}
    (?P<n>\d{1,2})(?=\s(?:{RANKED})(?<=е)(?!\w)) => {n:ordinal:pm}
    (?P<n>[1-9]|1\d)(?=\s(?:{RANKED})(?<!е)(?!\w)) => {n:ordinal:nm}
    (?P<n>[1-6])\sр\.(?=/|\sв(?!\w)) => {n:counted:р}
    (?P<n>[4-9]0|\d{2,3}0)-е(?!\w) => {n:decades}
    (?P<n>\d{1,4})-?й(?=\s(?:[а-яё]{3,}[ыие](?!\w)|мин\.)) => {n:ordinal:gf}
    (?P<n>\d{1,4})-?(?:я|ая)(?!\w) => {n:ordinal:nf}
    (?P<n>\d{1,4})-?(?:е|ое)(?!\w) => {n:ordinal:nn}
    (?P<n>\d{1,4})-?(?:го|ого)(?!\w) => {n:ordinal:gm}
    (?:во?|на|об?|при|по|и) >> (?P<n>\d{1,4})-(?:м|ом|ем)(?!\w) => {n:ordinal:pm}
    (?P<n>\d{1,4})-(?:м|ом|ем)(?!\w) => {n:ordinal:im}
    .*-й >> мин\. => минуте{end}
    .*-я >> мин\. => минута{end}
    \d+-й >> км(?!\w) => километр
    \d+-м >> км(?!\w) => километре
    \d+ >> ст\.(?=\s\d) => статьи
    со? >> (?P<n>\d{1,3})-(?:ю|мя)(?!\w) => {n:im}
    (?:стр|с)\.\s(?P<a>\d{1,4})\s?[-–—]\s?(?P<b>\d{1,4})(?![\d-]|[.,]\d)
        => страницы с {a:ordinal:gf} по {b:ordinal:af}
    (?P<n>\d{1,4})-(?:му|ому)(?!\w) => {n:ordinal:dm}
    (?P<n>\d{1,4})-(?:ю|ую)(?!\w) => {n:ordinal:af}
    (?P<d>[0-3]?\d)\.(?P<m>0[1-9]|1[0-2])(?!\.?\d) => .date
    (?!.*\d$).* >> г\.(?=\s[А-ЯЁ]) => город
    {SIGN}(?:(?P<from>\d{1,6})(?:,(?P<fd>\d{1,3}))?\s?[-–—]\s?)?
        (?P<n>\d{1,3}(?:\s\d{3})+|\d{1,9})(?:,(?P<d>\d{1,3}))?(?![\d,])
        \s?(?:(?P<scale>{SCALES})\s?)?(?P<unit>{UNITS}|{CURRENCIES}|{SCALES}|%)(?!\w)\.?
        (?:/(?P<per>[^\W\d_]+)\.?)? => .in_case
    адрес: >> (?P<n>[1-6]\d{5})(?!\d|[.,]\d) => {n:spell}
    (?!боинг|аэробус|эмбраер).*
        >> (?P<from>\d{1,4})[-–—](?P<n>\d{1,4})(?![\w-]|[.,:/=]\d|\s?=) => .numbers
    {SIGN}(?P<n>\d{1,3}(?:\s\d{3})+|\d{1,6})(?:,(?P<d>\d{1,3}))?(?![\d:/–-]|[.,]\d|\s\d{3}|\s?[x×])
        => .governed
    """

    def ordinal(self, number: int, form: str = "nm") -> str:
        """Return an ordinal; its form is the letter of its case and that of its gender."""
        return self.say(number, "ordinal", case=form[0], gender=form[1])

    def read_governed(self, found: Found) -> str | None:
        """Return a number in the case that the word before it asks for; None: it asks for none."""
        digits = re.sub(r"\s", "", found["n"])
        number = int(digits)
        case = self._case(found, number)
        is_span = found.rest.lstrip().startswith(("по ", "до "))
        if found.word in ("с", "со") and 1900 <= number < 2100 and is_span:  # years
            return self.ordinal(number, "gm")
        if found["d"]:
            return case and self._sign(found) + self._decimal(digits, found["d"], case)
        form = _form_of(digits, first_word(found.rest), found.word) or (case and f"{case}m")
        return self._sign(found) + self.cardinal(number, form) if form else None

    def agreeing(self, words: str, before: str) -> str:
        """Return "one" and the noun after it in the accusative, "street" in the case it is in."""
        place, case = words.strip(), _PLACE_CASES.get(before.lower())
        if case and place in _PLACES:
            genitive = place + "а" if place[-1] not in "ая" else place[:-1] + "ыи"[place[-1] == "я"]
            return _declined(Noun(place, genitive, ""), case, True) + words[len(place) :]
        if before.lower() in ("в", "на") and words in self.currency_names:  # "цены в $"
            return _declined(self.currency_names[words].unit, "p", False)
        if before.lower() not in _BEFORE_ACCUSATIVE and not before.endswith(_IMPERATIVES):
            return words
        words = re.sub(r"\bодна (\w+)ая\b( ложка)?", r"одну \1ую\2", words)
        words = re.sub(r"\bодна (\w+)а\b", r"одну \1у", words)
        words = re.sub(r"(\bодн|\bполовин|ую ложк|^решётк|^звёздочк)а\b", r"\1у", words)
        return re.sub(r"(\bодну \w+)я\b", r"\1ю", words)

    def read_month(self, found: Found) -> str:
        genitive = super().read_month(found)
        return f"{genitive[:-1]}е" if found.word in ("в", "во") else genitive

    def read_per(self, found: Found) -> str:
        """Return "в минуту", or "за литр" behind money and "на литр" behind another unit."""
        said, joint = super().read_per(found), " за " if found["sym"] else " на "
        said = re.sub("я$", "ю", re.sub("а$", "у", said))
        return said if said.split(" ")[-1] in _TIMES else said.replace(" в ", joint)

    def read_compound(self, found: Found) -> str:
        """Return a word that begins with a number in the genitive, such as "пятиэтажный"."""
        said = self.cardinal(int(found["n"]), "gm").replace("одного", "одно")
        what, noun = found["what"], first_word(found.rest)
        if short := found["short"]:
            ending = "ая" if noun in ("кв", "квартира") else "ую" if noun[-1:] == "у" else "ый"
            what = {"комн": "комнатн", "эт": "этажн", "мест": "местн"}[short] + ending
        elif ending := found["ending"].removeprefix("н"):
            what = "процентн" + {"я": "а", "й": "ы", "е": "о"}.get(ending, "") + ending
        return re.sub(r"\b(девяно|)ста\b", r"\1сто", said).replace(" ", "") + what

    def _case(self, found: Found, number: int) -> str | None:
        """Return the case that the word before a number asks for: "по 1 таблетке" the dative."""
        is_each = found.word == "по" and self.plural(number) == 0
        asked = _CASES.get(found["sign"].strip()) or _CASES.get(found.word)
        asked = "p" if found.word in ("в", "во") and _FROM.match(found.rest) else asked
        return "d" if is_each and not found["from"] else asked

    def read_in_case(self, found: Found) -> str | None:
        """Return a number and its noun in the case that the word before, or a range, asks for."""
        whole, decimals = re.sub(r"\s", "", found["n"]), found["d"]
        asked = self._case(found, int(whole))
        case = asked or "g"
        if not (asked or found["from"]):
            return None
        unit, scale = found["unit"], self.scales.get(found["scale"])
        noun = self.units.get(unit) or self.scales.get(unit)
        noun = noun or self.currencies[unit].unit
        head = scale or noun
        first, is_goal = found["from"], found.word in _BEFORE_GOALS
        if first:
            is_one = self.plural(int(first)) == 0 and (head.gender == "f" or found.word == "по")
            goal = ("d" if found.word == "по" else "a") if is_one and not found["fd"] else "n"
            first = self._in_case(first, found["fd"], goal if is_goal else case, head.gender)
        if first and is_goal:
            said = self.count(whole, decimals, head, f"{first} — ")
            return said + (f" {noun.many}" if scale else "") + self.kept_point(found)
        said = self._in_case(whole, decimals, case, head.gender)
        form = head.few if decimals else head.many  # also of zero
        if not decimals and int(whole):
            form = _declined(head, case, self.plural(int(whole)) == 0)
        said = f"{self._sign(found)}{said} {form}" + (f" {noun.many}" if scale else "")
        if first:
            said = f"{first} {said}" if asked else f"от {first} до {said}"
        return said + self.read_per(found) + self.kept_point(found)

    def _in_case(self, whole: str, decimals: str, case: str, gender: str) -> str:
        if decimals:
            return self._decimal(whole, decimals, case)
        return self.cardinal(int(whole), case + gender)

    def read_numbers(self, found: Found) -> str | None:
        """Return the words of a range of numbers, "from five to ten"; None for a score."""
        first, last = int(found["from"]), int(found["n"])
        if first >= last or found.last in tuple("-–+№/"):
            return None
        case = _CASES.get(found.word)
        if case or found.word in _BEFORE_GOALS or self.plural(last) == 1:
            form = f"{case}m" if case else self.gender_after("2", first_word(found.rest), "")
            return " — ".join(self.cardinal(each, form) for each in (first, last))
        if 1100 <= first < last < 2100 and (first >= 1900 or first % 50 or last % 50):
            return f"с {self.ordinal(first, 'gm')} по {self.ordinal(last, 'nm')}"
        opening = "с" if found.word.rstrip(":,") in self.weekdays else "от"
        return f"{opening} {self.cardinal(first, 'gm')} до {self.cardinal(last, 'gm')}"

    def read_hours(self, found: Found) -> str:
        """Return the words of hours of opening, "from nine to eighteen hours"."""
        first, last = (
            self._hour_in_case(int(found[each]), int(found[f"{each}m"]), "g") for each in "ab"
        )
        opening = "" if found.word in ("с", "со") else "с "
        return f"{opening}{first} до {last}" + " часов" * (found["bm"] == "00")

    def _hour_in_case(self, hour: int, minute: int, case: str) -> str:
        zero = [self.say(0, case=case)] if 0 < minute < 10 else []
        said = [self.cardinal(each, f"{case}m") for each in (hour, minute)]
        return " ".join([said[0], *zero, said[1]] if minute else said[:1])

    def read_time(self, found: Found) -> str | None:
        case = _CASES.get(found.word)
        if not case or found["s"]:
            return super().read_time(found)
        hour, minute = int(found["h"]), int(found["m"] or 0)
        name = _declined(self.units["ч"], case, self.plural(hour) == 0)
        return self._hour_in_case(hour, minute, case) + ("" if minute else f" {name}")

    def read_days_of_month(self, found: Found) -> str | None:
        """Return the words of two days of a month, such as "с 5 по 10" and "5–10"."""
        link, first, last = found["link"], int(found["a"]), int(found["b"])
        if not 0 < first <= 31 or not 0 < last <= 31:
            return None
        if link == "и":
            case = _CASES.get(found.word, "g")
            return " и ".join(self.ordinal(each, f"{case}n") for each in (first, last))
        opening = "" if found.word in ("с", "со", "от") else "с "
        end = self.ordinal(last, "gm") if link == "до" else self.ordinal(last, "nn")
        return f"{opening}{self.ordinal(first, 'gm')} {link or 'по'} {end}"

    def read_days(self, found: Found) -> str | None:
        names = [found[each].lower() for each in "ab" if found[each]]
        if len(names) < 2 or found["link"] == "и" or not {*names} <= {*_WEEK}:
            return super().read_days(found)
        first, last = map(_WEEK.index, names)
        word = "" if found.word in ("с", "со") else "с" + "о" * (first == 1) + " "
        return f"{word}{_DAYS_OF[first]} по {_DAYS_ON[last]}{self.kept_point(found)}"

    def gender_after(self, number: str, noun: str, before: str) -> str:
        if form := _form_of(number, noun, before):
            return form
        is_noun = noun.islower() and len(noun) > 3 and noun not in ("года", "этажа")
        if not is_noun or not number.isdecimal():
            return ""
        plural = self.plural(int(number))
        if plural == 1 and number[-1] == "2":
            return "f" if noun[-1] in "ыи" and noun not in ("дни", "или", "пути") else ""
        if plural == 0:
            if noun[-1] in "ую" and before.lower() not in ("к", "ко", "по", "согласно"):
                return "af"  # "за 1 неделю"
            return "f" if noun[-1] in "ая" else "n" if noun[-1] in "ое" else ""
        return ""

    def may_agree(self, number: str, noun: str) -> bool:
        digits = re.sub(r".*[-–—]\d+$", "2", number)  # of "2-3", before a noun for two
        return number.endswith("-й") or any(
            self.gender_after(digits, noun, before) for before in ("с", "в", "к")
        )

    def of_decades(self, number: int) -> str:
        """Return a number in the genitive, "of three", or a decade, "of the eighties"."""
        if number < 10:
            return self.cardinal(number, "gm")
        return self.decades(number, "ых")

    def decades(self, number: int, ending: str = "ые") -> str:
        return self.ordinal(number, "gm").removesuffix("ого") + ending

    def read_centuries(self, found: Found) -> str | None:
        """Return one or two centuries, in the case of "века", or of what stands before "в."."""
        given = (found[each].replace("Х", "X") for each in ("r", "to") if found[each])
        numbers = [int(each) if each.isdecimal() else roman_number(each) for each in given]
        if 0 in numbers:
            return None
        noun, is_one = found["what"], len(numbers) == 1
        if noun[-1] == ".":
            is_first = found.word[-1:] in tuple(".!?:") and found.word not in self.abbreviations
            is_subject = is_first or found.word in _BEFORE_NOMINATIVE
            case = _IN_CENTURIES.get(found.word) or ("n" if is_subject else "g")
            forms = _QUARTER if noun == "кв." else _CENTURY
            noun = _declined(forms, case, is_one and noun != "вв.") + self.kept_point(found)
        else:
            case = "n" if noun == "века" and not is_one else _CENTURIES.get(noun, "n")
        joint = " и " if "и" in found["link"] else " — "
        return joint.join(self.ordinal(each, f"{case}m") for each in numbers) + f" {noun}"

    def read_rated(self, found: Found) -> str:
        return f"{self.number(*self.digits_of(found))} из {self.cardinal(int(found['b']), 'gm')}"

    def regnal(self, number: int, name: str) -> str | None:
        return self.ordinal(number, "nf") if name[-1] in "ая" else self.ordinal(number)

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
        """Return the words of a number; the letter of a case may stand before its gender."""
        return self.say(number, case=gender[-2:-1] or "n", gender=gender[-1:] or "m")

    def plural(self, number: int) -> int:
        """Return 0 for a number that ends in 1, 1 for 2 to 4, 2 for all others (11 to 14 too)."""
        if number % 10 == 1 and number % 100 != 11:
            return 0
        return 1 if number % 10 in (2, 3, 4) and number % 100 not in (12, 13, 14) else 2

    def form(self, whole: str, decimals: str, noun: Noun) -> str:
        """Return the form of a noun after a number; decimals take the form for two to four."""
        is_whole = whole and not decimals and len(whole) <= MAX_DIGITS
        return super().form(whole, decimals, noun) if is_whole else noun.few

    def day(self, number: int, before: str) -> str:
        """Return the day: "on the third" (genitive) behind most words, else "the third"."""
        word = before.lower().strip(".,:;!?—–-")
        if word in ("к", "ко", "между"):
            return self.ordinal(number, f"{_CASES[word]}n")
        return self.ordinal(number, "nn" if word in _BEFORE_NOMINATIVE else "gm")

    def dated_year(self, number: int) -> str:
        return f"{self.ordinal(number, 'gm')} года"

    def time(self, hour: int, minute: int, second: int | None) -> str:
        """Return a time of day; a zero is spoken before a single digit of minutes or seconds."""
        if not minute and not second:
            return self.counted(hour, "ч")
        parts = [minute] if second is None else [minute, second]
        said = [f"{'' if part > 9 else 'ноль '}{self.say(part)}" for part in parts]
        return " ".join([self.say(hour), *said])

    def fraction(self, top: int, bottom: int, case: str = "n") -> str:
        is_one = self.plural(top) == 0
        if bottom in _PARTS:
            part = _PARTS[bottom] + (_ONE_PART if is_one else _PARTS_OF)[case]
        elif is_one:
            part = self.ordinal(bottom, f"{case}f")
        else:
            part = self.ordinal(bottom, "gm").removesuffix("ого") + _FRACTION_ENDINGS[case]
        return f"{self.cardinal(top, f'{case}f')} {part}"

    def read_fraction(self, found: Found) -> str | None:
        """Return a fraction in the case that the word before it asks for."""
        top, bottom, case = int(found["n"]), int(found["d"]), _CASES.get(found.word)
        if self.plural(top) == 0 and found.word in _BEFORE_GOALS:
            case = "a"
        if not case or found["w"] or found["unit"] or top >= bottom:
            return super().read_fraction(found)
        return self.fraction(top, bottom, case)

    def number(self, whole: str, decimals: str = "", gender: str = "") -> str:
        """Return the words of a number; "3,14" is "three wholes, fourteen hundredths"."""
        if not whole or len(whole) > MAX_DIGITS or len(decimals) not in _TENTHS:
            return super().number(whole, decimals, gender)
        return self._decimal(whole, decimals, "n")

    def _decimal(self, whole: str, decimals: str, case: str) -> str:
        said = []
        for digits, stem in ((whole, "цел"), (decimals, _TENTHS[len(decimals)])):
            ending = _FRACTION_ENDINGS[case]
            if self.plural(int(digits)) == 0:
                ending = "ая" if case == "n" else "ой"
            said += [self.cardinal(int(digits), f"{case}f"), stem + ending]
        return " ".join(said)


def _form_of(number: str, noun: str, before: str) -> str:
    """Return the form of a number that the ending of the noun behind it shows; "" if none does."""
    kind = "1" if re.fullmatch(r"(?:\d*[^\D1])?1", number) else "5"
    words = f"{kind} {before.lower()} {noun}"
    return next((form for pattern, form in _FORMS if pattern.fullmatch(words)), "")


def _declined(noun: Noun, case: str, is_one: bool) -> str:
    """Return a noun in a case; its forms for 2 and 5 are those of the genitive."""
    words, many = noun.few.split(), noun.many.split()
    at = next((each for each, word in enumerate(words) if word[-1] in "аяыи"), None)
    if case not in _ENDINGS or at is None:  # "евро" has one form
        one, other = (noun.few, noun.many) if case == "g" else (noun.one, noun.few)
        return one if is_one else other
    word, (singular, plural) = words[at], _ENDINGS[case]
    is_soft = word[-1] == "я" or (word[-1] == "и" and word[-2] not in "гкхжчшщ")
    ending = "ая"[is_soft] + plural
    if is_one:
        ending = singular.split()[2 * (word[-1] in "ыи") + is_soft]
    adjectives = [each[:-1] + plural for each in many[:at]]
    return " ".join([*adjectives, word[:-1] + ending, *words[at + 1 :]])
