"""Japanese: single digits, fractions, and phone numbers with の between their groups."""

import re

from qwen_megakernel.text.reading.language import Language, Rules


class Japanese(Language):
    code = "ja"
    minus, plus, point = "マイナス", "プラス", "点"
    percent, per, to, number_sign = "{}パーセント", "毎", "から", "番号"
    by, over = "かける", "の"
    ratio = "対"
    DIGITS = "ゼロ 一 二 三 四 五 六 七 八 九"
    UNITS = "°C ℃: 度; h: 時間; min: 分; s: 秒; dB: デシベル; x ×: 倍"
    SCALES = "万: 万; 億: 億; 兆: 兆; 千: 千"
    CURRENCIES = "¥ ￥ JPY: 円; $ USD: ドル; € EUR: ユーロ; £ GBP: ポンド; ₩ KRW: ウォン; CNY: 元"
    dates = "{month}月{day}日", "{year}年{month}月{day}日"
    times = "{h}時", "{h}時{m}分", "{s}秒"
    SYMBOLS = """&: アンド; =: イコール; ÷: 割る; ×: かける; °: 度; ≈ ~: 約; <: 小なり; >: 大なり
        ≤: 以下; ≥: 以上; ±: プラスマイナス; @: アットマーク; 〒: 郵便番号"""
    WEB = """.: ドット; @: アット; /: スラッシュ; -: ハイフン; _: アンダーバー; ?: クエスチョン
        #: シャープ; :: コロン"""
    space, money_joint, scale_joint, letters_follow = "", "", "", True

    def rules(self) -> Rules:
        """Phone numbers (their hyphens are read の), and ranges."""
        groups = r"0\d{1,3}-\d{1,4}-\d{4}(?!\d)"
        yield (
            r"(?<=〒)\s?\d{3}-\d{4}(?!\d)",
            lambda match, _: "の".join(map(self.spell, match[0].split("-"))),
        )
        yield groups, lambda match, _: "の".join(map(self.spell, match[0].split("-")))
        yield r"\d{1,3}(?:-\d{1,4}){2}(?![\d-])", self.address
        yield r"(?<![A-Za-z])(?P<r>[IVX]{2,7})(?![A-Za-z0-9])", self.roman_alone

    def address(self, match: re.Match[str], before: str) -> str | None:
        """Return the words of block, house and flat, behind a place; None elsewhere."""
        is_place = match[0].count("-") == 2 and before[-1:].isalpha()
        is_place |= before[-1:] in ("区", "町", "村", "市", "目", "島", "内")
        return "の".join(map(self.number, match[0].split("-"))) if is_place else None

    def cardinal(self, number: int, gender: str = "") -> str:
        return self.say(number) if number else self.digits[0]

    def ordinal(self, number: int) -> str:
        return f"{self.say(number)}番目"

    def fraction(self, top: int, bottom: int) -> str:
        return f"{self.say(bottom)}分の{self.say(top)}"
