"""Portuguese: its numerals and their genders, 15h30, 1º, and titles before a name."""

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
    *("janeiro", "fevereiro", "março", "abril", "maio", "junho", "julho"),
    *("agosto", "setembro", "outubro", "novembro", "dezembro"),
)
_UNITS = """
    km: quilômetro, quilômetros
    m: metro, metros
    cm: centímetro, centímetros
    mm: milímetro, milímetros
    m² m2: metro quadrado, metros quadrados
    km² km2: quilômetro quadrado, quilômetros quadrados
    m³ m3: metro cúbico, metros cúbicos
    kg: quilograma, quilogramas
    g: grama, gramas
    mg: miligrama, miligramas
    t: tonelada, toneladas, f
    l L: litro, litros
    ml mL: mililitro, mililitros
    °C ℃: grau Celsius, graus Celsius
    °: grau, graus
    min: minuto, minutos
    s seg: segundo, segundos
    ms: milissegundo, milissegundos
    h: hora, horas, f
    KB kB: quilobyte, quilobytes
    MB: megabyte, megabytes
    GB: gigabyte, gigabytes
    TB: terabyte, terabytes
    Hz: hertz
    kHz: quilohertz
    MHz: megahertz
    GHz: gigahertz
    W: watt, watts
    kW: quilowatt, quilowatts
    V: volt, volts
    dB: decibel, decibéis
    x ×: vez, vezes, f
"""
_CURRENCIES = """
    R$ BRL: real, reais / centavo, centavos
    $ US$ USD: dólar, dólares / centavo, centavos
    € EUR: euro, euros / cêntimo, cêntimos
    £ GBP: libra, libras, f / pêni, pence
    ¥ JPY: iene, ienes
"""
_ABBREVIATIONS = """
    Sr.: senhor
    Sra.: senhora
    Srta.: senhorita
    Dr.: doutor
    Dra.: doutora
    Prof.: professor
    Profa.: professora
    D.: dona
    Eng.: engenheiro
    etc.: et cetera
    p.ex.: por exemplo
    aprox.: aproximadamente
    Av.: avenida
    R.: rua
    pág.: página
    págs.: páginas
    nº n.º: número
    tel.: telefone
    vol.: volume
    cap.: capítulo
    art.: artigo
    máx.: máximo
    mín.: mínimo
    a.C.: antes de Cristo
    d.C.: depois de Cristo
    EUA: Estados Unidos
"""
_PARTS = {2: "meio", 3: "terço", 4: "quarto", 10: "décimo", 100: "centésimo"}
_TEENS = {"dezasseis": "dezesseis", "dezassete": "dezessete", "dezanove": "dezenove"}


def portuguese() -> Language:
    """The tables of Portuguese; where Brazil and Portugal differ, those of Brazil."""
    say_as_portugal = Numerals("pt")

    def say(number: int, to: str = "cardinal") -> str:
        words = say_as_portugal(number, to)
        words = re.sub(r"\be cem$", "e cem", words)
        return re.sub(r"\bdeza\w+", lambda match: _TEENS.get(match[0], match[0]), words)

    def cardinal(number: int, gender: str) -> str:
        words = say(number)
        if gender == "f":
            words = re.sub(r"\bdois$", "duas", re.sub(r"\bum$", "uma", words))
            words = words.replace("centos", "centas").replace("duzentos", "duzentas")
        return words

    def time(hour: int, minute: int, second: int | None) -> str:
        words = cardinal(hour, "f")
        if not minute and not second:
            return f"{words} {'hora' if hour == 1 else 'horas'}"
        words += f" e {say(minute)}"
        return words + (f" e {say(second)} segundos" if second else "")

    def date(day: int, month: int, year: int | None, before: str) -> str:
        words = f"{'primeiro' if day == 1 else say(day)} de {_MONTHS[month - 1]}"
        return words if year is None else f"{words} de {say(year)}"

    def fraction(top: int, bottom: int) -> str:
        part = _PARTS.get(bottom) or (say(bottom, "ordinal") if bottom < 10 else "")
        if not part:
            return f"{say(top)} {say(bottom)} avos"
        return f"{say(top)} {part}" + ("s" if top > 1 else "")

    return Language(
        code="pt",
        cardinal=cardinal,
        ordinal=lambda number: say(number, "ordinal"),
        year=say,
        minus="menos",
        plus="mais",
        point="vírgula",
        decimals_are_a_number=True,
        decimal=",",
        months=_MONTHS,
        month_forms=month_forms(_MONTHS, "jan fev mar abr mai jun jul ago set out nov dez"),
        ordinal_marks=r"\.?º|°|o\b",
        date=date,
        time=time,
        units=nouns(_UNITS),
        per="por",
        currencies=currencies(_CURRENCIES),
        money_joint=" e ",
        scales=nouns("milhão milhões mi: milhão, milhões\nbilhão bilhões bi: bilhão, bilhões"),
        scale_joint=" de ",
        percent="por cento",
        to="a",
        fraction=fraction,
        abbreviations=table(_ABBREVIATIONS) | {"p. ex.": "por exemplo"},
        final=frozenset({"etc.", "EUA"}),
        symbols=table(
            "&: e\n@: arroba\n+: mais\n=: igual a\n%: por cento\n÷: dividido por\n×: vezes"
            "\n°: graus\n≈ ~: aproximadamente\n<: menor que\n>: maior que\n≤: no máximo"
            "\n≥: no mínimo\n±: mais ou menos\n§: parágrafo\n©: copyright"
        )
        | {"™": "", "®": "", "/": " "},
        web=table(
            ".: ponto\n@: arroba\n/: barra\n-: hífen\n_: sublinhado\n?: interrogação"
            "\n=: igual\n&: e\n#: cerquilha\n+: mais\n:: dois pontos"
        ),
        number_sign="número",
        extra=(
            (
                re.compile(r"(?P<h>[01]?\d|2[0-4])h(?P<m>[0-5]\d)?(?:min)?(?!\w)"),
                lambda match, before: time(int(match["h"]), int(match["m"] or 0), None),
            ),
            (
                re.compile(r"(?P<n>\d{1,3})(?:\.?ª|a\b)"),
                lambda match, before: re.sub(r"o\b", "a", say(int(match["n"]), "ordinal")),
            ),
            (re.compile(r"[nN]\.?[º°]\s?(?=\d)"), lambda match, before: "número "),
            (re.compile(r"p\.\s?(?=\d)"), lambda match, before: "página "),
        ),
        followers=frozenset({"h"}),
        links=frozenset({"de"}),
        opens=frozenset({"nº", "n.º", "Nº", "p."}),
    )
