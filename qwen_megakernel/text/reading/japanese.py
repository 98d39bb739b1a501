"""Japanese: single digits, fractions, and phone numbers with の between their groups."""

from qwen_megakernel.text.reading.language import Language
from qwen_megakernel.text.reading.surroundings import Found


class Japanese(Language):
    code = "ja"
    minus, plus, point = "マイナス", "プラス", "点"
    percent, per, to, number_sign = "{}パーセント", "毎", "から", "番号"
    by, over, rating, parts_form = "かける", "の", "{1}点満点中{0}点", "{bottom}分の{top}"
    score, power, chapter, verse = "対", "の{}乗", "章", "節"
    DIGITS = "ゼロ 一 二 三 四 五 六 七 八 九"
    UNITS = """mmHg: ミリメートルエイチジー; mAh: ミリアンペア時; °C ℃: 度
        dB: デシベル; x ×: 倍"""
    SCALES = "万: 万; 億: 億; 兆: 兆; 千: 千"
    CURRENCIES = "$ USD: ドル; £ GBP: ポンド; ₩ KRW: ウォン; CNY: 元"
    dates = "{month}月{day}日", "{year}年{month}月{day}日"
    times = "{h}時", "{h}時{m}分", "{s}秒"
    SYMBOLS = """&: アンド; =: イコール; ÷: 割る; ×: かける; °: 度; ≈ ~: 約; <: 小なり; >: 大なり
        ≤: 以下; ≥: 以上; ±: プラスマイナス; @: アットマーク; 〒: 郵便番号"""
    WEB = """.: ドット; @: アット; /: スラッシュ; -: ハイフン; _: アンダーバー; ?: クエスチョン
        #: シャープ; *: 米印; :: コロン"""
    space, money_joint, scale_joint, letters_follow = "", "", "", True

    RULES = r"""
    (?<=〒)\s?\d{3}-\d{4}(?!\d)|0\d{1,3}-\d{1,4}-\d{3,4}(?!\d) => .groups
    (?<=\d{3}[ぁ-ん])(?P<a>\d\d)-(?P<b>\d\d)(?![\d-]) => {a:spell}の{b:spell}
    \d{1,3}(?:-\d{1,4}){2}(?![\d-]) => .address
    """

    def _name_days_and_months(self) -> None:
        super()._name_days_and_months()
        self.weekdays |= {f"{day}曜": name for day, name in self.weekdays.items()}

    def read_groups(self, found: Found) -> str:
        return "の".join(map(self.spell, found.text.split("-")))

    def read_address(self, found: Found) -> str | None:
        """Return the words of block, house and flat, behind a place; None elsewhere."""
        last = found.before[-1:]
        is_place = found.text.count("-") == 2 and last.isalpha()
        is_place |= last in tuple("区町村市目島内") or found.rest.startswith("号")
        return "の".join(map(self.number, found.text.split("-"))) if is_place else None

    def cardinal(self, number: int, gender: str = "") -> str:
        return self.say(number) if number else self.digits[0]

    def ordinal(self, number: int) -> str:
        return f"{self.say(number)}番目"
