"""English: a.m. and p.m., decades, dates in both orders, "St." and "Dr.", "Henry VIII", feet."""

import re

from qwen_megakernel.text.reading.language import Language, Rules, any_of, roman_number
from qwen_megakernel.text.reading.spoken import RESPELT
from qwen_megakernel.text.reading.surroundings import CLOSING, first_word

_HALVES = {2: ("half", "halves"), 4: ("quarter", "quarters")}
_MAX_PARTS = 20  # largest denominator with a name, apart from 100; 120/80 is read with "over"
_NAMED_FRACTIONS = {(9, 11): "nine eleven", (20, 20): "twenty twenty", (50, 50): "fifty fifty"}
_REGNAL = """henry louis george charles james elizabeth edward william richard john pope pius
    napoleon philip peter catherine mary francis frederick alexander nicholas paul benedict
    gregory"""
_NUMBERED = """act appendix article book chapter class division episode grade level part phase
    section season stage step table title tier type unit vol volume war"""
_WEEKDAYS = "monday tuesday wednesday thursday friday saturday sunday mon tue wed thu fri sat sun"
_DUE = {*_WEEKDAYS.split(), "on", "due", "dated"}  # words after which 5/6 is a date
_CODED = "id pin otp zip postcode passcode password code extension ext"  # before digits of a code
_FILES = """bat bin cfg conf cpp css csv cu dll doc docx exe gif git go gz html ini ipynb jpeg jpg
    js json jsx log md mp3 mp4 onnx pdf php png ppt pptx ps py rb rs sh so sql svg tar tex toml ts
    tsv tsx txt wav xls xlsx xml yaml yml zip net safetensors gguf pt"""
_PER_SQUARE = {"sq": "square", "cu": "cubic", "fl": "fluid"}

# Nouns before which "3m" is three million, and words that end in "s" but leave it three metres.
_COUNTED = """people men women children users active monthly daily paid paying registered
    unemployed views sheep cattle fish deaths U.S. American British European"""
_MEASURED = """across upwards downwards towards always as was has its this plus times is sideways
    backwards forwards inwards outwards afterwards besides less hurdles finals races sprints heats
    runners sprinters relays waves walls cables intervals strides yes thus sometimes perhaps"""

_BEFORE_PLURALS = """the these those of in by two three four five six seven eight nine ten many
    some several few all both your my our their his her"""
_SAINTS = """Albans Andrew Andrews Anthony Augustine Barts Catherine Catharines Charles Clair Croix
    Elmo Francis Gallen George Helena Helens Ives James Jerome John Johns Joseph Jude Kitts Lawrence
    Louis Lucia Luke Maarten Mark Martin Mary Matthew Michael Moritz Nicholas Nick Olaf Pancras
    Patrick Paul Peter Peters Petersburg Pete Pierre Regis Stephen Stephens Thomas Tropez Valentine
    Vincent Vitus"""
_AFTER_STREETS = ["NE", "NW", "SE", "SW", "N", "S", "E", "W", "Suite", "Apt", "Unit"]


