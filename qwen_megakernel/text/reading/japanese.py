"""Japanese: single digits, fractions, and phone numbers with の between their groups."""

from qwen_megakernel.text.reading.cldr import Noun
from qwen_megakernel.text.reading.language import Language
from qwen_megakernel.text.reading.surroundings import Found


class Japanese(Language):
    RULES = r"""
    (?<=〒)\s?(?P<a>\d{3})-(?P<b>\d{4})(?!\d) => {a:spell}の{b:spell}
    (?P<a>0\d{1,3})-(?P<b>\d{1,4})-(?P<c>\d{3,4})(?!\d) => {a:spell}の{b:spell}の{c:spell}
    (?<=\d{3}[ぁ-ん])(?P<a>\d\d)-(?P<b>\d\d)(?![\d-]) => {a:spell}の{b:spell}
    .*[限切日期]は? >> (?P<m>1[0-2]|[1-9])/(?P<d>[12]\d|3[01]|[1-9])(?![/.]?\d) => .date
    {NUM}{SPAN}(?P<of>[千万億]?(?:円|ドル|ユーロ|ポンド|元|ウォン))
        /(?P<what>時間|[月年週日人箱個本枚袋台回杯組株冊名泊食缶匹皿室件口]) => .price
    0(?P<n>[1-9])(?=[分秒]) => {n}
    (?P<n>\d{1,4})/(?P<m>\d{1,4})\s?(?P<what>ページ|頁|枚|話|問|階) => {m}{what}中{n}{what}
    (?<=[円回錠gGlLmB])/(?=[日月年時週分秒]) => 毎
    [^\W\d_]$ >> (?P<a>\d{1,3})-(?P<b>\d{1,4})-(?P<c>\d{1,4})(?![\d-]) => {a}の{b}の{c}
    [区町村市目島内]$ >> (?P<a>\d{1,3})-(?P<b>\d{1,4})(?![\d-]) => {a}の{b}
    (?P<a>\d{1,3})-(?P<b>\d{1,4})(?=号) => {a}の{b}
    (?P<a>\d{1,3})-(?P<b>\d{1,4})-(?P<c>\d{1,4})(?=号) => {a}の{b}の{c}
    #(?P<n>[789]\d{3})(?!\d) => シャープ{n:spell}
    """

    def _name_days_and_months(self) -> None:
        super()._name_days_and_months()
        self.weekdays |= {f"{day}曜": name for day, name in self.weekdays.items()}

    def read_price(self, found: Found) -> str:
        one = "" if found["what"] in "月年週" else "一"
        return one + found["what"] + self._range(found, Noun(*[found["of"]] * 3))

    def cardinal(self, number: int, gender: str = "") -> str:
        return self.say(number) if number else self.digits[0]

    def ordinal(self, number: int) -> str:
        return f"{self.say(number)}番目"
