"""French: 15h30, 1er, and centuries in Roman numerals."""

import re

from qwen_megakernel.text.reading.romance import Romance
from qwen_megakernel.text.reading.surroundings import Found
from qwen_megakernel.text.reading.words import Noun, words

_TWO_CENTURIES = re.compile(r"[IVX]+(?:er?|ᵉʳ?)(?:[-–]|,\s|\s(?:et|ou|au|à)\s)\S+\s$")


class French(Romance):
    code = "fr"
    minus, plus, point = "moins", "plus", "virgule"
    percent, per, to, number_sign = "pour cent", "par", "à", "numéro"
    by, over, rating, groups_with_spaces = "sur", "sur", "{} sur {}", True
    power = " puissance {}"
    due = words("le du au")
    ENDINGS = r"f: \bun$ une"
    ordinal_marks = "er|ère|re|ème|e|nd|nde|ᵉ|ᵉʳ"
    BEFORE_DIGITS = r"p\.\s?: page"
    FEMININE = """tion sion té ette ance ence ure ée ille aine euse ade esse elle gousse tranche
        feuille pincée boîte cuillère chambre place table porte bouteille"""
    MASCULINE, last_ordinal_of_rulers = "-", 1
    PARTS = "2: demi; 3: tiers; 4: quart"
    UNITS = """mAh: milliampère-heure, milliampères-heure
        Ko ko: kilo-octet; kWh: kilowattheure; dB: décibel; x × fois: fois, fois, f
        année années: année, f; cuillère cuillères: cuillère, f
        personne personnes pers: personne, f
        c.à.s. c.~à~soupe càs CàS cuil.~à~soupe cs: cuillère à soupe, cuillères à soupe, f
        c.à.c. c.~à~café càc CàC cuil.~à~café cc: cuillère à café, cuillères à café, f
        page pages: page, f; pt pts: point
        cp: comprimé; bpm: battement par minute, battements par minute"""
    SCALES = "million millions M: million; milliard milliards Md Mds: milliard"
    MONEY_SCALES = "k: mille, mille"
    CURRENCIES = """€ EUR: euro / centime; $ $US US$ USD: dollar / cent
        £ GBP: livre, f / penny, pence; ¥ JPY: yen; CHF: franc suisse, francs suisses / centime
        ₽ RUB: rouble / kopeck"""
    money_joint, says_cents, scale_joint = " ", False, " d'"
    SHORT_MONTHS = "janv/jan févr/fév - avr - - juil - sept/sep oct nov déc"
    first_day, halves, degree_is_ordinal = "premier", ("demi", "demie"), False
    times = "{h:f} {hours}", "{h:f} {hours} {m:f}", " et {s:f} secondes"
    ABBREVIATIONS = """p.a.: par an; temp.: température; pdt: pendant; bât.: bâtiment; al.: alinéa
        c/o: chez; n/a: non applicable; A/R: aller-retour
        M.: monsieur; MM.: messieurs; Mme: madame; Mmes: mesdames; Mlle: mademoiselle
        Me: maître; Dr Dr.: docteur; Pr Pr.: professeur; St: saint; Ste: sainte; etc.: et cetera
        av.~J.-C.: avant Jésus-Christ; apr.~J.-C. ap.~J.-C.: après Jésus-Christ; p.ex.: par exemple
        c.-à-d.: c'est-à-dire; env.: environ; av.: avenue; bd bd.: boulevard; pl.: place
        Mgr: monseigneur; hab.: habitants; tél. tel.: téléphone
        vol.: volume; chap.: chapitre; art.: article; fig.: figure; min.: minimum; ét.: étage
        th.: thermostat; max.: maximum; incl.: inclus"""
    final = words("etc. p.a.")
    starters = words("""Ainsi Alors Après Au Aussi Avec Bien Ce Cela Ces Cette Dans Des Donc Elle
        Elles Enfin Ensuite Et Il Ils Je Les Mais Merci Nous On Pour Puis Quand Si Un Une Vous""")
    SYMBOLS = """&: et; @: arobase; =: égale; ÷: divisé par; ×: fois; °: degrés; ≈ ~: environ
        <: inférieur à; >: supérieur à; ≤: au plus; ≥: au moins; ±: plus ou moins; §: paragraphe
        ©: copyright"""
    WEB = """.: point; /: slash; -: tiret; _: tiret bas; ?: point d'interrogation; #: dièse
        *: étoile; :: deux-points"""
    opens, followers = words("p. L. R. D. av. apr. ap. h"), words("h j siècle")
    centuries = words("s siècle siècles République république arrondissement")

    RULES = r"""
    {HOUR}\s?h(?!\s?\d\d?\s?(?:m|['′]))(?:\s?{MINUTE})?(?!\w) => .time
    1(?:ère|re)(?!\w) => première
    (?P<n>\d{1,3})\s?j(?:\.|(?!['’\w])) => {n:counted:jour}
    fois|\d+\s?x >> /j(?!['’\w]) => ~par jour
    [lrd]\. >> (?P<a>\d{1,4})-(?P<b>\d{1,3})(?![\d-]) => {a} tiret {b}
    av\.(?=\s(?:1\d{3}|20\d\d)(?!\w)) => avant
    (?P<m>[12])\s?m\s?(?P<c>\d\d)(?!\w) => {m:counted:m} {c}
    (?:[ivx]+(?:er?|ᵉʳ?)[-–])?[ivx]+(?:er?|ᵉʳ?) >> s\. => .century
    """

    def agreeing(self, said: str, before: str) -> str:
        return re.sub(r"\bd'(?=[^\Waeiouyhéè])", "de ", said)  # "millions de dollars"

    def plural(self, number: int) -> int:
        """Return the form of a noun after a number: 0 and 1 take the singular."""
        return 0 if number < 2 else 2

    def read_century(self, found: Found) -> str:
        """Return "siècle", or its plural behind two numerals, as in "XVIIe et XVIIIe s."."""
        return "siècle" + "s" * bool(_TWO_CENTURIES.search(found.past)) + self.kept_point(found)

    def roman(self, number: int, found: Found, following: str) -> str | None:
        ending = re.sub(".*[IVXLCDM]", "", found.text)
        if ending == "re":
            return "première"
        is_ordinal = ending in ("e", "ᵉ") and {*found["r"]} <= {*"IVX"}
        if is_ordinal or (following in self.centuries and ending != "."):
            return self.ordinal(number)
        return super().roman(number, found, following) if ending in ("", ".", "er") else None

    def gender_after(self, number: str, noun: str, before: str) -> str:
        return super().gender_after(number, noun.removesuffix("s"), before)

    def fraction_of(self, top: int, bottom: int, noun: Noun) -> str:
        """Return words such as "une demi-tasse" and "trois quarts de tasse"."""
        if (top, bottom) == (1, 2):
            return f"{'une' if noun.gender == 'f' else 'un'} demi-{noun.one}"
        joint = " d'" if noun.one[0] in "aeiouéh" else " de "
        return self.fraction(top, bottom) + joint + noun.one
