"""Italian: its numerals, 1º, and titles before a name."""

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
    *("gennaio", "febbraio", "marzo", "aprile", "maggio", "giugno", "luglio"),
    *("agosto", "settembre", "ottobre", "novembre", "dicembre"),
)
_UNITS = """
    km: chilometro, chilometri
    m: metro, metri
    cm: centimetro, centimetri
    mm: millimetro, millimetri
    m² m2: metro quadrato, metri quadrati
    km² km2: chilometro quadrato, chilometri quadrati
    m³ m3: metro cubo, metri cubi
    kg: chilogrammo, chilogrammi
    g: grammo, grammi
    mg: milligrammo, milligrammi
    t: tonnellata, tonnellate, f
    l L: litro, litri
    ml mL: millilitro, millilitri
    °C ℃: grado Celsius, gradi Celsius
    °: grado, gradi
    h: ora, ore, f
    min: minuto, minuti
    s sec: secondo, secondi
    ms: millisecondo, millisecondi
    KB kB: kilobyte
    MB: megabyte
    GB: gigabyte
    TB: terabyte
    Hz: hertz
    kHz: chilohertz
    MHz: megahertz
    GHz: gigahertz
    W: watt
    kW: chilowatt
    V: volt
    dB: decibel
    x ×: volta, volte, f
"""
_CURRENCIES = """
    € EUR: euro / centesimo, centesimi
    $ USD: dollaro, dollari / centesimo, centesimi
    £ GBP: sterlina, sterline, f / penny, pence
    ¥ JPY: yen
    CHF: franco svizzero, franchi svizzeri / centesimo, centesimi
"""
_ABBREVIATIONS = """
    Sig.: signor
    Sig.ra: signora
    Sigg.: signori
    Dott. Dr.: dottor
    Dott.ssa: dottoressa
    Prof.: professor
    Prof.ssa: professoressa
    Avv.: avvocato
    Ing.: ingegner
    ecc. etc.: eccetera
    p.es.: per esempio
    ca.: circa
    pag.: pagina
    pagg.: pagine
    vol.: volume
    cap.: capitolo
    art.: articolo
    tel.: telefono
    n.: numero
    S.: San
    max.: massimo
    min.: minimo
    a.C.: avanti Cristo
    d.C.: dopo Cristo
"""


def italian() -> Language:
    """The tables of Italian."""
    say = Numerals("it")

    def cardinal(number: int, gender: str) -> str:
        if number == 1 and gender:
            return "una" if gender == "f" else "un" if gender == "c" else "uno"
        return say(number)

    def time(hour: int, minute: int, second: int | None) -> str:
        words = cardinal(hour, "f") + (f" e {say(minute)}" if minute or second else "")
        return words + (f" e {say(second)} secondi" if second else "")

    def date(day: int, month: int, year: int | None, before: str) -> str:
        words = f"{'primo' if day == 1 else say(day)} {_MONTHS[month - 1]}"
        return words if year is None else f"{words} {say(year)}"

    def fraction(top: int, bottom: int) -> str:
        part = "mezzo" if bottom == 2 else say(bottom, "ordinal")
        return f"{'un' if top == 1 else say(top)} {part[:-1] + 'i' if top > 1 else part}"

    return Language(
        code="it",
        cardinal=cardinal,
        ordinal=lambda number: say(number, "ordinal"),
        year=say,
        minus="meno",
        plus="più",
        point="virgola",
        decimals_are_a_number=True,
        decimal=",",
        months=_MONTHS,
        month_forms=month_forms(_MONTHS, "gen feb mar apr mag giu lug ago set/sett ott nov dic"),
        ordinal_marks="º|°|o",
        says_written_dates=True,
        date=date,
        time=time,
        units=nouns(_UNITS, "c"),
        per="per",
        currencies=currencies(_CURRENCIES, "c"),
        money_joint=" e ",
        scales=nouns(
            "milione milioni mln: milione, milioni, c\nmiliardo miliardi mld: miliardo, miliardi, c"
        ),
        scale_joint=" di ",
        percent="per cento",
        to="a",
        fraction=fraction,
        abbreviations=table(_ABBREVIATIONS) | {"p. es.": "per esempio"},
        final=frozenset({"ecc.", "etc."}),
        symbols=table(
            "&: e\n@: chiocciola\n+: più\n=: uguale\n%: per cento\n÷: diviso\n×: per\n°: gradi"
            "\n≈ ~: circa\n<: minore di\n>: maggiore di\n≤: al massimo\n≥: almeno"
            "\n±: più o meno\n§: paragrafo\n©: copyright"
        )
        | {"™": "", "®": "", "/": " "},
        web=table(
            ".: punto\n@: chiocciola\n/: barra\n-: trattino\n_: trattino basso"
            "\n?: punto interrogativo\n=: uguale\n&: e\n#: cancelletto\n+: più\n:: due punti"
        ),
        number_sign="numero",
        extra=(
            (
                re.compile(r"(?P<n>\d{1,3})(?:ª|a\b)"),
                lambda match, before: say(int(match["n"]), "ordinal")[:-1] + "a",
            ),
            (re.compile(r"[nN][°º]\s?(?=\d)"), lambda match, before: "numero "),
            (re.compile(r"p\.\s?(?=\d)"), lambda match, before: "pagina "),
        ),
        opens=frozenset({"n°", "N°", "p.", "n."}),
    )
