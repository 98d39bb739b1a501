"""German: ordinals such as "5.", with the ending that the word before them requires ("am 5.")."""

import re

from qwen_megakernel.text.reading.language import Language, Noun, Rules, any_of, table
from qwen_megakernel.text.reading.surroundings import first_word

# Words before an ordinal, and the ending that the ordinal has after them.
_WEAK = ("am", "vom", "zum", "zur", "beim", "im", "dem", "den", "des", "bis", "ab", "ins")
_DAYS = r"\d{1,2}\.(?:(?:,|\s?[-–/]|\s(?:und|bis|oder|&)(?:\s(?:zum|dem))?)\s?\d{1,2}\.)+"
ORDINAL_ARTICLES = dict.fromkeys(_WEAK, "n") | {"der": "", "die": "", "das": ""}
ORDINAL_STEMS = (
    *("mein", "dein", "sein", "ihr", "unser", "euer", "ein", "kein", "dies", "jed", "eur"),
)
_FEMININE = re.compile(r"(?:e|ung|heit|keit|schaft|tät|ion|ei|ik|ur|in|Liga|Bundesliga|Wahl|Hand)$")
_NEUTER = re.compile(
    r"(?:chen|lein|um|ment|[Jj]ahr|Mal|Kind|Haus|[Kk]apitel|[Ss]piel|[Qq]uartal|[Ss]emester"
    r"|Buch|Bild|Tor|OG|[Gg]eschoss|Obergeschoss|Stockwerk|Drittel|Viertel|Treffen|Gebot|Album|Lied)$"
)
_REGNAL = """Ludwig Karl Friedrich Wilhelm Heinrich Otto Leopold Johannes Benedikt Pius Papst Franz
    Maximilian Elisabeth Georg Eduard Nikolaus Katharina Philipp Gustav Franziskus Alexander Peter
    Paul Johann Gregor August Joseph Richard Napoleon Christian Konrad Clemens Leo Maria
        Margarethe"""
_WEEKDAYS = table(
    "Mo: Montag; Di: Dienstag; Mi: Mittwoch; Do: Donnerstag; Fr: Freitag; Sa: Samstag"
)
_QUEENS = ("Elisabeth", "Katharina", "Maria", "Margarethe", "Christina")


