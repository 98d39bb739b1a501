"""English: a.m. and p.m., decades, dates in both orders, "St." and "Dr.", "Henry VIII", feet."""

import re

from qwen_megakernel.text.reading.language import Language, Rules, roman_number

_SCALES = ("", " thousand", " million", " billion", " trillion")
_HALVES = {2: ("half", "halves"), 4: ("quarter", "quarters")}
_MAX_PARTS = 20  # the largest denominator that is an ordinal; 120/80 is "120 over 80"
_NAMED_FRACTIONS = {(24, 7): "twenty-four seven", (9, 11): "nine eleven", (20, 20): "twenty twenty"}
_REGNAL = """henry louis george charles james elizabeth edward william richard john pope pius
    napoleon philip peter catherine mary francis frederick alexander nicholas paul benedict
    gregory"""


class English(Language):
    code = "en"
    minus, plus, point = "minus", "plus", "point"
    percent, per, to, number_sign = "percent", "per", "to", "number"
    ordinal_marks = "st|nd|rd|th|ST|ND|RD|TH"
    BEFORE_DIGITS = r"""(?:N[or]|#)\.?\s: number; Nos\.?\s: numbers; Fig\.?\s: figure
        (?i:vol)\.?\s: volume; pp\.\s?: pages; p\.\s?: page"""
    plural_ending = "s"
    UNITS = """km: kilometer; m: meter; cm: centimeter; mm: millimeter; nm: nanometer; mi: mile
        ft: foot, feet; yd: yard; kg: kilogram; g: gram; mg: milligram; lb lbs: pound; oz: ounce
        l L: liter; ml mL: milliliter; m² m2: square meter; km² km2: square kilometer
        m³ m3: cubic meter; °C ℃: degree Celsius, degrees Celsius; °: degree
        °F ℉: degree Fahrenheit, degrees Fahrenheit; h hr hrs: hour; min mins: minute
        s sec secs: second; ms: millisecond; mph: mile per hour, miles per hour
        kph kmh: kilometer per hour, kilometers per hour; KB kB: kilobyte; MB: megabyte
        GB: gigabyte; TB: terabyte; kbps: kilobit per second, kilobits per second
        Mbps: megabit per second, megabits per second; Gbps: gigabit per second, gigabits per second
        Hz: hertz, hertz; kHz: kilohertz, kilohertz; MHz: megahertz, megahertz
        GHz: gigahertz, gigahertz; W: watt; kW: kilowatt; MW: megawatt; kWh: kilowatt hour; V: volt
        mA: milliamp; mAh: milliamp hour; dB: decibel; hp: horsepower, horsepower; kcal cal: calorie
        px: pixel; fps: frame per second, frames per second; x ×: time; in.: inch, inches
        rpm: revolution per minute, revolutions per minute"""
    SCALES = """k K: thousand, thousand; thousand: thousand, thousand
        M mn million: million, million; B bn billion: billion, billion
        T tn trillion: trillion, trillion"""
    CURRENCIES = """$ US$ USD: dollar / cent; € EUR: euro / cent; £ GBP: pound / penny, pence
        ¥ JPY: yen, yen; ₹ INR: rupee / paisa, paise; ₩ KRW: won, won; ₽ RUB: ruble / kopek
        C$ CAD: Canadian dollar / cent; A$ AUD: Australian dollar / cent; CHF: Swiss franc / centime
        CNY RMB: yuan, yuan; ₿ BTC: bitcoin; ¢: cent"""
    money_joint = " and "
    MONTHS = "January February March April May June July August September October November December"
    SHORT_MONTHS = "jan feb mar apr - jun jul aug sep/sept oct nov dec"
    LINKS, day_first = "of", False
    dates = "{month} {day}", "{month} {day}, {year}"
    ABBREVIATIONS = """Mr. Mr: mister; Mrs. Mrs: missus; Ms. Ms: miz; Prof. Prof: professor
        Jr. Jr: junior; Sr. Sr: senior; vs. vs v.: versus; etc. etc: et cetera; e.g.: for example
        i.e.: that is; approx. ca.: approximately; Inc. Inc: incorporated; Ltd. Ltd: limited
        Corp.: corporation; Co.: company; Dept. dept.: department; Ave. Ave: avenue
        Blvd. Blvd: boulevard; Rd.: road; Mt. Mt: mount; Ft.: fort; Gen.: general; Col.: colonel
        Sgt. Sgt: sergeant; Capt.: captain; Lt.: lieutenant; Rev.: reverend; Gov.: governor
        Sen.: senator; Rep.: representative; Pres.: president; est.: estimated; min.: minutes
        max.: maximum; a.m. a.m: a m; p.m. p.m: p m; w/: with; w/o: without; U.S.: U S; U.K.: U K
        U.N.: U N; E.U.: E U; U.S.A.: U S A; D.C.: D C; Ph.D. PhD: P H D; Jan.: January
        Feb.: February; Mar.: March; Apr.: April; Aug.: August; Sept. Sep.: September; Oct.: October
        Nov.: November; Dec.: December; Mon.: Monday; Tue. Tues.: Tuesday; Wed.: Wednesday
        Thu. Thurs.: Thursday; Fri.: Friday; Sat.: Saturday; Sun.: Sunday"""
    FINAL = "Jr. Sr. etc. Inc. Ltd. Corp. Co. Ave. Blvd. Rd. a.m. p.m."
    SYMBOLS = """&: and; @: at; ²: squared; ³: cubed; ++: plus plus; =: equals; ÷: divided by
        ×: times; °: degrees; ≈ ~: about; <: less than; >: more than; ≤: at most; ≥: at least
        ±: plus or minus; ©: copyright; §: section; →: to; *: times"""
    WEB = """.: dot; /: slash; -: dash; _: underscore; ?: question mark; #: hash; %: percent
        ~: tilde; :: colon"""
    OPENS = "St. St Dr. Dr No. Nos. no. Fig. Vol. vol. p. pp."
    FOLLOWERS = "am pm a.m p.m"

    def rules(self) -> Rules:
        """Times with am or pm, decades, dates, titles, Roman numerals, feet, and powers."""
        half_day = r"(?P<mark>[ap]\.m\.?|[ap]m)(?!\w)"
        yield rf"(?i)(?P<h>1[0-2]|0?[1-9])(?::(?P<m>[0-5]\d))?\s?{half_day}", self.half_day
        yield r"['’]?(?P<c>1\d|20)(?P<t>[1-9]0)['’]?s\b", "{c} {t:decade}"
        yield r"['’]?(?P<t>[1-9]0)['’]?s\b", "{t:decade}"
        yield r"['’]?(?P<c>1[1-9])00['’]?s\b", "{c} hundreds"
        yield r"['’]?(?P<n>[12])000['’]?s\b", "{n} thousands"
        months = "|".join(sorted(self.month_forms, key=len, reverse=True))
        month = rf"(?:of\s)?(?P<m>{months})\b\.?(?:,?\s(?P<y>\d{{4}})(?!\d))?"
        yield rf"(?i)(?P<d>[12]\d|3[01]|0?[1-9])(?:st|nd|rd|th)?\s{month}", self.british_date
        day = r"(?P<d>\d{1,2})(?:st|nd|rd|th)?(?:,?\s(?P<y>\d{4}))?(?![\d:%]|\.\d|,\d)(?![^\W_])"
        yield day, self.day_of_month
        yield r"St\b\.?(?!\w)", lambda match, before: _title(match, before, "saint", "street")
        yield r"Dr\b\.?(?!\w)", lambda match, before: _title(match, before, "doctor", "drive")
        yield r"[IVXL]{2,7}(?![\w.])", self.roman
        yield r"(?P<ft>\d)['′’](?P<in>1[01]|\d)(?:\"|″|'')?(?!\w)", "{ft} foot {in}"
        yield r"(?P<ft>\d)['′’](?!\w)", "{ft} foot"
        yield r"(?:[A-Z]\.){2,}(?!\w)", lambda match, _: " ".join(match[0].replace(".", ""))
        yield r"\^0{0,2}2(?!\d)", " squared"
        yield r"\^0{0,2}3(?!\d)", " cubed"
        yield r"\^(?P<n>\d{1,3})(?!\d)", " to the power of {n}"
        yield r"(?i)v(?=\d+\.\d)", "version"
        yield r"(?P<a>\d{1,6})(?:\s?x\s?|×)(?P<b>\d{1,6})(?!\w)", "{a} by {b}"
        yield r"(?P<n>\d{1,3})k(?!\w)", "{n} thousand"
        yield r"(?P<n>\d{1,3})\.(?P<d>\d)k(?!\w)", "{n} point {d} thousand"

    def cardinal(self, number: int, gender: str = "") -> str:
        """Return the words of a number; the words of each group of three digits are cached."""
        if number < 1000:
            return self.say(number)
        words: list[str] = []
        for scale in _SCALES:
            number, group = divmod(number, 1000)
            if group:
                joint = "and " if not scale and group < 100 else ""
                words.insert(0, joint + self.say(group) + scale)
        return " ".join(words)

    def ordinal(self, number: int) -> str:
        """Return the cardinal with its last word changed."""
        head, tail = divmod(number, 100)
        if not tail or not head:
            return self.say(number, "ordinal")
        return f"{self.cardinal(head * 100)} and {self.say(tail, 'ordinal')}"

    def fraction(self, top: int, bottom: int) -> str:
        if (top, bottom) in _NAMED_FRACTIONS:
            return _NAMED_FRACTIONS[top, bottom]
        if top == bottom:
            return f"{self.cardinal(top)} out of {self.cardinal(bottom)}"
        if bottom < 2 or (bottom > _MAX_PARTS and bottom != 100):
            return f"{self.cardinal(top)} over {self.cardinal(bottom)}"
        one, many = _HALVES.get(bottom) or (self.ordinal(bottom), self.ordinal(bottom) + "s")
        return f"{self.cardinal(top)} {one if top == 1 else many}"

    # ---- dates and times -------------------------------------------------------------------------

    def year(self, number: int) -> str:
        return self.say(number, "year").replace("oh-", "oh ").replace(" and ", " ")

    def day(self, number: int, before: str) -> str:
        return self.ordinal(number)

    def british_date(self, match: re.Match[str], before: str) -> str:
        """Return the words of a date such as "5 March 2026"."""
        month = self.month(self.month_forms[match["m"].lower()])
        words = f"{self.ordinal(int(match['d']))} of {month}"
        if before.lower() != "the":
            words = f"the {words}"
        return words + (f" {self.year(int(match['y']))}" if match["y"] else "")

    def day_of_month(self, match: re.Match[str], before: str) -> str | None:
        """Return the words of "5, 2026" after the name of a month; None after another word."""
        is_month = before.lower().strip("*_(\"'.") in self.month_forms
        if not is_month or not 1 <= int(match["d"]) <= 31:
            return None
        words = self.ordinal(int(match["d"]))
        return words + (f", {self.year(int(match['y']))}" if match["y"] else "")

    def decade(self, tens: int) -> str:
        """Return the plural of a number of tens, such as "nineties" for 90."""
        return self.say(tens)[:-1] + "ies" if tens > 10 else "tens"

    def time(self, hour: int, minute: int, second: int | None) -> str:
        words = self.cardinal(hour)
        if second is not None:
            seconds = self.count(str(second), "", self.units["s"])
            return f"{words} {self._minutes(minute)} and {seconds}"
        if minute:
            return f"{words} {self._minutes(minute)}"
        return f"{words} o'clock" if 1 <= hour <= 12 else f"{words} hundred"

    def half_day(self, match: re.Match[str], before: str) -> str:
        """Return the words of a time such as "3:05 pm" or "3pm"."""
        words = self.cardinal(int(match["h"]))
        if match["m"] and int(match["m"]):
            words += " " + self._minutes(int(match["m"]))
        words += f" {match['mark'][0].lower()} m"
        rest = match.string[match.end() :]
        ends = match["mark"].endswith(".") and (not rest.strip() or re.match(r"\s+[A-Z]", rest))
        return words + ("." if ends else "")

    def _minutes(self, minute: int) -> str:
        return self.cardinal(minute) if minute > 9 else f"oh {self.cardinal(minute)}"

    # ---- other numbers ---------------------------------------------------------------------------

    def roman(self, match: re.Match[str], before: str) -> str | None:
        """Return the words of a Roman numeral after a name or a title, as in "Chapter IV"."""
        if not before[:1].isupper() or before.isupper() or not before.isalpha():
            return None
        number = roman_number(match[0])
        is_of_a_ruler = before.lower() in _REGNAL.split()
        return f"the {self.ordinal(number)}" if is_of_a_ruler else self.cardinal(number)


def _title(match: re.Match[str], before: str, title: str, street: str) -> str | None:
    """Return `title` before a name and `street` after one; None if neither is certain."""
    rest = match.string[match.end() :]
    is_name_next = re.match(r"\s+[\"'“]?[A-Z]", rest) is not None
    is_name_before = before[:1].isupper() and before[-1:].isalpha()
    if is_name_next and not (is_name_before and not match[0].endswith(".")):
        if not is_name_before or before.lower() in ("the", "and", "in", "to", "from"):
            return title
        return street + "." if re.match(r"\s", rest) else street
    if not is_name_before:
        return title if not rest.strip() else None
    return street + ("." if match[0].endswith(".") and not rest.strip() else "")