class English(Language):
    code = "en"
    minus, plus, point = "minus", "plus", "point"
    percent, per, to, number_sign = "percent", "per", "to", "number"
    by, over, out_of, extension = "by", "over", "out of", "extension"
    PHONE_WORDS = "call dial phone telephone tel text fax mobile cell"
    ordinal_marks = "st|nd|rd|th|ST|ND|RD|TH"
    BEFORE_DIGITS = r"""(?:N[or]|#)\.?\s: number; Nos\.?\s: numbers; Fig\.?\s: figure
        (?i:vol)\.?\s: volume; pp\.\s?: pages; p\.\s?: page; (?:[Nn]o\.|[№]\s?|Nº\s?): number
        [Cc]h\.\s: chapter; [Ss]ec\.\s: section; Eq\.\s: equation; [Ee]xt\.?\s: extension
        Apt\.?\s: apartment; Ste\.\s: suite; Rm\.\s: room; √: the square root of"""
    plural_ending = "s"
    UNITS = """KM: kilometer; KG: kilogram; lbs: pound; hrs: hour; mins: minute; secs: second
        kph kmh: kilometer per hour, kilometers per hour; MPH: mile per hour, miles per hour
        kbps: kilobit per second, kilobits per second; bps: bit per second, bits per second
        Mbps: megabit per second, megabits per second; Gbps: gigabit per second, gigabits per second
        kWh: kilowatt hour; mA: milliamp; mAh: milliamp hour; mV: millivolt; kV: kilovolt
        hp: horsepower, horsepower; kcal cal: calorie; dB: decibel; kΩ: kilohm; MΩ: megohm
        x ×: time; in.: inch, inches; fps: frame per second, frames per second
        rpm: revolution per minute, revolutions per minute
        bpm BPM: beat per minute, beats per minute; ppm: part per million, parts per million
        psi: pound per square inch, pounds per square inch; mo mos: month; gal: gallon; qt: quart
        pt: pint; pc pcs: piece; pts: point; mcg: microgram; N: newton; Nm: newton meter
        mol: mole; rad: radian"""
    has_compounds = True
    ARTICLES = "a an another"
    SCALES = """k K: thousand, thousand; thousand: thousand, thousand
        M mn million: million, million; B bn billion: billion, billion
        T tn trillion: trillion, trillion"""
    MONEY_SCALES = "m: million, million; b: billion, billion; t: trillion, trillion"
    CURRENCIES = """$ US$ USD: dollar / cent; € EUR: euro / cent; £ GBP: pound / penny, pence
        ¥ JPY: yen, yen; ₹ INR Rs. Rs: rupee / paisa, paise; ₩ KRW: won, won; ₽ RUB: ruble / kopek
        C$ CAD: Canadian dollar / cent; A$ AUD: Australian dollar / cent; CHF: Swiss franc / centime
        CNY RMB: yuan, yuan; ₿ BTC: bitcoin; ¢: cent"""
    money_joint = " and "
    SHORT_MONTHS = "jan feb mar apr - jun jul aug sep/sept oct nov dec"
    LINKS, day_first, years_joint = "of", False, " to "
    dates = "{month} {day}", "{month} {day}, {year}"
    ABBREVIATIONS = """Mr. Mr: mister; Mrs. Mrs: missus; Mx. Mx: mix; Ms. Ms: miz
        Prof. Prof: professor
        Jr. Jr: junior; Sr. Sr: senior; vs. vs v.: versus; etc. etc: et cetera; e.g.: for example
        i.e.: that is; approx. ca.: approximately; Inc. Inc: incorporated; Ltd. Ltd: limited
        Corp.: corporation; Co.: company; Dept. dept.: department; Ave. Ave: avenue
        Blvd. Blvd: boulevard; Rd.: road; Mt. Mt: mount; Ft.: fort; Gen.: general; Col.: colonel
        Sgt. Sgt: sergeant; Capt.: captain; Lt.: lieutenant; Rev.: reverend; Gov.: governor
        Sen.: senator; Rep.: representative; Pres.: president; est.: estimated; min.: minimum
        max.: maximum; a.m. a.m: a m; p.m. p.m: p m; w/: with; w/o: without; b/c: because
        Ph.D. PhD: P H D; Jan.: January
        Sept. Sep.: September; apt. Apt.: apartment; Feb.: February; Mar.: March; Apr.: April
        Jun.: June; Jul.: July; Aug.: August
        km/h: kilometers per hour; m/s: meters per second; mi/h: miles per hour
        ext.: extension; Pkwy. Pkwy: parkway; Hwy. Hwy: highway; Oct.: October
        Nov.: November; Dec.: December; Mon.: Monday; Tue. Tues.: Tuesday; Wed.: Wednesday
        Thu. Thurs.: Thursday; Fri.: Friday; Sat.: Saturday
        Tue Tues: Tuesday; Wed: Wednesday; Thu Thur Thurs: Thursday; Fri: Friday
        incl.: including; excl.: excluding"""
    BEFORE_ROMANS = _NUMBERED
    FINAL = "Jr. Sr. etc. Inc. Ltd. Corp. Co. Ave. Blvd. Rd. a.m. p.m."
    STARTERS = """A After All Also An And Any Are As At Be Because Before But By Can Could Did Do
        Does
        Every Everyone For From Had Has Have He Her Here His How However I If In Is It Its Just Let
        Maybe My No Not Nothing Now Of On Once One Only Or Our Please She Should So Some Soon Still
        That The Their Then There These They This Those Thus To Today Tomorrow Turn Was We Were What
        When Where Which While Who Why Will With Would Yes Yesterday You Your"""
    AFTER_FINAL = (
        "NE NW SE SW EST EDT CST CDT MST MDT PST PDT ET CT MT PT GMT UTC BST CET CEST IST JST "
        "Eastern Pacific"
    )
    SYMBOLS = """&: and; @: at; ²: squared; ³: cubed; ++: plus plus; =: equals; ÷: divided by
        ×: times; °: degrees; ≈ ~: about; <: less than; >: more than; ≤: at most; ≥: at least
        ±: plus or minus; ©: copyright; §: section; →: to; ≠: does not equal; π: pi
        ∞: infinity"""
    LETTERS = """ay bee see dee ee eff gee aitch eye jay kay el em en oh pee queue are ess tee you
        vee double-you ex why zee"""
    WEB = """.: dot; /: slash; -: dash; _: underscore; ?: question mark; #: hash; %: percent
        ~: tilde; :: colon; \\: backslash"""
    OPENS = """pt St. St Dr. Dr No. Nos. no. Fig. Vol. vol. p. pp. Ch. ch. Sec. sec. Eq. Ext. ext.
        ext
        Apt. Apt Ste. Rm. № Nº Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec"""
    FOLLOWERS = "in am pm a.m p.m sq fl cu"

    def rules(self) -> Rules:
        """Times with am or pm, decades, dates, titles, Roman numerals, feet, and powers."""
        half_day = r"(?P<mark>[ap]\.m\.?|[ap]m)(?!\w)"
        yield rf"(?i)(?P<h>1[0-2]|0?[1-9])(?:[:.](?P<m>[0-5]\d))?\s?{half_day}", self.half_day
        yield r"['’]?(?P<c>1\d|20)(?P<t>[1-9]0)['’]?s\b", "{c} {t:decade}"
        yield r"['’]?(?P<t>[1-9]0)['’]?s\b", "{t:decade}"
        yield r"['’]?(?P<c>1[1-9])00['’]?s\b", "{c} hundreds"
        yield r"['’]?(?P<n>[12])000['’]?s\b", "{n} thousands"
        months = any_of(self.month_forms)
        month = rf"(?:of\s)?(?P<m>{self.month_pattern()})(?:,?\s(?P<y>\d{{4}})(?!\d))?"
        yield rf"(?i)(?P<d>[12]\d|3[01]|0?[1-9])(?:st|nd|rd|th)?\s{month}", self.british_date
        yield (
            rf"(?i)(?P<d>[12]\d|3[01]|0?[1-9])-(?P<m>{months})-(?P<y>\d{{4}})(?!\d)",
            self.british_date,
        )
        short = "|".join(
            name.title() for name in self.month_forms if name.title() not in self.months
        )
        yield rf"(?P<m>{short})(?=\s\d)", lambda match, _: self._month_of(match)
        day = (
            r"(?P<d>\d{1,2})(?:st|nd|rd|th)?(?:[-–](?P<to>\d{1,2})(?:st|nd|rd|th)?)?"
            r"(?:,?\s(?P<y>\d{4}))?(?![\d:%]|\.\d|,\d)(?![^\W_])"
        )
        yield day, self.day_of_month
        yield r"(?P<n>\d{1,4})['’]?s(?!\w)", self.plural_number
        yield r"(?P<a>\d{1,3}):(?P<b>\d{1,3})[-–](?P<c>\d{1,3})(?![\d:])", self.verses
        yield (
            r"(?P<n>\d{1,3})\s?pt(?=\s(?i:font|type|text|size|bold|arial|helvetica|times))",
            "{n} point",
        )
        yield r"St\b\.?(?!\w)", self.saint
        yield r"Dr\b\.?(?!\w)", self.doctor
        yield r"\b(?P<r>[IVXL]+)\s?[-–—]\s?(?P<to>[IVXL]+)(?!\w|['’]\w)", self.roman_range
        yield r"\b[IVXL]{1,7}(?!\w|\.\w|['’][a-z]{2})", self.roman_after_name
        yield r"Sun\.", lambda match, before: None if before.lower() == "the" else "Sunday"
        yield r"50-50(?![\w-])", "fifty fifty"
        yield r"24[/x]7/365(?![\d/])", "twenty-four seven three sixty-five"
        yield r"24x7(?!\w)", "twenty-four seven"
        yield (
            r"(?P<m>0?[1-9]|1[0-2])/(?P<d>0?[1-9]|[12]\d|3[01])(?![\d/.,]*\d|[a-z\"″])",
            self.slash_date,
        )
        yield r"(?P<m>0[1-9]|1[0-2])/(?P<y>(?:19|20)\d\d)(?![\d/])", self.month_of_year
        yield r"(?P<n>\d{1,4})/(?P<d>\d{1,3})(?:rds|ths|nds)(?!\w)", self.plural_fraction
        yield r"(?P<n>\d{3,10})(?:-(?P<more>\d{4}))?(?![\d.,:/% -]*\d)(?!\w)", self.code_of
        yield r"1-(?P<n>8)(?P<rest>00|33|44|55|66|77|88)-(?=[A-Z])", self.toll_free
        yield r"(?P<h>\d{1,2})\s?h(?:(?P<m>[0-5]\d)m?|\s(?P<n>[0-5]?\d)m)(?!\w)", self.hours
        yield r"(?P<m>\d{1,2})m(?P<s>[0-5]?\d)s(?!\w)", self.minutes_and_seconds
        yield r"(?P<m>[0-5]?\d)m(?!\w)", self.minutes_after
        yield r"(?P<c>7|10|14|21|4[38])(?P<t>[1-9]\d)p(?!\w)", "{c} {t} p"
        yield r"(?P<n>\d{1,3})(?:\.(?P<d>\d{1,2}))?(?P<s>M|[mb]n)(?![\w/])", self.large_count
        yield r"(?P<n>\d{1,3})(?:\.(?P<d>\d{1,2}))?m(?=\s(?P<noun>[^\W\d_]+))", self.millions
        yield r"(?P<n>\d+)in(?!\w)\.?", self.inches
        feet_before = ("ft", "ft.", "feet", "foot")
        yield (
            r"(?P<n>\d{1,2})\sin(?!\w)\.?",
            lambda match, before: self.inches(match, "by") if before in feet_before else None,
        )
        yield (
            r"(?P<a>[45])0(?P<b>[13])\((?P<k>[kbc])\)",
            lambda match, _: (
                f"{self.cardinal(int(match['a']))} oh {self.cardinal(int(match['b']))} {match['k']}"
            ),
        )
        yield (
            r"(?P<n>\d+)(?:\.(?P<d>\d+)|/(?P<b>\d{1,2}))?(?:\"|″)(?!\w)(?P<x>\sx\s(?=\d))?",
            self.inches,
        )
        yield r"\b(?P<s>sq|cu|fl)\.?(?!\w)", self.power_before
        yield r"\b(?P<u>ft|in|mi|yd|km|m|cm|oz)\.?(?!\w)", self.unit_after_power
        times = "second|minute|hour|day|week|month|year|person"
        yield rf"/(?=(?:{times})(?!\w))", self.per_time
        yield r"(?<=[A-G])#(?!\w)", " sharp"
        yield r"#(?=[^\W\d_])(?![A-Z]{1,4}-?\d)", "hashtag "
        files = "|".join(_FILES.split())
        yield (
            rf"(?:[A-Za-z0-9][\w-]*)?(?:\.(?i:{files}))+(?!\w|\.\w)|(?:~|\.\.?)?(?:/[\w.-]+){{2,}}/?"
            r"|~/[\w./-]+|[A-Z]:\\[\w.\\-]+",
            self.file,
        )
        yield r"(?P<ft>\d)['′’](?P<in>1[01]|\d)(?:\"|″|'')?(?!\w)", "{ft} foot {in}"
        yield r"(?P<ft>\d)['′’](?!\w)", "{ft} foot"
        yield r"(?:[A-Z]\.){2,}(?!\w)", self.initials
        yield r"\^0{0,2}2(?!\d)", " squared"
        yield r"\^0{0,2}3(?!\d)", " cubed"
        yield r"\^(?P<n>\d{1,3})(?!\d)", " to the power of {n}"
        yield r"\^[-−](?P<n>\d{1,3})(?!\d)", " to the power of minus {n}"
        yield (
            r"(?P<n>\d)(?:\.(?P<d>\d{1,9}))?[eE](?P<s>[-+−])?(?P<p>\d{1,3})(?!\w)",
            self.scientific,
        )
        yield r"(?i)v(?=\d+\.\d)", "version"
        yield r"(?P<n>\d{1,3})k(?!\w)", "{n} thousand"
        yield r"(?P<n>\d{1,3})\.(?P<d>\d)k(?!\w)", "{n} point {d} thousand"

    def fraction(self, top: int, bottom: int) -> str:
        if (top, bottom) in _NAMED_FRACTIONS:
            return _NAMED_FRACTIONS[top, bottom]
        if bottom < 2 or (bottom > _MAX_PARTS and bottom != 100):
            return f"{self.cardinal(top)} over {self.cardinal(bottom)}"
        one, many = _HALVES.get(bottom) or (self.ordinal(bottom), self.ordinal(bottom) + "s")
        return f"{self.cardinal(top)} {one if top == 1 else many}"

    # ---- dates and times -------------------------------------------------------------------------

    def year(self, number: int) -> str:
        return self.say(number, "year").replace("oh-", "oh ").replace(" and ", " ")

    def day(self, number: int, before: str) -> str:
        return self.ordinal(number)

    def gender_after(self, number: str, noun: str, before: str) -> str:
        """Return "millions" for the "m" of "1.3m people", which counts what the noun names."""
        is_counted = noun in _COUNTED.split() or (
            noun.endswith("s") and noun not in _MEASURED.split()
        )
        is_million = re.fullmatch(r"\d{1,3}(?:\.\d{1,2})?m", number) and not noun.endswith("ss")
        return "millions" if is_million and is_counted else ""

    def millions(self, match: re.Match[str], before: str) -> str | None:
        """Return the words of "1.3m" before a noun that is counted."""
        if not self.gender_after(match[0], match["noun"], before):
            return None
        return f"{self.number(match['n'], match['d'] or '')} million"

    def british_date(self, match: re.Match[str], before: str) -> str:
        """Return the words of a date such as "5 March 2026"."""
        month = self._month_of(match)
        words = f"{self.ordinal(int(match['d']))} of {month}"
        if before.lower() != "the":
            words = f"the {words}"
        year = f" {self.year(int(match['y']))}" if match["y"] else ""
        return words + year + self.kept_point(match)

    def day_of_month(self, match: re.Match[str], before: str) -> str | None:
        """Return the words of a day such as "5, 2026" after the name of a month."""
        name = before.strip("*_(\"'.")
        is_month = name.lower() in self.month_forms and name not in ("may", "march", "mar")
        last = match["to"] or match["d"]
        if not is_month or not 1 <= int(match["d"]) <= int(last) <= 31:
            return None
        words = self.ordinal(int(match["d"]))
        if match["to"]:
            words += f" to {self.ordinal(int(last))}"
        return words + (f", {self.year(int(match['y']))}" if match["y"] else "")

    def _month_of(self, match: re.Match[str]) -> str:
        return self.month(self.month_forms[match["m"].lower().rstrip(".")])

    def slash_date(self, match: re.Match[str], before: str) -> str | None:
        """Return "12/25" as a date if the day is above 20 or a word such as "on" precedes it."""
        month, day = int(match["m"]), int(match["d"])
        is_inside = match.string[match.start() - 1 : match.start()] in ("/", ".", ",", "$")
        if is_inside or not (day > _MAX_PARTS or before.lower().strip(",.(") in _DUE):
            return None
        return self.date(day, month, None, before)

    def month_of_year(self, match: re.Match[str], before: str) -> str:
        """Return the words of a month such as "03/2024"."""
        return f"{self.month(int(match['m']))} {self.year(int(match['y']))}"

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
        return words + self.kept_point(match)

    def hours(self, match: re.Match[str], before: str) -> str | None:
        """Return the words of a length of time such as "1h30" or "2h 15m"."""
        hours = self.count(match["h"], "", self.units["h"])
        if match["m"] and match[0][-1] != "m":
            return f"{hours} {self._minutes(int(match['m']))}"
        minutes = str(int(match["m"] or match["n"]))
        return f"{hours} {self.count(minutes, '', self.units['min'])}"

    def minutes_and_seconds(self, match: re.Match[str], before: str) -> str:
        """Return the words of a length of time such as "1m30s"."""
        groups = (match["m"], self.units["min"]), (match["s"], self.units["s"])
        return " ".join(self.count(str(int(number)), "", unit) for number, unit in groups)

    def minutes_after(self, match: re.Match[str], before: str) -> str | None:
        """Return the words of the "15m" of "2h 15m"; None if no hours come before it."""
        if not re.fullmatch(r"\d{1,2}h(?:rs?)?", before):
            return None
        return self.count(str(int(match["m"])), "", self.units["min"])

    def _minutes(self, minute: int) -> str:
        return self.cardinal(minute) if minute > 9 else f"oh {self.cardinal(minute)}"

    # ---- other numbers ---------------------------------------------------------------------------

    def roman_after_name(self, match: re.Match[str], before: str) -> str | None:
        """Return the words of a Roman numeral after a name or a title, as in "Chapter IV"."""
        if not before[:1].isupper() or before.isupper() or not before.isalpha():
            return None
        is_of_a_ruler = before.lower() in _REGNAL.split()
        is_numbered = before.lower() in _NUMBERED.split()
        if len(match[0]) == 1 and not (is_numbered or (is_of_a_ruler and match[0] == "V")):
            return None  # "Charles I think", "Malcolm X"
        number = roman_number(match[0])
        return f"the {self.ordinal(number)}" if is_of_a_ruler else self.cardinal(number)

    def plural_number(self, match: re.Match[str], before: str) -> str | None:
        """Return the words of "747s" or the "3s" in "MP3s"; None for seconds, as in "wait 5s"."""
        digits, last = match["n"], match.string[match.start() - 1 : match.start()]
        is_name = before[:1].isupper() and before.isalpha() and len(digits) > 2
        is_many = before.lower() in _BEFORE_PLURALS.split() or before.isdecimal()
        is_bit = digits in ("0", "1") and before.lower() in ("", "and", "or", "all")
        if not (
            last.isalpha() or (last == "-" and before[:1].isalpha()) or is_name or is_many or is_bit
        ):
            return None
        words = self.cardinal(int(digits))
        if len(digits) == 3:
            tens = int(digits[1:])
            rest = f"oh {self.cardinal(tens)}" if tens < 10 else self.cardinal(tens)
            words = f"{self.cardinal(int(digits[0]))} {rest if tens else 'hundred'}"
        return (
            words[:-1] + "ies" if words[-1] == "y" else words + ("es" if words[-1] == "x" else "s")
        )

    def verses(self, match: re.Match[str], before: str) -> str | None:
        """Return the words of verses such as "23:1-6"; None for times such as "9:30-10"."""
        if len(match["b"]) == 2 and not before[:1].isupper():
            return None
        first, *others = (self.cardinal(int(match[each])) for each in "abc")
        return f"{first}, {' to '.join(others)}"

    def saint(self, match: re.Match[str], before: str) -> str | None:
        """Return "saint" before a name, and "street" after one."""
        following = re.match(r"\s+[\"'“]?([A-Z]\w*)", match.string[match.end() :])
        is_saint = following is not None and following[1] in _SAINTS.split()
        return _title(match, before, "saint", "street", is_saint, self.starters)

    def initials(self, match: re.Match[str], before: str) -> str:
        """Return the letters of "U.S."; its point ends a sentence before a word that begins one."""
        following = first_word(match.string[match.end() :])
        point = "." if following in self.starters else ""
        return " ".join(match[0].replace(".", "")) + point

    def doctor(self, match: re.Match[str], before: str) -> str | None:
        """Return "doctor" before a name, and "drive" after the name of a street."""
        return _title(match, before, "doctor", "drive", True, self.starters)

    def plural_fraction(self, match: re.Match[str], before: str) -> str | None:
        """Return the words of a fraction such as "2/3rds"."""
        return self.fraction(int(match["n"]), int(match["d"]))

    def code_of(self, match: re.Match[str], before: str) -> str | None:
        """Return digits one by one after a word such as "PIN", or after a state ("NY 10001")."""
        name, digits = before.strip("(:.#,*_"), match["n"]
        is_zip = len(name) == 2 and name.isupper() and name.isalpha() and len(digits) == 5
        is_call = name.lower() in ("call", "dial") and len(digits) == 3
        if name.lower() not in _CODED.split() and not is_zip and not is_call:
            return None
        more = f", {self.spell(match['more'])}" if match["more"] else ""
        return self.spell(digits) + more

    def toll_free(self, match: re.Match[str], before: str) -> str:
        """Return the words for the digits of "1-800-FLOWERS"."""
        rest = int(match["rest"])
        return "one eight " + (self.cardinal(rest) if rest else "hundred") + " "

    def scientific(self, match: re.Match[str], before: str) -> str:
        """Return the words of a number such as "1.5e-3"."""
        minus = "" if match["s"] in (None, "+") else "minus "
        power = f"times ten to the power of {minus}{self.cardinal(int(match['p']))}"
        return f"{self.number(match['n'], match['d'] or '')} {power}"

    def large_count(self, match: re.Match[str], before: str) -> str:
        """Return the words of a number such as "5M" or "2bn"."""
        scale = "billion" if match["s"] == "bn" else "million"
        return f"{self.number(match['n'], match['d'] or '')} {scale}"

    def inches(self, match: re.Match[str], before: str) -> str | None:
        """Return the words of a length in inches; None if its mark may end a quotation."""
        groups = match.groupdict()
        is_after_article = before.lower() in (*self.articles, "the", "x", "by")
        is_quoted = match.string[match.start() - 1 : match.start()] == '"'
        is_sure = is_after_article or groups.get("b") or groups.get("x")
        if '"' in match[0] and (is_quoted or not is_sure):
            return None
        noun = self.noun_after(self.units["in."], before)
        if bottom := groups.get("b"):
            return f"{self.fraction(int(match['n']), int(bottom))} {noun.one}"
        words = self.count(match["n"], groups.get("d") or "", noun)
        return words + (" by " if groups.get("x") else self.kept_point(match))

    def per_time(self, match: re.Match[str], before: str) -> str | None:
        """Return " per " for the "/" of "7 days/week", and None for that in "the month/year"."""
        is_count = before[-1:] == "s" or before.lower() in ("once", "twice")
        is_unit = before.lstrip("0123456789.,") in self.units
        return " per " if is_count or is_unit or before[-1:].isdigit() else None

    def power_before(self, match: re.Match[str], before: str) -> str | None:
        """Return the word for the "sq" of "500 sq ft"."""
        is_sure = match["s"] == "sq" or before[-1:].isdigit()
        return _PER_SQUARE[match["s"]] if is_sure else None

    def unit_after_power(self, match: re.Match[str], before: str) -> str | None:
        """Return the word for the "ft" of "500 sq ft"."""
        if before.rstrip(".") not in _PER_SQUARE:
            return None
        unit = self.units["in." if match["u"] == "in" else match["u"]]
        return unit.many + self.kept_point(match)

    def file(self, match: re.Match[str], before: str) -> str | None:
        """Return the words of a file's name or a path, with the names of its marks."""
        if match.string[match.start() - 1 : match.start()].isalnum() and match[0][0] in ".~/":
            return None
        text = match[0].rstrip(".")
        parts = re.findall(r"[^\W\d_]+|\d+|.", text)
        words = [
            self.number(part) if part.isdecimal() else self.web.get(part, part) for part in parts
        ]
        return " ".join(words) + match[0][len(text) :]


def _title(
    match: re.Match[str],
    before: str,
    title: str,
    street: str,
    is_likely: bool,
    starters: frozenset[str],
) -> str | None:
    """Return `title` before a name and `street` after one; None if neither is certain.

    Args:
        is_likely: whether a name after the abbreviation is that of a person with the title.
        starters: words that begin a sentence, so they are no name.
    """
    rest = match.string[match.end() :]
    following = re.match(rf"\s+[\"'“]?([A-Z{RESPELT}][\w{RESPELT}]*)", rest)
    is_starter = following is not None and following[1] in starters
    is_name_next = following is not None and not is_starter and following[1] not in _AFTER_STREETS
    is_numbered = re.fullmatch(r"\d+(?:st|nd|rd|th)", before) is not None
    is_name = before[:1].isupper() and before[-1:].isalpha() and before not in starters
    is_name_before = is_name or is_numbered or before[-1:] == RESPELT
    if is_name_next and not is_numbered and (is_likely or not is_name_before):
        return title
    if not is_name_before:
        return title
    ends = match[0].endswith(".") and (not rest.strip(CLOSING + " ") or is_starter or is_name_next)
    return street + ("." if ends else "")
