"""French: its numerals, 15h30, 1er, and the titles that go before a name."""

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
    *("janvier", "février", "mars", "avril", "mai", "juin", "juillet"),
    *("août", "septembre", "octobre", "novembre", "décembre"),
)
_UNITS = """
    km: kilomètre, kilomètres
    m: mètre, mètres
    cm: centimètre, centimètres
    mm: millimètre, millimètres
    m² m2: mètre carré, mètres carrés
    km² km2: kilomètre carré, kilomètres carrés
    m³ m3: mètre cube, mètres cubes
    kg: kilogramme, kilogrammes
    g: gramme, grammes
    mg: milligramme, milligrammes
    t: tonne, tonnes, f
    l L: litre, litres
    ml mL: millilitre, millilitres
    °C ℃: degré Celsius, degrés Celsius
    °: degré, degrés
    min: minute, minutes, f
    s: seconde, secondes, f
    ms: milliseconde, millisecondes, f
    h: heure, heures, f
    Ko ko: kilo-octet, kilo-octets
    Mo: mégaoctet, mégaoctets
    Go: gigaoctet, gigaoctets
    To: téraoctet, téraoctets
    Hz: hertz
    kHz: kilohertz
    MHz: mégahertz
    GHz: gigahertz
    W: watt, watts
    kW: kilowatt, kilowatts
    kWh: kilowattheure, kilowattheures
    V: volt, volts
    dB: décibel, décibels
    x ×: fois
"""
_CURRENCIES = """
    € EUR: euro, euros / centime, centimes
    $ USD: dollar, dollars / cent, cents
    £ GBP: livre, livres, f / penny, pence
    ¥ JPY: yen, yens
    CHF: franc suisse, francs suisses / centime, centimes
    ₽ RUB: rouble, roubles / kopeck, kopecks
"""
_ABBREVIATIONS = """
    M.: monsieur
    MM.: messieurs
    Mme: madame
    Mmes: mesdames
    Mlle: mademoiselle
    Dr Dr.: docteur
    Pr Pr.: professeur
    Me: maître
    St: saint
    Ste: sainte
    etc.: et cetera
    p.ex.: par exemple
    c.-à-d.: c'est-à-dire
    env.: environ
    av.: avenue
    bd: boulevard
    tél. tel.: téléphone
    vol.: volume
    chap.: chapitre
    art.: article
    min.: minimum
    max.: maximum
"""
_PARTS = {2: "demi", 3: "tiers", 4: "quart"}


def french() -> Language:
    """The tables of French."""
    say = Numerals("fr")

    def cardinal(number: int, gender: str) -> str:
        words = say(number)
        return words + "e" if gender == "f" and re.search(r"\bun$", words) else words

    def time(hour: int, minute: int, second: int | None) -> str:
        words = f"{cardinal(hour, 'f')} {'heure' if hour < 2 else 'heures'}"
        words += f" {cardinal(minute, 'f')}" if minute or second else ""
        return words + (f" et {cardinal(second, 'f')} secondes" if second else "")

    def date(day: int, month: int, year: int | None, before: str) -> str:
        words = f"{'premier' if day == 1 else say(day)} {_MONTHS[month - 1]}"
        return words if year is None else f"{words} {say(year)}"

    def fraction(top: int, bottom: int) -> str:
        part = _PARTS.get(bottom) or say(bottom, "ordinal")
        return f"{say(top)} {part}" + ("s" if top > 1 and part[-1] != "s" else "")

    return Language(
        code="fr",
        cardinal=cardinal,
        ordinal=lambda number: say(number, "ordinal"),
        year=say,
        plural=lambda number: 0 if number < 2 else 2,
        minus="moins",
        plus="plus",
        point="virgule",
        decimals_are_a_number=True,
        decimal=",",
        months=_MONTHS,
        month_forms=month_forms(_MONTHS, "janv/jan févr/fév - avr - - juil - sept/sep oct nov déc"),
        ordinal_marks="er|ère|re|ème|e|nd|nde|ᵉ|ᵉʳ",
        says_written_dates=True,
        date=date,
        time=time,
        units=nouns(_UNITS),
        per="par",
        currencies=currencies(_CURRENCIES),
        money_joint=" ",
        says_cents=False,
        scales=nouns(
            "million millions M: million, millions\nmilliard milliards: milliard, milliards"
        ),
        scale_joint=" d'",
        percent="pour cent",
        to="à",
        fraction=fraction,
        abbreviations=table(_ABBREVIATIONS),
        final=frozenset({"etc."}),
        symbols=table(
            "&: et\n@: arobase\n+: plus\n=: égale\n%: pour cent\n÷: divisé par\n×: fois"
            "\n°: degrés\n≈ ~: environ\n<: inférieur à\n>: supérieur à\n≤: au plus\n≥: au moins"
            "\n±: plus ou moins\n§: paragraphe\n©: copyright"
        )
        | {"™": "", "®": "", "/": " "},
        web=table(
            ".: point\n@: arobase\n/: slash\n-: tiret\n_: tiret bas\n?: point d'interrogation"
            "\n=: égale\n&: et\n#: dièse\n+: plus\n:: deux-points"
        ),
        number_sign="numéro",
        extra=(
            (
                re.compile(r"(?P<h>[01]?\d|2[0-4])\s?h(?:\s?(?P<m>[0-5]\d))?(?!\w)"),
                lambda match, before: time(int(match["h"]), int(match["m"] or 0), None),
            ),
            (re.compile(r"1(?:ère|re)(?!\w)"), lambda match, before: "première"),
            (re.compile(r"(?:n|N)[°º]\s?(?=\d)"), lambda match, before: "numéro "),
            (re.compile(r"p\.\s?(?=\d)"), lambda match, before: "page "),
            (
                re.compile(r"(?P<r>[XVI]{1,5})e(?=\s+siècle)"),
                lambda match, before: say(_roman(match["r"]), "ordinal"),
            ),
        ),
        followers=frozenset({"h", "siècle"}),
        opens=frozenset({"n°", "N°", "p.", *("XIXe", "XXe", "XXIe", "XVIIIe", "XVIIe", "XVIe")}),
    )


def _roman(text: str) -> int:
    values = [{"I": 1, "V": 5, "X": 10}[char] for char in text]
    pairs = zip(values, [*values[1:], 0], strict=True)
    return sum(-value if value < following else value for value, following in pairs)
