"""Spanish: the genders of numerals, ordinals such as "1.º" and "1er", and hours after noon."""

from qwen_megakernel.text.reading.romance import Romance


class Spanish(Romance):
    RULES = r"""
    1(?:\.?[º°]|ro)(?=\sde\s) => primero
    (?P<n>[13])\.?er(?!\w) => {n:before_noun}
    (?P<n>\d{0,2}[13])\.?[º°](?=\s(?:piso|puesto|lugar|premio|año|grado|cumpleaños|aniversario|día
        |capítulo|trim\.|trimestre|curso|mes|siglo|artículo)) => {n:before_noun}
    c/(?=\s[A-ZÁÉÍÓÚÑ]) => calle
    (?:\#|No\.)\s?(?P<a>\d{1,3})-(?P<b>\d{1,3})(?![\d-]) => número {a} {b}
    (?P<n>[2-9])\shab\. => {n} habitaciones
    el|al|del|los|y >> (?P<n>\d{1,3})['′](?!\w) => {n}
    &(?=\s(?:[Hh]i(?![aeou])|[Ii](?![aeou]))) => e
    """

    def before_noun(self, number: int) -> str:
        return self.ordinal(number).removesuffix("o") if number % 10 in (1, 3) else ""

    def time(self, hour: int, minute: int, second: int | None) -> str:
        """Return a time of day; "horas" follows a full hour above 12, and midnight."""
        words = self.cardinal(hour, "f")
        words += f" y {self.say(minute)}" if minute else " horas" * (hour > 12 or not hour)
        return words + (f" con {self.say(second)} segundos" if second else "")
