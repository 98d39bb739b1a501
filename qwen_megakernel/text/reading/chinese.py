"""Chinese: numerals (num2words has none), years digit by digit, and 2 before a counter."""

from qwen_megakernel.text.reading.language import Language
from qwen_megakernel.text.reading.surroundings import Found

_GROUPS = ("", "万", "亿", "万亿")
_PLACES = ((1000, "千"), (100, "百"), (10, "十"), (1, ""))


class Chinese(Language):
    counters = (
        "个|只|本|次|天|位|名|人|件|条|张|辆|台|杯|瓶|碗|周|小时|分钟|点|倍|种|家|间|元|块|米|公里|千克"
        "|片|年|汤匙|茶匙|站|颗|粒|厅"
    )

    RULES = r"""
    (?P<n>[12]\d{3})(?=年|\s?[-~～至到]\s?[12]\d{3}年) => {n:spell}
    (?P<n>\d{3,4})(?=室|房间)|(?P<m>1[3-9]\d{9})(?!\d) => {n:spell_phone}{m:spell_phone}
    \d{3,6}(?![\d:-]|[.,]\d) => .dialled
    (?P<a>[1-9])\.?(?P<b>\d)(?=折) => {a}{b}
    (?<=[元次])/(?=分|月|年|天|小时|人|次|平|斤|个|晚) => 每
    (?!.*第$).* >> 2(?=(?:{COUNTERS})) => 两
    """

    def spell_phone(self, group: str) -> str:
        return self.spell(group).replace("一", "幺")

    def read_dialled(self, found: Found) -> str | None:
        """Return the digits of a short number behind "call"; None: it may be an amount."""
        text = found.before + found.match.string[: found.match.start()]
        calls = (
            ("打", "叫", "拨")
            if found.text in ("110", "114", "119", "120", "122")
            else ("拨打", "拨", "致电")
        )
        return self.spell_phone(found.text) if text.endswith(calls) else None

    def cardinal(self, number: int, gender: str = "") -> str:
        """Return the words of a number, which are made for groups of four digits."""
        if not number:
            return self.digits[0]
        words, index = "", 0
        while number:
            number, low = divmod(number, 10_000)
            if low:
                gap = self.digits[0] if low < 1000 and number else ""
                words = gap + self._group(low) + _GROUPS[index] + words
            index += 1
        return words.removeprefix("一") if words.startswith("一十") else words

    def _group(self, number: int) -> str:
        """Return the words of up to four digits; one 零 stands for several zeros in a row."""
        words = ""
        for place, name in _PLACES:
            digit = number // place % 10
            if digit:
                words += self.digits[digit] + name
            elif words and number % place and words[-1] != "零":
                words += "零"
        return words

    def ordinal(self, number: int) -> str:
        return f"第{self.cardinal(number)}"

    def dated_year(self, number: int) -> str:
        """Return the year of a date, digit by digit."""
        return self.spell(str(number))

    def time(self, hour: int, minute: int, second: int | None) -> str:
        words = f"{'两' if hour == 2 else self.cardinal(hour)}点"
        if minute or second:
            words += f"{'零' if 0 < minute < 10 else ''}{self.cardinal(minute)}分"
        return words + (f"{self.cardinal(second)}秒" if second else "")
