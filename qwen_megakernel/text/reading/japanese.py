"""Japanese: single digits, fractions, and phone numbers with の between their groups."""

from qwen_megakernel.text.reading.cldr import Noun
from qwen_megakernel.text.reading.language import Language
from qwen_megakernel.text.reading.surroundings import Found


class Japanese(Language):
    RULES = r"""
    (?:〒|便番号[は:：]?)\s?$ >> (?P<a>\d{3})-(?P<b>\d{4})(?!\d) => {a:spell}の{b:spell}
    (?<=\d)・(?=\d/\d) => と
    B(?P<n>\d)F{EDGE} => 地下{n}階
    (?P<n>[1-5]?\d)F{EDGE} => {n}階
    (?P<a>0\d{1,3})-(?P<b>\d{1,4})-(?P<c>\d{3,4})(?!\d) => {a:spell}の{b:spell}の{c:spell}
    (?<=\d{3}[ぁ-ん])(?P<a>\d\d)-(?P<b>\d\d)(?![\d-]) => {a:spell}の{b:spell}
    .*[限切日期]は? >> (?P<m>1[0-2]|[1-9])/(?P<d>[12]\d|3[01]|[1-9])(?![/.]?\d) => .date
    {NUM}{SPAN}(?P<of>[千万億]?(?:円|ドル|ユーロ|ポンド|元|ウォン))
        /(?P<what>時間|[月年週日人箱個本枚袋台回杯組株冊名泊食缶匹皿室件口]) => .price
    (?P<n>\d{1,4})/(?P<m>\d{1,4})\s?(?P<what>ページ|頁|枚|話|問|階) => {m}{what}中{n}{what}
    (?<=[円回錠gGlLmB])/(?=[日月年時週分秒]) => 毎
    [^\W\d_]$ >> (?P<a>\d{1,3})-(?P<b>\d{1,4})-(?P<c>\d{1,4})(?![\d-]) => {a}の{b}の{c}
    [区町村市目島内]$ >> (?P<a>\d{1,3})-(?P<b>\d{1,4})(?![\d-]) => {a}の{b}
    (?P<a>\d{1,3})-(?=(?:\d{1,4}-)?\d{1,4}号) => {a}の
    #(?P<n>[789]\d{3})(?!\d) => シャープ{n:spell}
    """

    def read_price(self, found: Found) -> str:
        one = "" if found["what"] in "月年週" else "一"
        return one + found["what"] + self._range(found, Noun(*[found["of"]] * 3))

    def cardinal(self, number: int, gender: str = "") -> str:
        return self.say(number) if number else self.digits[0]
