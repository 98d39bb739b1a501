"""Chinese: its numerals, which num2words does not have, years by digits, and 2 before a counter."""

from __future__ import annotations

import re

from qwen_megakernel.text.reading.language import Language, currencies, nouns, table

_DIGITS = "零一二三四五六七八九"
_GROUPS = ("", "万", "亿", "万亿")
_COUNTERS = (
    "个|只|本|次|天|位|名|人|件|条|张|辆|台|杯|瓶|碗|周|小时|分钟|点|倍|种|家|间|元|块|米|公里|千克"
)
_UNITS = """
    km: 公里
    m: 米
    cm: 厘米
    mm: 毫米
    m² m2 ㎡: 平方米
    km²: 平方公里
    kg: 千克
    g: 克
    mg: 毫克
    t: 吨
    l L: 升
    ml mL: 毫升
    °C ℃: 摄氏度
    °: 度
    h: 小时
    min: 分钟
    s: 秒
    ms: 毫秒
    KB kB: KB
    MB: MB
    GB: GB
    TB: TB
    Hz: 赫兹
    kHz: 千赫
    MHz: 兆赫
    GHz: 吉赫
    W: 瓦
    kW: 千瓦
    V: 伏
    dB: 分贝
    x ×: 倍
"""
_CURRENCIES = """
    ¥ ￥ CNY RMB: 元
    $ USD: 美元
    € EUR: 欧元
    £ GBP: 英镑
    ₩ KRW: 韩元
    JPY: 日元
"""


def chinese() -> Language:
    """The tables of Chinese."""

    def group(number: int) -> str:
        """Up to four digits; a gap of zeros is one 零."""
        words = ""
        for place, name in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
            digit = number // place % 10
            if digit:
                words += _DIGITS[digit] + name
            elif words and number % place and words[-1] != "零":
                words += "零"
        return words

    def cardinal(number: int, gender: str = "") -> str:
        if not number:
            return _DIGITS[0]
        words, index = "", 0
        while number:
            number, low = divmod(number, 10_000)
            if low:
                gap = "零" if low < 1000 and number else ""
                words = gap + group(low) + _GROUPS[index] + words
            index += 1
        return words.removeprefix("一") if words.startswith("一十") else words

    def by_digits(text: str) -> str:
        return "".join(_DIGITS[int(digit)] for digit in text)

    def date(day: int, month: int, year: int | None, before: str) -> str:
        words = f"{cardinal(month)}月{cardinal(day)}日"
        return words if year is None else f"{by_digits(str(year))}年{words}"

    def time(hour: int, minute: int, second: int | None) -> str:
        words = f"{'两' if hour == 2 else cardinal(hour)}点"
        if minute or second:
            words += f"{'零' if 0 < minute < 10 else ''}{cardinal(minute)}分"
        return words + (f"{cardinal(second)}秒" if second else "")

    return Language(
        code="zh",
        cardinal=cardinal,
        ordinal=lambda number: f"第{cardinal(number)}",
        year=cardinal,
        digits=tuple(_DIGITS),
        minus="负",
        plus="加",
        point="点",
        months=(),
        month_forms={},
        date=date,
        time=time,
        units=nouns(_UNITS),
        per="每",
        currencies=currencies(_CURRENCIES),
        money_joint="",
        scales=nouns("万: 万\n亿: 亿\n千: 千\n百万: 百万\n千万: 千万"),
        scale_joint="",
        percent="百分之{}",
        to="到",
        ratio="比",
        fraction=lambda top, bottom: f"{cardinal(bottom)}分之{cardinal(top)}",
        abbreviations={},
        symbols=table(
            "&: 和\n+: 加\n=: 等于\n÷: 除以\n×: 乘\n°: 度\n≈ ~: 约\n<: 小于\n>: 大于\n≤: 不超过"
            "\n≥: 至少\n±: 正负\n@: 艾特"
        )
        | {"™": "", "®": ""},
        web=table(
            ".: 点\n@: 艾特\n/: 斜杠\n-: 杠\n_: 下划线\n?: 问号\n=: 等于\n&: 和\n#: 井号\n+: 加"
            "\n:: 冒号"
        ),
        number_sign="第",
        extra=(
            (re.compile(r"(?P<y>[12]\d{3})(?=年)"), lambda match, before: by_digits(match["y"])),
            (
                re.compile(r"1[3-9]\d{9}(?!\d)"),
                lambda match, before: by_digits(match.group()).replace("一", "幺"),
            ),
            (re.compile(rf"2(?=(?:{_COUNTERS}))"), lambda match, before: "两"),
            (
                re.compile(r"(?P<a>\d{1,9})[~～](?=\d)"),
                lambda match, before: f"{cardinal(int(match['a']))}到",
            ),
        ),
        letters_follow=True,
        space="",
    )
