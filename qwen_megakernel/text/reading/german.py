"""German: its numerals, and ordinals with a point ("am 5. März", "der 3. Versuch")."""

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
    *("Januar", "Februar", "März", "April", "Mai", "Juni", "Juli"),
    *("August", "September", "Oktober", "November", "Dezember"),
)
_UNITS = """
    km: Kilometer
    m: Meter
    cm: Zentimeter
    mm: Millimeter
    m² m2: Quadratmeter
    km² km2: Quadratkilometer
    m³ m3: Kubikmeter
    kg: Kilogramm
    g: Gramm
    mg: Milligramm
    t: Tonne, Tonnen, f
    l L: Liter
    ml mL: Milliliter
    °C ℃: Grad Celsius
    °: Grad
    h Std.: Stunde, Stunden, f
    min Min.: Minute, Minuten, f
    s Sek.: Sekunde, Sekunden, f
    ms: Millisekunde, Millisekunden, f
    kB KB: Kilobyte
    MB: Megabyte
    GB: Gigabyte
    TB: Terabyte
    Hz: Hertz
    kHz: Kilohertz
    MHz: Megahertz
    GHz: Gigahertz
    W: Watt
    kW: Kilowatt
    kWh: Kilowattstunde, Kilowattstunden, f
    V: Volt
    dB: Dezibel
    PS: PS
    x ×: mal
"""
_CURRENCIES = """
    € EUR: Euro / Cent
    $ USD: Dollar / Cent
    £ GBP: Pfund / Penny, Pence
    ¥ JPY: Yen
    CHF: Franken / Rappen
    ₽ RUB: Rubel / Kopeke, Kopeken, f
"""
_ABBREVIATIONS = """
    z.B.: zum Beispiel
    d.h.: das heißt
    u.a.: unter anderem
    usw. etc.: und so weiter
    bzw.: beziehungsweise
    ca.: circa
    Dr. Dr: Doktor
    Prof. Prof: Professor
    Hr.: Herr
    Fr.: Frau
    Str.: Straße
    Nr.: Nummer
    Abs.: Absatz
    Art.: Artikel
    S.: Seite
    Bd.: Band
    vgl.: vergleiche
    Tel.: Telefon
    inkl.: inklusive
    exkl.: exklusive
    zzgl.: zuzüglich
    ggf.: gegebenenfalls
    evtl.: eventuell
    Mio.: Millionen
    Mrd.: Milliarden
    St.: Sankt
    v.Chr.: vor Christus
    n.Chr.: nach Christus
"""
_PARTS = {
    **{3: "Drittel", 4: "Viertel", 5: "Fünftel", 6: "Sechstel", 7: "Siebtel"},
    **{8: "Achtel", 9: "Neuntel", 10: "Zehntel", 12: "Zwölftel", 100: "Hundertstel"},
}
_WEAK = frozenset(
    ["am", "vom", "zum", "beim", "im", "dem", "den", "des", "bis", "ab"]
)  # the ordinal ends in -en
_DEFINITE = frozenset({"der", "die", "das"})  # it ends in -e


def german() -> Language:
    """The tables of German."""
    say = Numerals("de")

    def cardinal(number: int, gender: str) -> str:
        if number == 1 and gender:
            return "eine" if gender == "f" else "ein"
        return say(number)

    def ordinal(number: int, before: str = "") -> str:
        before = before.lower()
        if before in _WEAK:
            return say(number, "ordinal") + "n"
        return say(number, "ordinal") + ("" if before in _DEFINITE else "r")

    def date(day: int, month: int, year: int | None, before: str) -> str:
        words = f"{ordinal(day, before)} {_MONTHS[month - 1]}"
        return words if year is None else f"{words} {say(year, 'year')}"

    def time(hour: int, minute: int, second: int | None) -> str:
        words = f"{cardinal(hour, 'm')} Uhr" + (f" {say(minute)}" if minute or second else "")
        return words + (f" und {say(second)} Sekunden" if second else "")

    def fraction(top: int, bottom: int) -> str:
        if (top, bottom) == (1, 2):
            return "ein halb"
        if bottom in _PARTS:
            return f"{cardinal(top, 'n')} {_PARTS[bottom]}"
        return f"{say(top)} {'Halbe' if bottom == 2 else 'durch ' + say(bottom)}"

    months = month_forms(_MONTHS, "jan feb mär apr - jun jul aug sep/sept okt nov dez") | {
        "jänner": 1
    }
    return Language(
        code="de",
        cardinal=cardinal,
        ordinal=ordinal,
        year=lambda number: say(number, "year"),
        minus="minus",
        plus="plus",
        point="Komma",
        decimal=",",
        months=_MONTHS,
        month_forms=months,
        has_ordinal_points=True,
        says_written_dates=True,
        date=date,
        time=time,
        time_marks=r"\sUhr\b",
        units=nouns(_UNITS),
        per="pro",
        currencies=currencies(_CURRENCIES),
        money_joint=" ",
        says_cents=False,
        scales=nouns(
            "Mio. Mio Million Millionen: Million, Millionen, f"
            "\nMrd. Mrd Milliarde Milliarden: Milliarde, Milliarden, f\nTsd.: tausend"
        ),
        percent="Prozent",
        to="bis",
        fraction=fraction,
        abbreviations=table(_ABBREVIATIONS)
        | {"z. B.": "zum Beispiel", "d. h.": "das heißt", "u. a.": "unter anderem"},
        final=frozenset({"usw.", "etc.", "Str."}),
        symbols=table(
            "&: und\n@: at\n+: plus\n=: gleich\n%: Prozent\n÷: geteilt durch\n×: mal\n°: Grad"
            "\n≈ ~: etwa\n<: kleiner als\n>: größer als\n≤: höchstens\n≥: mindestens"
            "\n±: plus minus\n§: Paragraf\n©: Copyright"
        )
        | {"™": "", "®": "", "/": " "},
        web=table(
            ".: Punkt\n@: at\n/: Schrägstrich\n-: minus\n_: Unterstrich\n?: Fragezeichen"
            "\n=: gleich\n&: und\n#: Raute\n+: plus\n:: Doppelpunkt"
        ),
        number_sign="Nummer",
        extra=(
            (
                re.compile(r"(?P<h>[01]?\d|2[0-4])\.(?P<m>[0-5]\d)\sUhr\b"),
                lambda match, before: time(int(match["h"]), int(match["m"]), None),
            ),
            (
                re.compile(r"(?P<h>[01]?\d|2[0-4])\sUhr\b(?!\s\d)"),
                lambda match, before: time(int(match["h"]), 0, None),
            ),
            (
                re.compile(r"(?P<n>\d{1,3})\.(?=\s[^\W\d_])"),
                lambda match, before: (
                    ordinal(int(match["n"]), before)
                    if before.lower() in _WEAK | _DEFINITE
                    else None
                ),
            ),
            (
                re.compile(r"(?P<d>\d0)er\b(?=\s|$|[.,])"),
                lambda match, before: say(int(match["d"])) + "er",
            ),
        ),
        followers=frozenset({"uhr"}),
        opens=frozenset({"Nr.", "z.", "d.", "u."}),
    )
