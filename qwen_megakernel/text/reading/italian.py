"""Italian: "un" and "una", ordinals such as "1º", and the plurals of fractions."""

import re

from qwen_megakernel.text.reading.romance import Romance
from qwen_megakernel.text.reading.surroundings import Found
from qwen_megakernel.text.reading.words import Noun, words

_CENTURIES = ("secolo", "millennio", "secoli", "guerra")  # before an ordinal


class Italian(Romance):
    code = "it"
    minus, plus, point = "meno", "più", "virgola"
    percent, per, to, number_sign = "per cento", "per", "a", "numero"
    by, over, rating, power = "per", "su", "{} su {}", " alla {}"
    due = words("il dal al del")
    ENDINGS = "f: ^uno$ una; c: ^uno$ un"
    last_ordinal_of_rulers = 999
    centuries, feminine_articles = words("secolo sec millennio"), words("all dall")
    clock_words = words("alle dalle delle sulle ore le")
    ordinal_marks, feminine_marks = "º|°|o", r"ª|a\b"
    BEFORE_DIGITS = r"p\.\s?: pagina"
    FEMININE, MASCULINE = "a ione tà", "o ore ale"
    PARTS = "2: mezzo"
    noun_gender, plural_ending = "c", ""
    UNITS = """p.p.: punto percentuale, punti percentuali; mAh: milliampere ora
        t: tonnellata, tonnellate, f; sec: secondo, secondi; kHz: chilohertz; kW: chilowatt
        dB: decibel; x × volta volte: volta, volte, f; cucchiaio cucchiai: cucchiaio, cucchiai
        cucchiaino cucchiaini: cucchiaino, cucchiaini; bicchiere bicchieri: bicchiere, bicchieri
        persona persone: persona, persone, f; cpr: compressa, compresse, f; gg: giorno, giorni
        die: die, die
        bpm: battito al minuto, battiti al minuto
        mq: metro quadrato, metri quadrati; mc: metro cubo, metri cubi
        mmHg: millimetro di mercurio, millimetri di mercurio"""
    SCALES = "milione milioni mln: milione, milioni; miliardo miliardi mld: miliardo, miliardi"
    MONEY_SCALES = "M: milione, milioni; k: mila, mila"
    CURRENCIES = """€ EUR: euro / centesimo, centesimi
        $ USD: dollaro, dollari / centesimo, centesimi; £ GBP: sterlina, sterline, f / penny, pence
        ¥ JPY: yen; CHF: franco svizzero, franchi svizzeri / centesimo, centesimi"""
    money_joint, scale_joint = " e ", " di "
    SHORT_MONTHS = "gen feb mar apr mag giu lug ago set/sett ott nov dic"
    first_day = "primo"
    times = "{h:f}", "{h:f} e {m}", " e {s} secondi"
    ABBREVIATIONS = """p.a.: per anno; P.zza: piazza; V.le: viale; C.so: corso; L.go: largo
        c/o: presso; c/c: conto corrente; n/a: non applicabile
        Sig.: signor; Sig.ra: signora; Sigg.: signori; Dott. Dr.: dottor
        Dott.ssa: dottoressa; Prof.: professor; Prof.ssa: professoressa; Avv.: avvocato
        Ing.: ingegner; ecc. etc.: eccetera; p.es. p.~es.: per esempio; ca.: circa; pag.: pagina
        pagg.: pagine; vol.: volume; cap.: capitolo; fig.: figura; art.: articolo; tel.: telefono
        n.: numero; sec.: secolo; secc.: secoli; int.: interno; S.: San; max.: massimo/a
        min.: minimo/a; incl.: incluso/a; temp.: temperatura; vel.: velocità; a.C.: avanti Cristo
        d.C.: dopo Cristo; lett.: lettera; bin.: binario; D.Lgs.: decreto legislativo"""
    final = words("ecc. etc.")
    starters = words("""Allora Anche Adesso Così Con Dopo Egli Gli Grazie In Invece Io Lei Loro Lui
        Ma Noi Ora Per Perché Poi Quando Quella Quello Questa Questo Se Un Una Voi È""")
    SYMBOLS = """&: e; @: chiocciola; =: uguale; ÷: diviso; ×: per; °: gradi; ≈ ~: circa
        <: minore di; >: maggiore di; ≤: al massimo; ≥: almeno; ±: più o meno; §: paragrafo
        ©: copyright"""
    WEB = """.: punto; /: barra; -: trattino; _: trattino basso; ?: punto interrogativo
        #: cancelletto; *: asterisco; :: due punti"""
    opens = words("p. n.")

    RULES = r"""
    {HOUR}\s?h\s?{MINUTE}(?!\w|['′]) => .time
    all?|dall?|[dn]el|il|sul >> (?P<n>\d{1,3})['′](?!\w) => {n:ordinal}
    """

    def say(self, number: int, to: str = "cardinal", **options: str) -> str:
        return re.sub(r"\Btre\b", "tré", super().say(number, to, **options))

    def roman(self, number: int, found: Found, following: str) -> str | None:
        if following in self.centuries or self.numbering(found) in _CENTURIES:
            return self.ordinal(number)
        return super().roman(number, found, following)

    def count(self, whole: str, decimals: str, noun: Noun, first: str = "") -> str:
        return re.sub(r"\buna (?=[aeiou])", "un'", super().count(whole, decimals, noun, first))

    def parts_of(self, part: str) -> str:
        """Return the plural of a denominator's name."""
        return part[:-1] + "i"
