"""The rules for numbers, and for what is counted: money, units, fractions, dimensions."""

import re

from qwen_megakernel.text.reading.cldr import Noun
from qwen_megakernel.text.reading.codes import NUMBER_MARK
from qwen_megakernel.text.reading.roman_numerals import RomanNumerals
from qwen_megakernel.text.reading.surroundings import OPENING, Found
from qwen_megakernel.text.reading.tables import Currency, words

_THOUSANDS = ("mil", "mille", "mila")  # before the name of a currency, without a joint
_SECTION = re.compile(r"\d+(?:\.\d+)+")  # "art. 12.1"
# The department, the chamber or the series before the number of a file, or the kind of a law.
FILE = re.compile(
    r"(?<![^\W_])(?:(?:\d{1,3}|[IVX]+) [A-Z][A-Za-z]{0,3} |[CT]-|(?i:Az\.|L\.|d\.?\s?l(?:gs)?\."
    r"|d\.?p\.?r\.|legge|ley|lei|loi|decreto(?:[\s-]\w+)?|dire[tc]{1,2}iva) )$"
)
_DOSES = words("mg g kg ml mL cl l L µg min Min. h мг г кг мл л мин мин. ч таб табл.")


class Quantities(RomanNumerals):
    """The rules of numbers and of what is counted."""

    def _sign(self, found: Found) -> str:
        """Return the words of the sign before a number, followed by a space."""
        sign = found["sign"].strip().replace("-", "−")
        said = self.plus if sign == "+" else self.symbols.get(sign, "")
        return said + self.space if sign else ""

    def _range(self, found: Found, noun: Noun) -> str:
        """Return the words of a number or a range, and of the noun that is counted."""
        (whole, decimals), first = self.digits_of(found), ""
        if found["tow"] + found["tod"]:
            first = self.number(whole, decimals, noun.gender) + self.between_ends
            whole, decimals = self.digits_of(found, "to")
        return self._sign(found) + self.count(whole, decimals, noun, first)

    # ---- numbers ---------------------------------------------------------------------------------

    def read_number(self, found: Found) -> str:
        whole, decimals = self.digits_of(found)
        is_section = self.decimal == "," and _SECTION.fullmatch(found.text)
        if is_section and self.numbering(found) in self.numbered:
            return self.version(found.text)
        if self._is_code(found, whole):
            return self.spell(whole)
        if self.is_year(found["w"]) and not decimals and not found["sign"]:
            return self.year(int(whole))
        return self._sign(found) + self.number(whole, decimals, self._after_article(found))

    def _after_article(self, found: Found) -> str:
        """Return the gender of a number behind an article such as "las"; "": of its own."""
        return "f" if found.word in self.feminine_articles else ""

    def read_counted(self, found: Found) -> str | None:
        """Return the words of a number before a noun that asks for another form of it."""
        whole, decimals = self.digits_of(found)
        is_numbered = found.word in self.numbered | {self.number_sign}
        if decimals or is_numbered or NUMBER_MARK.search(found.before):
            return None
        gender = self._after_article(found) or self.gender_after(whole, found["noun"], found.before)
        return self.number(whole, "", gender) if gender else None

    def read_scaled(self, found: Found) -> str:
        """Return the words of a number such as "1,3 Mio."."""
        return self._range(found, self.scales[found["scale"]]) + self.kept_point(found)

    def read_ordinal(self, found: Found) -> str | None:
        digits = re.sub(r"\D", "", found["w"])
        return self.ordinal(int(digits)) if len(digits) < 7 else None

    def read_fraction(self, found: Found) -> str | None:
        is_file = len(found["d"]) == 2 and FILE.search(found.past)
        is_file = is_file or NUMBER_MARK.search(found.past)
        if not found["w"] and is_file:  # of a file: "no. 4711/26", "12 O 345/23"
            return self._joint(self.slash).join(self.number(found[each]) for each in "nd")
        top, bottom = int(found["n"]), int(found["d"])
        noun = self.units.get(found["unit"])
        if found["w"]:
            return self.mixed(found["w"], top, bottom, noun) + self.kept_point(found)
        least = 20 if noun else 4 if top < 10 else 1
        if top > bottom > least:  # a reading such as 118/76, a beat, or a house's number
            name = self.space + self.form(found["d"], "", noun) if noun else ""
            last = self.number(found["d"]) + name
            said = self.number(found["n"]) + self._joint(self.over) + last
            return said + self.kept_point(found)
        said = self.fraction_of(top, bottom, noun) if noun else self.fraction(top, bottom)
        return said + self.kept_point(found)

    def read_rated(self, found: Found) -> str:
        form = self.position or self.rating if found["at"] else self.rating
        return form.format(self.number(*self.digits_of(found)), self.number(found["b"]))

    def read_list(self, found: Found) -> str | None:
        """Return the words of numbers with commas but no spaces between them, such as "1,2,3"."""
        numbers = found.text.split(",")
        lengths = {len(number) for number in numbers[1:-1]}
        if len(numbers[-1]) == 3 and lengths in ({2}, {3}) and numbers[0][0] != "0":
            return None  # groups of one number
        return ("、" if not self.space else ", ").join(map(self.number, numbers))

    def read_size(self, found: Found) -> str:
        """Return the words of dimensions such as "3 x 4 x 5 cm"."""
        sizes = re.sub(rf"[{self.group_mark}](?=\d{{3}}(?!\d))", "", found["sizes"])
        parts = [(each[1], each[2]) for each in re.finditer(r"(\d+)[.,]?(\d*)", sizes)]
        is_count = len(parts) == 2 and found["unit"] in _DOSES and found["unit"] in self.units
        by = (self.count_joint or self.symbols["×"]) if is_count else self.by
        noun = self.units.get("x")
        gender = noun.gender if noun and is_count and by == noun.many else ""  # "duas vezes"
        numbers = [self.number(*parts[0], gender), *(self.number(*part) for part in parts[1:])]
        said = self._joint(by).join(numbers)
        if not found["unit"]:
            return said
        unit = self.form(*parts[-1], self.units[found["unit"]])
        return said + self.space + unit + self.read_per(found) + self.kept_point(found)

    # ---- money and units -------------------------------------------------------------------------

    def read_money(self, found: Found) -> str:
        currency = self.currency_names.get(found["code"]) or self.currencies[found["sym"]]
        unit, cent = self.noun_after(currency.unit, found.before), currency.cent
        whole, cents = self.digits_of(found)
        if found["scale"]:
            scale = (self.scales | self.money_scales)[found["scale"]]
            joint = self.space if scale.one in _THOUSANDS else self.scale_joint
            said = self._range(found, scale) + joint + unit.many
        elif found["tow"] + found["tod"] or len(cents) != 2:
            said = self._range(found, unit)
        else:
            cent = self.noun_after(cent, found.before) if cent else None
            said = self._sign(found) + self.money(whole, cents, Currency(unit, cent))
        return said + self.read_per(found) + self.kept_point(found)

    def read_currency(self, found: Found) -> str | None:
        """Return the name of a currency whose sign stands alone, as in "prices in €"."""
        sign, is_alone = found["sym"], not found.last.strip(OPENING + " /")
        if sign not in self.currencies or not is_alone or (sign == "$" and not found.before):
            return None
        return self.currencies[sign].unit.many

    def read_per(self, found: Found) -> str:
        """Return the words of what stands behind a slash: "per hour"; "" if nothing does."""
        if not found["per"]:
            return ""
        noun = self.units.get(found["per"]) or self.units.get(f"{found['per']}.")
        name = noun.one if noun else self.abbreviations.get(f"{found['per']}.", found["per"])
        return self._joint(self.per) + name

    def read_unit(self, found: Found) -> str | None:
        noun = self.units[found["unit"]]
        if found.word in self.numbered and found["unit"] in (noun.one, noun.few, noun.many):
            return None  # "chapter 1 page 3" counts no pages
        if found["gap"] == "-" and self.has_compounds and not found["tow"]:
            return self._sign(found) + self.number(*self.digits_of(found)) + "-" + noun.one
        said = self._range(found, self.noun_after(noun, found.before)) + self.read_per(found)
        return said + self.kept_point(found)

    def read_at_kilometer(self, found: Found) -> str | None:
        unit = self.units.get("km")  # which Russian writes in its own letters
        if not unit:
            return None
        return (unit.many if found.word in ("les", "los", "os", "i") else unit.one) + " "
