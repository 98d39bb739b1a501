"""German: ordinals such as "5.", with the ending that the word before them requires ("am 5.")."""

import re

from qwen_megakernel.text.reading.cldr import Noun
from qwen_megakernel.text.reading.language import Language
from qwen_megakernel.text.reading.surroundings import Found, first_word
from qwen_megakernel.text.reading.tables import words

# Words before an ordinal, and the ending that the ordinal has after them.
_WEAK = words("am d. v. vom zum zur beim im dem den des bis ab ins spätestens")
ORDINAL_ARTICLES = dict.fromkeys(_WEAK, "n") | {"der": "", "die": "", "das": ""}
ORDINAL_STEMS = words("mein dein sein ihr unser euer ein kein dies jed eur")
_FEMININE = re.compile(
    r"(?:[^mp]a(?<!Sofa)|e|ung|heit|keit|[Zz]eit|schaft|tät|ion|ei|ik|ur|in|Zwiebel|Kartoffel|Wahl|Hand|Tür|Nacht|[aoy]sis|xis)$"
)
_NEUTER = re.compile(
    r"(?:chen|lein|um|ment|[Jj]ahr|Mal|Kind|Haus|[Kk]apitel|[Ss]piel|[Qq]uartal|[Ss]emester"
    r"|Buch|Bild|Tor|OG|[Gg]eschoss|Obergeschoss|Stockwerk|Drittel|Viertel|Kilo|[Gg]ramm|Pfund|Glas|Dutzend"
    r"|Brot|Prozent|Treffen|Gebot|Album|Lied|[Jj]ahrhunderts?)$"
)
_HALF = re.compile(r"(?P<article>eine?) halb(?P<ending>er|es|e|)(?!\w)")
# Articles before "1/2", and its ending behind them; other words, and the case that they ask for.
_HALVES = dict.fromkeys(("einen", "einem", "einer", "eines", "den", "dem", "des"), "en")
_HALVES |= dict.fromkeys(("eine", "die", "das", "der"), "e")
_BEFORE_NOMINATIVE = words("ist sind war waren bleibt und oder plus bis macht etwa ca")
_BEFORE_ACCUSATIVE = words("für um ohne durch gegen über")
_BEFORE_DATIVE = words("mit nach von aus bei seit zu vor in ab außer unter")
_ON_A_WEEKDAY = re.compile(
    r"\b(?:am|vom|zum|bis|ab|auf|von|seit)\s(?:[MDFS][a-z]\.?|\w+(?:tag|woch)),\s$|[†∗]\s$"
)
_BEFORE_DAY = words("am vom zum der die das dem den")  # may stand before the last word "4."
# What has a rank also at the beginning of a line, which is else an entry of a list.
_RANKED = words("""Platz Preis Rang Klasse Liga Bundesliga FC Advent Weltkrieg Stock Etage OG UG
    Quartal Halbjahr Halbzeit Runde Spieltag Tag Woche Monat Jahr Versuch Kapitel Teil Akt Band
    Auflage Etappe Obergeschoss Staffel Folge Semester Schritt Gang Mannschaft Hilfe Lesung""")
_BEHIND_RANK = words("wurde wird war ist ward kam")  # a list's entry begins with none
_BEGINS_LINE = re.compile(r"(?:\A|\n)(?:  +)?$")  # not behind a bullet, which leaves one space
_ONE = re.compile(r"ein(e?)(?= (?!bis|Uhr|mal)|$)")
_MASCULINE = re.compile(
    r"ein (?:\S*(?:[Mm]eter|[Ll]iter|löffel)|Tag|Monat|Euro|Dollar|Cent|Punkt|Grad)(?!\w)"
)
_PLURAL = re.compile(r"(meter|Meter|liter|Liter|Jahre|Monate|Tage|Punkte)(?=\.?$| pro )")
_QUEENS = ("Elisabeth", "Katharina", "Maria", "Margarethe", "Christina")


