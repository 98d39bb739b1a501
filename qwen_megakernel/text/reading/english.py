"""English: a.m. and p.m., decades, dates in both orders, "St." and "Dr.", "Henry VIII", feet."""

import re

from qwen_megakernel.text.reading.language import Language
from qwen_megakernel.text.reading.spoken import RESPELT
from qwen_megakernel.text.reading.surroundings import CLOSING, TRAILING, Found, first_word
from qwen_megakernel.text.reading.tables import words

_HALVES = {2: ("half", "halves"), 4: ("quarter", "quarters")}
_BEFORE_PLURALS = words("""the these those of in by two three four five six seven eight nine ten
    many some several few all both your my our their his her""")
_AFTER_STREETS = words("NE NW SE SW N S E W Suite Apt Unit")


class English(Language):
    # Nouns before which "3m" is three million; words that end in "s" but leave it three metres;
    # names behind "St."; endings of files.
    counted_nouns = behind_metres = saints = files = words("")

    RULES = r"""
    (?i){HALF_DAY}a(?:\.m\.?|m|(?<=:\d\da)|(?=[-–][\d:]{1,5}p))(?!\w) => {h}{m:minutes} a m{end}
    (?i){HALF_DAY}p(?:\.m\.?|m)(?!\w) => {h}{m:minutes} p m{end}
    (?<=\.m\.)\s?[-–—]\s?(?=\d) => ~to~
    in|of|the >> ['’](?P<a>\d\d)[-–/]['’]?(?P<b>\d\d)(?![\w/]) => {a:minutes} to {b:minutes}
    in|of|since|by|until|from|to|the|summer|winter|spring|fall|class|[qh][1-4]
        |fy|(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)\w*\.?
        >> ['’](?!00)(?P<n>\d\d)(?!['’]?\w) => {n:minutes}
    (?:[=<>]|\b(?:wait(?:s|ed)?|takes|took|within|timeout|lasts|delay|pause|sleep)\W{1,2})$
        >> (?P<t>[1-9]0)s(?!\w) => {t:counted:s}
    after|every|for|about|only|another|under|in >> (?P<t>[1-6]0)s(?!\w) => {t:counted:s}
    ['’]?(?P<c>1\d|20)?(?P<t>[1-9]0|(?<=1[1-9])00)['’]?s\b => {c} {t:decade}
    (?P<m>{SHORT_MONTHS})(?=\s\d) => .month
    (?P<d>\d{1,2})(?:{ORDINAL_MARKS})?(?:[-–](?P<to>\d{1,2})(?:{ORDINAL_MARKS})?)?(?:,?\s(?P<y>\d{4}))?
        (?![\d:%]|\.\d|,\d)(?![^\W_]) => .day_of_month
    2000['’]?s(?!\w) => two thousands
    (?P<n>\d{1,4})['’]?s(?!\w) => .plural
    (?P<n>\d{1,3})\s?pt(?=\s(?i:font|type|text|size|bold|arial|helvetica|times)) => {n} point
    (?P<title>St|Dr)\b\.?(?!\w) => .title
    (?!the$).* >> Sun\. => Sunday
    press|dial|hit|enter|or|and|the|\d+ >> #(?![\w#]) => pound
    part|tracking|order|invoice|serial|item|ac(?:count|ct\.?)|ref\.?|\w+['’]s|the|room|ranked|bus|gate
        |flight|line|platform|policy|track|tax|table|phone|case|ticket|suite|unit|model|routing|member
        |booking|id|apt\.?|lot|page|seat|card|fax|claim >> (?:no\.(?=\s\d)|#(?!\w)) => number
    (?P<what>[bd])\.(?=\s(?:(?:\d{1,2}\s)?(?i:{MONTH})|(?:1\d|20)\d\d(?!\w))) => .life
    in|since|year >> (?P<c>10)(?!24)(?P<t>[1-9]\d)(?![:.,/-]?\d|[\s-]?[^\W\d_]|\s?%) => {c} {t}
    (?P<n>20|50)[-/](?P=n)(?![\w/-]) => {n} {n}
    9/11(?![\d/]) => nine eleven
    \A(?!.*(?i:divi|multi|crea|redu|cut|gr[eo]w|rose|r[ai]is|f[ae]ll|drop|lower|scal|shr|off)
        [^.;]*\bby\s$).*\b(?i:(?<!\d\s)by|until|till|before|after|since)\s$
        >> {MONTH_AND_DAY} => .date
    (?i:from|between)\s$ >> (?={LATE}){MONTH_AND_DAY} => .date
    (?={LATE}[-–]\d\d?/){MONTH_AND_DAY} => .date
    (?:(?:{LATE}|/2\d|/3[01]) ?(?:to|th\w+|[-–])|between {LATE} and) ?$ >> {MONTH_AND_DAY} => .date
    (?P<n>\d\d?)k(?=\s(?:race|run|walk|course)s?(?!\w)) => {n} k
    \b(?:ran|runs?|running|jog\w*|walk\w*|rac\w+|finish\w*|train\w*\sfor)\s\w+\s$
        >> (?P<n>\d\d?)k(?!\w) => {n} k
    \$(?P<x>)(?=[\d,.]+\s[Pp]esos) => {x}
    M[-–]F(?!\w) => Monday to Friday
    (?:(?<=\da[-–])|(?=\d\d?:\d\dp)){HALF_DAY}p(?!\w) => {h}{m:minutes} p m
    .*\d(?:st|nd|rd|th) >> fl\.?(?!\w) => floor{end}
    at|to|is|temp:? >> (?P<w>\d{2,3})(?:\.(?P<d>\d)|(?<=\d{3}))F(?!\w) => {num} degrees Fahrenheit
    24[/x]7/365(?![\d/]) => twenty-four seven three sixty-five
    [qQ](?=\d{1,2}(?:-\d{1,2})?h(?!\w)) => every~
    up|down|by|rose|fell|gained|lost|another|cut|raised >> (?P<n>\d{1,4})\s?bps(?!\w)
        => {n} basis points
    (?P<w>\d{1,3})\.(?P<d>\d{1,2})\spp(?!\w) => {num} percentage points
    (?P<n>\d{1,5})\s(?P<d>[NSEW])(?:\.(?=\s[A-Z0-9])(?!\s(?:{STARTERS})(?!\w))
        |(?=\s\d{1,3}(?:st|nd|rd|th)(?!\w))) => {n} {d:compass}
    hwy\.?|highway|interstate|route|rt\. >> (?P<n>\d{1,4})\s(?P<d>[NSEW])(?!\w) => {n} {d:compass}
    (?<=\d)\s?[-–]\s?(?=(?:{SHORT_MONTHS})\.?(?!\w)) => ~to~
    (?<=\d[-–])(?P<m>{SHORT_MONTHS})\.?(?!\w) => .month
    (?P<a>[1-9])x(?=\d{1,2}s(?!\w)) => {a} by~
    (?P<a>Mon|Sat|Sun)(?=\s\d{1,2}(?:[-–:/]|\s?[ap]|(?:{ORDINAL_MARKS})?\s(?i:{MONTH}))) => .days
    per >> (?=\w*[A-Z]|k[gm]|mg|ml|cm)(?P<per>{UNITS})(?!\w) => .one
    b/w(?=\s(?:\d|the|you|us|them|my|our|two|both)\b) => between
    exp[.:]{0,2}|expiry:?|thru >> (?P<m>0[1-9]|1[0-2])/(?P<y>\d\d)(?![\d/]) => {m:spell} {y}
    an?|got|grade|of|with|from|to|is >> (?P<g>[A-D])-(?![\w-]|\s(?:and|or|to)\s|,) => {g} minus
    (?P<n>\d{1,4})/(?P<d>\d{1,3})(?:rds|ths|nds)(?!\w) => .fraction
    (?i:\b(?:call|dial|text))\s$ >> (?P<n>\d{3}|\d{5,6})(?<!00)(?![\d.,:/% -]*\d)(?!\w) => {n:spell}
    \b[A-Z]{2}[,.:]?\s$ >> (?P<n>\d{5})(?![\d.,:/% -]*\d)(?!\w) => {n:spell}
    1-(?P<n>8(?:00|33|44|55|66|77|88))-(?=[A-Z]) => one {n:year}~
    (?P<c>7|10|14|21|4[38])(?P<t>[1-9]\d)p(?!\w) => {c} {t} p
    {SIGN}(?P<w>\d{1,3})(?:\.(?P<d>\d{1,2}))?(?P<scale>M|mn|bn|k|(?<=\.\d)[BT])
        (?![\w€£¥$]|/(?!{PER_TIME})) => .scaled
    (?P<w>\d{1,3})(?:\.(?P<d>\d{1,2}))?m(?=\s(?P<noun>[^\W\d_]+)) => .millions
    (?P<w>\d+)(?:\.(?P<d>\d+))?in(?!\w)\.? => .inches
    (?P<m>\d{1,3})m(?=\sago(?!\w)) => {m:counted:min}
    (?i)\b(?:waits?|timeout|sleep|delay|pause|lasts|\d{1,2}h(?:rs?)?|eta:?
        |(?:back|there|here|ready|done|home|due|star\w+|end\w*|begin\w*|leav\w+|expir\w+)\sin)\s$
        >> (?P<m>\d{1,3})m(?!\w) => {m:counted:min}
    ft\.?|feet|foot >> (?P<w>\d{1,2})\sin(?!\w)\.? => .inches
    (?P<a>[45])0(?P<b>[13])\((?P<k>[kbc])\) => {a} oh {b} {k}
    (?:(?P<whole>\d+)\s(?=\d+/))?(?P<w>\d+)(?:\.(?P<d>\d+)|/(?P<b>\d{1,2}))?(?:\"|″)
        (?:(?P<x>\s?[x×–-]\s?(?=\d))|(?!\w)) => .inches
    .*\d >> \bcu\.?(?!\w) => cubic
    .*\d >> \bfl\.?(?!\w) => fluid
    (?:sq|cu|fl)\.? >> \bin(?!\w)\.? => inches{end}
    (?:sq|cu|fl)\.? >> \b(?P<u>ft|mi|yd|km|m|cm|oz)(?!\w)\.? => {u:units}{end}
    (?i:.*[s\d]|once|twice|[\d.,]*(?:{UNITS})(?:/\w+)?|.*\d(?:k|M|bn)) >> /(?={PER_TIME}) => ~per~
    (?<=[A-G])#(?!\w) => ~sharp
    #(?=[^\W\d_])(?!{HEX}|[A-Z]{1,5}-\d|[A-Z]{1,4}(?!20\d\d(?!\d))\d) => hashtag~
    (?<![^\W_])(?:(?:[A-Za-z0-9][\w-]*)?(?:\.(?i:{FILES}))+(?!\w|\.\w)
        |(?:~|\.\.?)?(?:/[\w.-]+){2,}/?|~/[\w./-]+|[A-Z]:\\[\w.\\-]+) => .web
    (?P<sizes>{FEET}(?:\s?[x×]\s?{FEET})+)(?!\w) => .feet
    (?P<ft>\d{2,3})['′]\s?(?P<in>1[01]|\d)(?:\"|″|'')(?!\w) => {ft} feet {in}
    {ARTICLES} >> (?P<ft>\d{2,3})['′](?!\w) => {ft} foot
    (?P<ft>\d)['′’](?:(?:\s(?=\d\d?[\"″']))?(?P<in>1[01]|\d)(?:\"|″|'')?)?(?!\w) => {ft} foot {in}
    (?:[A-Z]\.){2,}(?!\w) => .initials
    \^0{0,2}2(?!\d) => ~squared
    \^0{0,2}3(?!\d) => ~cubed
    (?P<w>\d)(?:\.(?P<d>\d{1,9}))?[eE](?=[-−+]?\d{1,3}(?!\w)) => {num} times ten
    (?<=\d[eE])\+?(?P<minus>[-−]?)0*(?P<n>\d{1,3})(?!\w) => .power
    runways?|or|and >> (?P<n>[0-3]?\d)(?P<side>[LRC])(?!\w) => {n} {side}
    (?P<n>\d{1,3})\s?y/?o(?!\w) => {n} year old
    """

    no_measure = r"(?![\d/]|[.,]\d|\s?(?:{UNITS}|%|of|full|way|hours?|miles?|inch|year)(?!\w))"
    month_and_day = r"(?P<m>1[0-2]|0?[1-9])/(?P<d>[12]\d|3[01]|0?[1-9]){NO_MEASURE}"
    # Of a month whose number is larger, so that it is hardly a fraction.
    late = r"(?:1[0-2]/[1-9]|12/1[01]|9/[1-8]|8/[1-7]|7/[1-6]|6/[1-5]|5/[1-4]|4/[1-3])(?!\d)"
    per_time = r"(?:second|minute|hour|day|week|month|year|person)(?!\w)"
    short_months = words("Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec")
    feet = r"\d{1,3}['′](?:\s?(?:1[01]|\d)(?:\"|″|''))?"
    half_day = r"(?P<h>1[0-2]|0?[1-9])(?:[:.]{MINUTE})?\s?"

    def fraction(self, top: int, bottom: int) -> str:
        if bottom < 2 or (bottom > self.max_named_part and bottom != 100):
            return f"{self.cardinal(top)} over {self.cardinal(bottom)}"
        one, many = _HALVES.get(bottom) or (self.ordinal(bottom), self.ordinal(bottom) + "s")
        return f"{self.cardinal(top)} {one if top == 1 else many}"

    # ---- dates and times -------------------------------------------------------------------------

    def year(self, number: int) -> str:
        return self.say(number, "year").replace("oh-", "oh ").replace(" and ", " ")

    def day(self, number: int, before: str) -> str:
        return self.ordinal(number)

    def read_date(self, found: Found) -> str | None:
        """Return the words of a date; a day before a month's name is "the fifth of March"."""
        said = super().read_date(found)
        if said is None or found["m"].isdigit():
            return said
        the = "" if found.word == "the" else "the "
        year = f" {self.year(int(found['y']))}" if found["y"] else ""
        day, month = self.ordinal(int(found["d"])), self.read_month(found)
        return f"{the}{day} of {month}{year}{self.kept_point(found)}"

    def read_day_of_month(self, found: Found) -> str | None:
        """Return the words of a day such as "5, 2026" after the name of a month."""
        name = re.split("[-–]", found.before)[-1].strip("*_(\"'.")
        first, last = int(found["d"]), int(found["to"] or 0)
        is_month = name.lower() in self.month_forms and name not in ("may", "march", "mar")
        if not is_month or not 1 <= first <= (last or first) <= 31:
            return None
        said = self.ordinal(first) + (f" to {self.ordinal(last)}" if last else "")
        return said + (f", {self.year(int(found['y']))}" if found["y"] else "")

    def decade(self, tens: int) -> str:
        """Return the plural of a number of tens, such as "nineties" for 90; 0 is hundreds."""
        return {0: "hundreds", 10: "tens"}.get(tens) or self.say(tens)[:-1] + "ies"

    def time(self, hour: int, minute: int, second: int | None) -> str:
        words = self.cardinal(hour)
        if second is not None:
            minutes = self.minutes(minute) or " oh zero"
            return f"{words}{minutes} and {self.counted(second, 's')}"
        if minute:
            return words + self.minutes(minute)
        return f"{words} o'clock" if 1 <= hour <= 12 else f"{words} hundred"

    def minutes(self, minute: int) -> str:
        """Return the minutes of a time with a space before them; "" on the hour."""
        oh = " oh" if minute < 10 else ""
        return f"{oh} {self.cardinal(minute)}" if minute else ""

    # ---- other numbers ---------------------------------------------------------------------------

    def gender_after(self, number: str, noun: str, before: str) -> str:
        """Return "millions" for the "m" of "1.3m people", which counts what the noun names."""
        is_counted = noun in self.counted_nouns or (
            noun.endswith("s") and noun not in self.behind_metres
        )
        is_million = re.fullmatch(r"\d{1,3}(?:\.\d{1,2})?m", number) and not noun.endswith("ss")
        return "millions" if is_million and is_counted else ""

    def read_millions(self, found: Found) -> str | None:
        """Return the words of "1.3m" before a noun that is counted."""
        if not self.gender_after(found.text, found["noun"], ""):
            return None
        return f"{self.number(found['w'], found['d'])} million"

    def roman(self, number: int, found: Found, following: str) -> str | None:
        """Return the words of a Roman numeral after a name or a title, as in "Chapter IV"."""
        before, word = self.numbered_by(found), self.numbering(found).rstrip(".")
        is_name = before[:1].isupper() and before[:-1].isalpha() and not before.isupper()
        if not is_name or not {*found["r"]} <= {*"IVXL"}:
            return None
        is_ruler, is_numbered = word in self.rulers, word in self.numbered
        if len(found["r"]) == 1 and not (is_numbered or (is_ruler and found["r"] == "V")):
            return None  # "Charles I think", "Malcolm X"
        return f"the {self.ordinal(number)}" if is_ruler else self.cardinal(number)

    def read_plural(self, found: Found) -> str | None:
        """Return the words of "747s" or the "3s" in "MP3s"; None for seconds, as in "wait 5s"."""
        digits, before, last = found["n"], found.before, found.last
        is_name = before[:1].isupper() and before.isalpha() and len(digits) > 2
        is_many = found.word in _BEFORE_PLURALS or before.isdecimal()
        is_bit = digits in ("0", "1") and found.word in ("", "and", "or", "all")
        is_inside = last.isalpha() or (last == "-" and before[:1].isalpha())
        if not (is_inside or is_name or is_many or is_bit):
            return None
        said = self.cardinal(int(digits))
        if len(digits) == 3:
            tens = int(digits[1:])
            said = f"{self.cardinal(int(digits[0]))}{self.minutes(tens) or ' hundred'}"
        if said[-1] == "y":
            return said[:-1] + "ies"
        return said + ("es" if said[-1] == "x" else "s")

    def read_one(self, found: Found) -> str:
        return self.units[found["per"]].one

    def read_inches(self, found: Found) -> str | None:
        """Return the words of a length in inches; None if its mark may end a quotation."""
        is_after_article = found.word in (*self.articles, "the", "x", "by")
        is_last = '"' not in found.rest and not found.rest.strip(TRAILING)
        is_sure = is_after_article or found["b"] or found["x"] or is_last
        if '"' in found.text and (found.last == '"' or not is_sure):
            return None
        noun = self.noun_after(self.units["in."], found.before)
        joints = {"": self.kept_point(found), "-": " to ", "–": " to "}
        joint = joints.get(found["x"].strip(), " by ")
        if found["whole"]:
            return self.mixed(found["whole"], int(found["w"]), int(found["b"]), noun) + joint
        if found["b"]:
            return f"{self.fraction(int(found['w']), int(found['b']))} {noun.one}{joint}"
        words = self.count(found["w"], found["d"], noun)
        return words + joint

    def read_feet(self, found: Found) -> str:
        """Return the words of dimensions such as "12' x 15'6\"", in feet and inches."""
        said = []
        for side in re.split("[x×]", found["sizes"]):
            feet, *inches = map(int, re.findall(r"\d+", side))
            lengths = [self.counted(feet, "ft"), *(self.counted(each, "in.") for each in inches)]
            said.append(" ".join(lengths))
        return " by ".join(said)

    # ---- words and names -------------------------------------------------------------------------

    def read_initials(self, found: Found) -> str:
        """Return the letters of "U.S."; its point ends a sentence before a word that begins one."""
        point = "." if first_word(found.rest) in self.starters else ""
        return " ".join(found.text.replace(".", "")) + point

    def read_life(self, found: Found) -> str | None:
        """Return the "born" or "died" of a name or a bracket, as in "Ada Lovelace (b. 1815)"."""
        is_year = found.word.strip(",.").isdecimal()
        is_life = found.before[:1].isupper() or found.last == "("
        is_life |= is_year and found["what"] == "d"
        if not is_life and not re.match(r"\s[^()]*\)", found.rest):
            return None
        return "born" if found["what"] == "b" else "died"

    def read_title(self, found: Found) -> str:
        """Return "saint" or "doctor" before a name, and "street" or "drive" after one."""
        before, starters, is_saint = found.before, self.starters, found["title"] == "St"
        title, street = ("saint", "street") if is_saint else ("doctor", "drive")
        following = re.match(rf"\s+[\"'“]?([A-Z{RESPELT}][\w{RESPELT}]*)", found.rest)
        name = following[1] if following else ""
        is_name_next = bool(name) and name not in starters | _AFTER_STREETS
        is_numbered = re.fullmatch(r"\d+(?:st|nd|rd|th)", before) is not None
        is_name = before[:1].isupper() and before[-1:].isalpha() and before not in starters
        is_name_before = is_name or is_numbered or before[-1:] == RESPELT
        is_likely = is_name_next and (name in self.saints or not is_saint)
        if not is_name_before or (is_likely and not is_numbered):
            return title
        ends = not found.rest.strip(CLOSING + " ") or name in starters or is_name_next
        return street + ("." if ends and found.text.endswith(".") else "")