class German(Language):
    code = "de"
    minus, plus, point, decimal = "minus", "plus", "Komma", ","
    percent, per, to, number_sign = "Prozent", "pro", "bis", "Nummer"
    by, over, ratio, out_of = "mal", "zu", "zu", "von"
    NUMBERED = """akt anhang artikel band buch kapitel klasse phase stufe szene tabelle teil titel
        typ
        abschnitt"""
    PHONE_WORDS = "tel telefon anrufen mobil handy fax rufnummer telefonnummer"
    ENDINGS, has_ordinal_points = "f: ^eins$ eine; m n: ^eins$ ein", True
    PARTS = """3: Drittel; 4: Viertel; 5: Fünftel; 6: Sechstel; 7: Siebtel; 8: Achtel; 9: Neuntel
        10: Zehntel; 12: Zwölftel; 100: Hundertstel"""
    UNITS = """dB: Dezibel; PS: PS; x ×: mal; Jahr Jahre: Jahr, Jahre, n
        Person Personen: Person, Personen, f; Pck. Pkg.: Packung, Packungen, f; Mal: Mal, Mal, n"""
    SCALES = """Mio. Mio Million Millionen: Million, Millionen, f; Tsd.: tausend
        Mrd. Mrd Milliarde Milliarden: Milliarde, Milliarden, f"""
    CURRENCIES = """€ EUR: Euro / Cent; $ USD: Dollar / Cent; £ GBP: Pfund / Penny, Pence
        ¥ JPY: Yen; CHF: Franken / Rappen; ₽ RUB: Rubel / Kopeke, Kopeken, f"""
    money_joint, says_cents = " ", False
    SHORT_MONTHS = "jan/jänner feb mär apr - jun jul aug sep/sept okt nov dez"
    says_written_dates = True
    times, time_marks = ("{h:m} Uhr", "{h:m} Uhr {m}", " und {s} Sekunden"), r"\sUhr\b"
    ABBREVIATIONS = """z.B. z.~B.: zum Beispiel; d.h. d.~h.: das heißt; u.a. u.~a.: unter anderem
        usw. etc.: und so weiter; bzw.: beziehungsweise; ca.: circa; Dr. Dr: Doktor
        Prof. Prof: Professor; Ing.: Ingenieur; Dipl.-Ing.: Diplomingenieur; Mag.: Magister
        Univ.Prof. Univ.-Prof.: Universitätsprofessor
        Mo.: Montag; Di.: Dienstag; Mi.: Mittwoch; Do.: Donnerstag; Sa.: Samstag
        MwSt.: Mehrwertsteuer; rd.: rund; zw.: zwischen; Min.: Minute; Std.: Stunde; Pck.: Packung
        Kap.: Kapitel; Abb.: Abbildung; OG: Obergeschoss; Hr.: Herr; Fr.: Frau; Str.: Straße
        Nr.: Nummer; Abs.: Absatz
        Art.: Artikel; S.: Seite; Bd.: Band; vgl.: vergleiche; Tel.: Telefon; inkl.: inklusive
        exkl.: exklusive; zzgl.: zuzüglich; ggf.: gegebenenfalls; evtl.: eventuell; Mio.: Millionen
        Mrd.: Milliarden; St.: Sankt; v.Chr.: vor Christus; n.Chr.: nach Christus"""
    FINAL = "usw. etc. Str. MwSt. OG Min. Std."
    STARTERS = """Aber Alle Alles Als Am An Auch Auf Aus Bei Beim Bis Bitte Da Dabei Damit Danach
        Dann Daher Darum Das Dein Dem Den Denn Der Deshalb Die Dies Diese Dieser Dieses Doch Dort Du
        Ein Eine Einen Er Es Euer Falls Für Gestern Hat Heute Hier Ich Ihr Ihre Im In Ist Ja Jede
        Jeder Jetzt Kann Kein Keine Man Mein Meine Mit Morgen Nach Nein Nicht Noch Nun Nur Ob Oder
        Ohne Sehr Sein Seine Seit Sie So Sonst Über Um Und Unser Unter Viele Vom Von Vor Wann Warum
        Was Wegen Weil Wenn Wer Wie Wir Wird Wo Zu Zum Zur Zwar"""
    nouns_are_capitalised = True
    SYMBOLS = """&: und; @: at; =: gleich; ÷: geteilt durch; ×: mal; °: Grad; ≈ ~: etwa
        <: kleiner als; >: größer als; ≤: höchstens; ≥: mindestens; ±: plus minus; §: Paragraf
        ©: Copyright"""
    WEB = """.: Punkt; /: Schrägstrich; -: minus; _: Unterstrich; ?: Fragezeichen; #: Raute
        :: Doppelpunkt"""
    OPENS, FOLLOWERS, pointed_endings = "Nr. z. d. u. Mo Di Mi Do Fr Sa", "uhr", ("str.",)

    def rules(self) -> Rules:
        """Times such as "15.30 Uhr", ordinals such as "der 3. Versuch", and "die 80er"."""
        yield r"(?P<h>[01]?\d|2[0-4])\.(?P<m>[0-5]\d)\sUhr\b", self.clock
        yield r"(?P<h>[01]?\d|2[0-4])\sUhr\b(?!\s\d)", self.clock
        yield r"(?P<a>\d{1,3}):(?P<b>[0-5]\d)\sMin\b", "{a} Minuten {b}"
        numbered = r"(?P<m>0?[1-9]|1[0-2])\.(?P<y>\d{4}|\d\d)?(?!\d)"
        named = rf"(?=\s?{self.month_pattern()})"
        yield rf"(?i)(?P<days>{_DAYS})(?:{named}|{numbered})", self.days_of_month
        yield r"(?P<a>\d{1,3})\.\s?/\s?(?P<b>\d{1,3})\.(?=\s[A-ZÄÖÜ])", self.two_ordinals
        minute = r"(?=\s(?i:\w*minute)(?!\w))"
        yield rf"(?P<n>\d{{1,3}})\.\s?\+\s?(?P<m>\d{{1,2}})\.?{minute}", self.extra_minute
        yield r"(?P<n>\d{1,2})\.", self.day_of_list
        yield r"(?P<n>\d{1,3})\.(?=\s[^\W\d_])", self.ordinal_with_point
        yield rf"(?P<a>{any_of(_WEEKDAYS)})(?=\.?\s\d)\.?", lambda match, _: _WEEKDAYS[match["a"]]
        yield r"(?P<y>(?:1\d|20)?\d0)(?P<e>ern?)(?!\w)", self.decade
        yield (
            r"(?P<n>[A-ZÄÖÜ]\w+)str\.",
            lambda match, _: f"{match['n']}straße{self.kept_point(match)}",
        )
        yield r"(?P<d>[0-3]?\d)\.(?P<m>0?[1-9]|1[0-2])\.(?P<y>(?!))?(?!\d)", self.written_date
        yield r"(?P<d>[0-3]?\d)\.(?P<m>0?[1-9]|1[0-2])(?P<y>(?!))?(?![\d.,:%]|\s?Uhr)", self.dated

    def decade(self, match: re.Match[str], before: str) -> str:
        """Return the words of "90er" and "90ern"."""
        return self.year(int(match["y"])) + match["e"]

    def ordinal(self, number: int) -> str:
        return self.day(number, "")

    def year(self, number: int) -> str:
        return self.say(number, "year")

    def day(self, number: int, before: str) -> str:
        """Return an ordinal with the ending that it has after the word `before`."""
        return self.say(number, "ordinal") + ORDINAL_ARTICLES.get(before.lower(), "r")

    def days_of_month(self, match: re.Match[str], before: str) -> str:
        """Return the words of days such as "24., 25. und 26." before the name of a month."""
        ending = "n" if before[:1].isdigit() else ORDINAL_ARTICLES.get(before.lower()) or "r"
        words = re.sub(r"\s?[-–]\s?", f" {self.to} ", match["days"])
        words = re.sub(r"\s?/\s?", " ", words).replace("&", "und")
        say = lambda day: f"{self.say(int(day[1]), 'ordinal')}{ending}"  # noqa: E731
        words = re.sub(r"(\d+)\.", say, words)
        if not match["m"]:
            return words
        year = " " + self.year(int(("20" + match["y"])[-4:])) if match["y"] else ""
        return f"{words} {self.month(int(match['m']))}{year}{self.kept_point(match)}"

    def two_ordinals(self, match: re.Match[str], before: str) -> str:
        """Return the words of two ordinals before one noun, such as "im 2./3. Stock"."""
        noun = first_word(match.string[match.end() :])
        return " ".join(
            self._before_noun(int(each), before, noun) for each in match.group("a", "b")
        )

    def extra_minute(self, match: re.Match[str], before: str) -> str:
        """Return the words of the minute of a match in "in der 90.+3. Minute"."""
        say = self._before_noun if match[0].endswith(".") else lambda number, *_: self.say(number)
        first = self._before_noun(int(match["n"]), before, "Minute")
        return f"{first} plus {say(int(match['m']), before, 'Minute')}"

    def day_of_list(self, match: re.Match[str], before: str) -> str | None:
        """Return the ordinal of a day before a comma, where no sentence ends."""
        is_listed = match.string[match.end() : match.end() + 1] == ","
        return self.day(int(match["n"]), before) if is_listed else None

    def gender_after(self, number: str, noun: str, before: str) -> str:
        is_name = before[:1].isupper() and before[-1] != "," and before not in self.starters
        if number != "1" or is_name or not self._is_noun(noun):
            return ""
        return "f" if _FEMININE.search(noun) else "m"

    def dated(self, match: re.Match[str], before: str) -> str | None:
        """Return a date such as "am 3.10"; None without a word that only dates have."""
        return self.written_date(match, before) if before.lower() in ("am", "vom", "zum") else None

    def ordinal_with_point(self, match: re.Match[str], before: str) -> str | None:
        """Return an ordinal before a noun; None elsewhere, where the point ends a sentence."""
        following = first_word(match.string[match.end() :])
        if before.lower() not in ORDINAL_ARTICLES and not self._is_noun(following):
            return None
        return self._before_noun(int(match["n"]), before, following)

    def _is_noun(self, word: str) -> bool:
        return word[:1].isupper() and word not in self.starters

    def _before_noun(self, number: int, before: str, noun: str) -> str:
        """Return an ordinal with the ending that it has between two words."""
        word = before.lower()
        ending = ORDINAL_ARTICLES.get(word)
        stem = next((each for each in ORDINAL_STEMS if word.startswith(each)), None)
        if ending is None and stem and word[len(stem) :] in ("e", "em", "en", "es", "er"):
            ending = "" if word.endswith("e") or word == "jeder" else "n"
        if word == "der" and _FEMININE.search(noun):
            ending = "n"  # "in der 89. Minute"
        if ending is None:
            ending = "" if _FEMININE.search(noun) else "s" if _NEUTER.search(noun) else "r"
        return self.say(number, "ordinal") + ending

    def roman(self, number: int, match: re.Match[str], before: str, following: str) -> str | None:
        is_ordinal = match[0].endswith(".")
        if before in _REGNAL.split() or before.removesuffix("s") in _REGNAL.split():
            article = "des" if before.endswith("s") and before not in _REGNAL.split() else "der"
            article = "die" if before in _QUEENS else article
            return f"{article} {self._before_noun(number, article, '')}"
        if is_ordinal and before.lower() not in self.numbered and self._is_noun(following):
            return self._before_noun(number, before, following)
        return super().roman(number, match, before, following)

    def fraction_of(self, top: int, bottom: int, noun: Noun) -> str:
        """Return words such as "ein halber Liter" and "drei Viertel Liter"."""
        if (top, bottom) != (1, 2):
            return super().fraction_of(top, bottom, noun)
        half = {"f": "eine halbe", "n": "ein halbes"}.get(noun.gender, "ein halber")
        return f"{half} {noun.one}"

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