class German(Language):
    hours = r"(?:Uhr|h)(?!\w)"

    RULES = r"""
    {HOUR}\.{MINUTE}(?:\s{HOURS}|(?=\s?(?:bis|und|[-–])\s?\d\d?\.\d\d\s{HOURS})) => .time
    um|gegen >> {HOUR}\.{MINUTE}(?![\d:]|[.,]\d|\s?(?:%|[A-ZÄÖÜ]|{UNITS}|{CURRENCIES})) => .time
    {HOUR}\sUhr\b(?!\s\d) => .time
    (?P<h>\d{1,3}):{MINUTE}(?::(?P<s>[0-5]\d))?\s(?:Std|(?<=:\d\d:\d\d\s)h)(?!\w)\.?
        => {h:counted:h} {m:counted:min} {s:counted:s}{end}
    \b(?:führ|gew[ai]nn|sieg|verl[io]|unterl[ai]g|schl[äu]g|besieg)\w*\s(?:mit\s|(?:d..|gegen)\s|[A-ZÄÖÜ]\S*\s){0,3}$
        >> (?P<a>\d{1,3}):(?P<b>\d{1,3})(?![:\d]|\sUhr) => {a} zu {b}
    (?:fahr|reise|flug|lauf|spiel|warte|gar|back)zeit:?|\w*dauer:?
        >> (?P<h>\d{1,2}):{MINUTE}(?:\sh(?!\w))?(?![\d:]|\sUhr) => {h:counted:h} {m:counted:min}
    in|nach|aus >> (?P<n>\d{3}(?!00)\d\d)(?!\d|[.,:-]\d|\s?(?:{UNITS}|(?i:{FOLLOWERS})|€|%)(?!\w))
        => {n:spell}
    [a-zäöü]{1,3}-[a-z]{1,2} >> (?P<n>\d{1,4})(?!\d|[.,:-]\d) => {n:spell}
    (?<=[a-zäöüß])[*:](?=in(?:nen)?(?!\w)|r(?!\w)) => ~
    (?<=[a-zäöüß]-)/(?=[A-ZÄÖÜ]) => ~und~
    (?P<a>\d{1,3}):(?P<b>[0-5]\d)\sMin\b => {a} Minuten {b}
    (?i)(?P<days>\d{1,2}\.(?:(?:,|\s?[-–/]|\s(?:und|bis|oder|&)(?:\s(?:zum|dem))?)\s?\d{1,2}\.)+)
        (?:(?=\s?{MONTH})|(?P<m>0?[1-9]|1[0-2])\.(?P<y>\d{4}|\d\d)?(?!\d)) => .days_of_month
    (?P<a>\d{1,3})\.(?:\s?/\s?|\s(?P<link>und|oder|bis|bzw\.)\s)(?P<b>\d{1,3})\.(?=\s[^\W\d_])
        => .two_ordinals
    (?P<n>\d{1,3})\.\s?\+\s?(?P<m>\d{1,2})\.?(?=\s(?i:\w*minute|min\.)(?!\w)) => .extra_minute
    im|ab|seit|bis|ende|anfang|mitte >> (?i)(?P<m>{SHORT_MONTH})\. => .month
    am|vom|zum|bis|ab >> (?P<a>Mo|Di|Mi|Do|Fr|Sa|So)(?![\w.]) => .days
    (?!(?:{NUMBERED}|seiten?|nr\.|s\.)$).* >> 1\s?[-–]\s?(?=\d{1,2}(?:,\d+)?\s[A-ZÄÖÜ]) => ein bis~
    eine|die|der|note|mit >> (?P<n>[1-6])-(?![\w-]|\s(?:bis|und|oder|bzw|zu)|[,/]) => {n} {minus}
    (?:.*[-–])?(?:mo|di|mi|do|fr|sa|so|täglich|von)\.?
        >> (?P<a>\d{1,2})\s?[-–]\s?(?P<b>\d{1,2})\sh(?!\w) => {a} bis {b} Uhr
    (?<=\d\.)[-–](?=\d{1,2}\.(?:\d|\s?{MONTH}))
        |(?<=\.\d\d)\s?[-–]\s?(?=\d\d?\.\d\d\s{HOURS}) => ~bis~
    um|gegen|ab >> {HOUR}\s?h(?!\w) => .time
    \d+ >> f\.(?!\w) => folgende{end}
    kinder|jugendliche|personen >> u\.\s(?P<n>\d{1,2})\sJ\.? => unter {n} Jahren{end}
    u\.(?=\s(?:\d|[^\W\d_]{2})) => und
    \d+ >> St\.(?!\s[A-ZÄÖÜ]) => Stück{end}
    (?P<n>\d{1,2})\. => .day_of_list
    1/2(?=\s(?!(?:{UNITS})(?!\w))(?P<noun>[A-ZÄÖÜ][a-zäöüß]{2,})(?!\w)) => .half
    (?P<n>\d{1,3})\.(?=\s[^\W\d_])(?!(?i:\s{MONTH})\.) => .ordinal_with_point
    \d+[a-z]? >> S\.(?=\s\d) => Satz
    (?P<y>\d{1,4})(?P<e>ern?)(?!\w) => {y:year}{e}
    die >> (?P<n>11[0257])(?!\d|[.,:-]\d|\s?(?:[€%]|[^\W\d_]+[ens](?!\w))) => {n:spell}
    (?P<w>\d{1,3})(?:,(?P<d>\d+))?[\s-]?%-Punkte?n?(?!\w) => {num} Prozentpunkte
    (?P<n>\d{1,3})-%(?=-[A-ZÄÖÜ]) => {n}-Prozent
    (?P<w>\d{1,3})(?:,(?P<d>\d+))?\s?%-?(?P<e>ige?[mnrs]?)(?!\w) => {num}prozent{e}
    (?P<n>\d{1,2})\.(?=(?:[OU]G|Stock|Etage|FC|Platz|Klasse|Liga)(?!\w)) => .ordinal_with_point
    (?P<n>\d{1,4})-€(?=-[A-ZÄÖÜ]) => {n}-Euro
    (?P<n>[A-ZÄÖÜ]\w+)str\. => {n}straße{end}
    (?P<n>[A-ZÄÖÜ]\w+)nr\. => {n}nummer
    v\. >> (?P<n>\d{1,2}\.\d{1,2})(?![.\d]) => {n:version}
    s\.(?=\s(?:(?:S|Kap|Abb|Tab|Nr)\.|oben|unten|auch)) => siehe
    (?P<d>[0-3]?\d)\.(?P<m>0?[1-9]|1[0-2])\.(?!\d) => .date
    am|vom|zum >> (?P<d>[0-3]?\d)\.(?P<m>0?[1-9]|1[0-2])(?![\d.,:%]|\s?Uhr) => .date
    """

    def read_date(self, found: Found) -> str | None:
        if self.numbering(found) in self.numbered:
            return None  # "Abb. 2.1."
        found.before = _before_day(found)
        return super().read_date(found)

    def read_half(self, found: Found) -> str:
        return f"ein{_half(_gender_of(found['noun']))}"

    def ordinal(self, number: int) -> str:
        return self.day(number, "")

    def year(self, number: int) -> str:
        return self.say(number, "year")

    def day(self, number: int, before: str) -> str:
        """Return an ordinal with the ending that it has after the word `before`."""
        return self.say(number, "ordinal") + ORDINAL_ARTICLES.get(before.lower(), "r")

    def read_days_of_month(self, found: Found) -> str:
        """Return the words of days such as "24., 25. und 26." before the name of a month."""
        ending = "n" if found.before[:1].isdigit() else ORDINAL_ARTICLES.get(found.word, "r")
        said = re.sub(r"\s?[-–]\s?", f" {self.to} ", found["days"])
        said = re.sub(r"\s?/\s?", " ", said).replace("&", "und")
        say = lambda day: f"{self.say(int(day[1]), 'ordinal')}{ending}"  # noqa: E731
        said = re.sub(r"(\d+)\.", say, said)
        if not found["m"]:
            return said
        year = " " + self.year(int(("20" + found["y"])[-4:])) if found["y"] else ""
        return f"{said} {self.month(int(found['m']))}{year}{self.kept_point(found)}"

    def read_two_ordinals(self, found: Found) -> str:
        """Return the words of two ordinals before one noun, such as "im 2./3. Stock"."""
        noun, link = first_word(found.rest), found["link"]
        first, second = (self._before_noun(int(found[each]), found.before, noun) for each in "ab")
        return " ".join(filter(None, (first, self.abbreviations.get(link, link), second)))

    def read_extra_minute(self, found: Found) -> str:
        """Return the words of the minute of a match in "in der 90.+3. Minute"."""
        first, more = (
            self._before_noun(int(found[each]), found.before, "Minute") for each in ("n", "m")
        )
        return f"{first} plus {more if found.text.endswith('.') else self.say(int(found['m']))}"

    def read_day_of_list(self, found: Found) -> str | None:
        """Return the ordinal of a day before a comma, where no sentence ends, or behind "am"."""
        is_last = found.word in _BEFORE_DAY and self.ends_sentence(found.rest)
        is_day = found.rest[:1] == "," or is_last
        return self.day(int(found["n"]), found.before) + self.kept_point(found) if is_day else None

    def gender_after(self, number: str, noun: str, before: str) -> str:
        is_name = before[:1].isupper() and before[-1] != "," and before not in self.starters
        if number not in ("1", "1/2") or is_name or not self._is_noun(noun):
            return ""
        if before.lower() in _BEFORE_ACCUSATIVE and _MASCULINE.match(f"ein {noun}"):
            return "a"
        return "f" if _FEMININE.search(noun) else "m"

    def read_ordinal_with_point(self, found: Found) -> str | None:
        """Return an ordinal before a noun, or inside a sentence; None where the point ends one."""
        following = first_word(found.rest)
        following = self.abbreviations.get(f"{following}.", following)  # "2. Kl."
        is_word = following.isalpha() and following.islower()
        is_inside = is_word and found.past.strip() and not found.last.strip()
        is_weak = found.word in ORDINAL_ARTICLES and following not in self.starters
        is_ordinal = is_weak or self._is_noun(following) or is_inside
        is_item = _BEGINS_LINE.search(found.past) or not is_ordinal
        if is_item and following not in _BEHIND_RANK | _RANKED:  # "3. wurde Ben"
            return None
        noun = following if self._is_noun(following) else ""
        return self._before_noun(int(found["n"]), _before_day(found), noun)

    def _is_noun(self, word: str) -> bool:
        return word[:1].isupper() and not word[-1].isdigit() and word not in self.starters

    def _before_noun(self, number: int, before: str, noun: str) -> str:
        """Return an ordinal with the ending that it has between two words."""
        word = before.lower()
        ending = ORDINAL_ARTICLES.get(word)
        stem = next((each for each in ORDINAL_STEMS if word.startswith(each)), None)
        if ending is None and stem and word[len(stem) :] in ("e", "em", "en", "es", "er"):
            is_subject = word.endswith("e") or word in ("jeder", "jedes", "dieses")
            ending = "" if is_subject and noun[-1:] != "s" else "n"  # "dieses 2. Quartals"
        if word == "der" and _FEMININE.search(noun):
            ending = "n"  # "in der 89. Minute"
        if ending is None:
            ending = {"f": "", "n": "s", "m": "r"}[_gender_of(noun)]
        return self.say(number, "ordinal") + ending

    def roman(self, number: int, found: Found, following: str) -> str | None:
        before, name = found.before, found.before.removesuffix("s")
        if before in self.rulers or name in self.rulers:
            article = "der" if before in self.rulers else "des"
            article = "die" if before in _QUEENS else article
            return f"{article} {self._before_noun(number, article, '')}"
        is_ordinal = found.text.endswith(".") and self.numbering(found) not in self.numbered
        if is_ordinal and self._is_noun(following):
            return self._before_noun(number, before, following)
        return super().roman(number, found, following)

    def fraction_of(self, top: int, bottom: int, noun: Noun) -> str:
        """Return words such as "ein halber Liter" and "drei Viertel Liter"."""
        if (top, bottom) != (1, 2):
            return super().fraction_of(top, bottom, noun)
        gender = noun.gender if noun.gender == "f" else _gender_of(noun.one)
        return f"ein{_half(gender)} {noun.one}"

    def agreeing(self, said: str, before: str) -> str:
        """Return "one" or "one half" in the case that the word before it, or its lack, asks for."""
        half, one = _HALF.match(said), _ONE.match(said)
        if before.lower() in _BEFORE_DATIVE and not (half or one):
            return _PLURAL.sub(r"\1n", said)  # "in fünf Metern", "ab drei Jahren"
        if not half and one and before.lower() in _BEFORE_DATIVE:
            return f"ein{'er' if one[1] else 'em'}{said[one.end() :]}"
        if not half:
            is_object = before.lower() in _BEFORE_ACCUSATIVE and _MASCULINE.match(said)
            return f"einen{said[3:]}" if is_object else said
        word, is_feminine = before.lower(), half["article"] == "eine"
        rest = said[half.end() :]
        if before in ("ein", "eine") or word in _HALVES:
            return f"halb{_HALVES.get(word, half['ending'] or 'e' * is_feminine)}{rest}"
        if not half["ending"] or word in _BEFORE_NOMINATIVE or not before[-1:].isalpha():
            return said
        if word in _BEFORE_DATIVE:
            return f"{'einer' if is_feminine else 'einem'} halben{rest}"
        return f"einen halben{rest}" if half["ending"] == "er" else said

    def mixed(self, whole: str, top: int, bottom: int, noun: Noun | None) -> str:
        """Return words such as "zweieinhalb Tassen"."""
        if (top, bottom) != (1, 2):
            return super().mixed(whole, top, bottom, noun)
        return f"{self.cardinal(int(whole), 'm')}einhalb" + (f" {noun.many}" if noun else "")

    def fraction(self, top: int, bottom: int) -> str:
        if (top, bottom) == (1, 2):
            return "ein halb"
        if bottom in self.parts:
            return f"{self.cardinal(top, 'n')} {self.parts[bottom]}"
        return f"{self.say(top)} {'Halbe' if bottom == 2 else 'durch ' + self.say(bottom)}"


def _before_day(found: Found) -> str:
    """Return the word before a day, which a weekday may follow: "am Dienstag, 14.10."."""
    return "am" if _ON_A_WEEKDAY.search(found.past) else found.before


def _gender_of(noun: str) -> str:
    """Return the likely gender of a noun, by its ending."""
    return "f" if _FEMININE.search(noun) else "n" if _NEUTER.search(noun) else "m"


def _half(gender: str) -> str:
    """Return what follows "ein" in "one half" before a noun of this gender."""
    return {"f": "e halbe", "n": " halbes"}.get(gender, " halber")
