"""Spanish: its numerals and their genders, 1.º, and titles before a name."""

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
    *("enero", "febrero", "marzo", "abril", "mayo", "junio", "julio"),
    *("agosto", "septiembre", "octubre", "noviembre", "diciembre"),
)
_UNITS = """
    km: kilómetro, kilómetros
    m: metro, metros
    cm: centímetro, centímetros
    mm: milímetro, milímetros
    m² m2: metro cuadrado, metros cuadrados
    km² km2: kilómetro cuadrado, kilómetros cuadrados
    m³ m3: metro cúbico, metros cúbicos
    kg: kilogramo, kilogramos
    g: gramo, gramos
    mg: miligramo, miligramos
    t: tonelada, toneladas, f
    l L: litro, litros
    ml mL: mililitro, mililitros
    °C ℃: grado Celsius, grados Celsius
    °: grado, grados
    h: hora, horas, f
    min: minuto, minutos
    s seg: segundo, segundos
    ms: milisegundo, milisegundos
    KB kB: kilobyte, kilobytes
    MB: megabyte, megabytes
    GB: gigabyte, gigabytes
    TB: terabyte, terabytes
    Hz: hercio, hercios
    kHz: kilohercio, kilohercios
    MHz: megahercio, megahercios
    GHz: gigahercio, gigahercios
    W: vatio, vatios
    kW: kilovatio, kilovatios
    V: voltio, voltios
    dB: decibelio, decibelios
    x ×: vez, veces, f
"""
_CURRENCIES = """
    € EUR: euro, euros / céntimo, céntimos
    $ USD: dólar, dólares / centavo, centavos
    £ GBP: libra, libras, f / penique, peniques
    ¥ JPY: yen, yenes
    MXN: peso, pesos / centavo, centavos
"""
_ABBREVIATIONS = """
    Sr.: señor
    Sra.: señora
    Srta.: señorita
    Sres.: señores
    Dr.: doctor
    Dra.: doctora
    D.: don
    Dña.: doña
    Prof.: profesor
    Ud. Vd.: usted
    Uds. Vds.: ustedes
    etc.: etcétera
    p.ej.: por ejemplo
    aprox.: aproximadamente
    Avda. Av.: avenida
    C/: calle
    pág.: página
    págs.: páginas
    núm.: número
    tel.: teléfono
    vol.: volumen
    cap.: capítulo
    art.: artículo
    máx.: máximo
    mín.: mínimo
    EE.UU.: Estados Unidos
    a.C.: antes de Cristo
    d.C.: después de Cristo
"""
_PARTS = {2: "medio", 3: "tercio", 4: "cuarto", 10: "décimo"}
_TENS = {11: "onceavo", 12: "doceavo", 20: "veinteavo", 100: "centésimo"}


def spanish() -> Language:
    """The tables of Spanish."""
    say = Numerals("es")

    def cardinal(number: int, gender: str) -> str:
        words = say(number)
        if gender == "f":
            words = re.sub(r"cientos\b", "cientas", re.sub(r"uno$", "una", words))
            return words.replace("quinientos", "quinientas")
        if gender == "c":  # before what is counted
            return (
                words.replace("veintiuno", "veintiún")
                if number % 100 == 21
                else re.sub(r"uno$", "un", words)
            )
        return words

    def time(hour: int, minute: int, second: int | None) -> str:
        words = cardinal(hour, "f")
        words += f" y {say(minute)}" if minute else (" horas" if hour > 12 or not hour else "")
        return words + (f" con {say(second)} segundos" if second else "")

    def date(day: int, month: int, year: int | None, before: str) -> str:
        words = f"{say(day)} de {_MONTHS[month - 1]}"
        return words if year is None else f"{words} de {say(year)}"

    def fraction(top: int, bottom: int) -> str:
        part = _PARTS.get(bottom) or _TENS.get(bottom)
        if not part and bottom < 10:
            part = say(bottom, "ordinal")
        if not part:
            return f"{say(top)} entre {say(bottom)}"
        return f"{cardinal(top, 'c')} {part}" + ("s" if top > 1 else "")

    def ordinal(number: int) -> str:
        return say(number, "ordinal")

    return Language(
        code="es",
        cardinal=cardinal,
        ordinal=ordinal,
        year=say,
        minus="menos",
        plus="más",
        point="coma",
        decimals_are_a_number=True,
        decimal=",",
        months=_MONTHS,
        month_forms=month_forms(_MONTHS, "ene feb mar abr - jun jul ago sept/sep oct nov dic"),
        ordinal_marks=r"\.?º|\.?°|o\b",
        date=date,
        time=time,
        time_marks=r"\sh\b",
        units=nouns(_UNITS, "c"),
        per="por",
        currencies=currencies(_CURRENCIES, "c"),
        money_joint=" con ",
        scales=nouns("millón millones M: millón, millones, c"),
        scale_joint=" de ",
        percent="por ciento",
        to="a",
        fraction=fraction,
        abbreviations=table(_ABBREVIATIONS)
        | {"p. ej.": "por ejemplo", "EE. UU.": "Estados Unidos"},
        final=frozenset({"etc.", "EE.UU."}),
        symbols=table(
            "&: y\n@: arroba\n+: más\n=: igual a\n%: por ciento\n÷: dividido entre\n×: por"
            "\n°: grados\n≈ ~: aproximadamente\n<: menor que\n>: mayor que\n≤: como máximo"
            "\n≥: como mínimo\n±: más o menos\n§: sección\n©: copyright"
        )
        | {"™": "", "®": "", "/": " "},
        web=table(
            ".: punto\n@: arroba\n/: barra\n-: guion\n_: guion bajo\n?: interrogación"
            "\n=: igual\n&: y\n#: almohadilla\n+: más\n:: dos puntos"
        ),
        number_sign="número",
        extra=(
            (
                re.compile(r"(?P<n>\d{1,3})(?:\.?ª|a\b(?!\.))"),
                lambda match, before: re.sub(r"o\b", "a", ordinal(int(match["n"]))),
            ),
            (re.compile(r"1\.?er(?!\w)"), lambda match, before: "primer"),
            (re.compile(r"3\.?er(?!\w)"), lambda match, before: "tercer"),
            (re.compile(r"(?:n|N)\.?[º°]\s?(?=\d)"), lambda match, before: "número "),
            (re.compile(r"p\.\s?(?=\d)"), lambda match, before: "página "),
        ),
        followers=frozenset({"h"}),
        links=frozenset({"de", "del"}),
        opens=frozenset({"n.º", "nº", "N.º", "p.", "EE."}),
    )
