"""Japanese: its numerals, and numbers in Latin script before Japanese counters."""

from __future__ import annotations

import re

from qwen_megakernel.text.reading.language import Language, Numerals, currencies, nouns, table

_DIGITS = ("ゼロ", *"一二三四五六七八九")
_UNITS = """
    km: キロメートル
    m: メートル
    cm: センチメートル
    mm: ミリメートル
    m² m2 ㎡: 平方メートル
    km²: 平方キロメートル
    kg: キログラム
    g: グラム
    mg: ミリグラム
    t: トン
    l L: リットル
    ml mL: ミリリットル
    °C ℃: 度
    °: 度
    h: 時間
    min: 分
    s: 秒
    ms: ミリ秒
    KB kB: キロバイト
    MB: メガバイト
    GB: ギガバイト
    TB: テラバイト
    Hz: ヘルツ
    kHz: キロヘルツ
    MHz: メガヘルツ
    GHz: ギガヘルツ
    W: ワット
    kW: キロワット
    V: ボルト
    dB: デシベル
    x ×: 倍
"""
_CURRENCIES = """
    ¥ ￥ JPY: 円
    $ USD: ドル
    € EUR: ユーロ
    £ GBP: ポンド
    ₩ KRW: ウォン
    CNY: 元
"""


def japanese() -> Language:
    """The tables of Japanese."""
    say = Numerals("ja")

    def cardinal(number: int, gender: str = "") -> str:
        return say(number) if number else "ゼロ"

    def by_digits(text: str) -> str:
        return "".join(_DIGITS[int(digit)] for digit in text)

    def date(day: int, month: int, year: int | None, before: str) -> str:
        words = f"{say(month)}月{say(day)}日"
        return words if year is None else f"{say(year)}年{words}"

    def time(hour: int, minute: int, second: int | None) -> str:
        words = f"{cardinal(hour)}時" + (f"{cardinal(minute)}分" if minute or second else "")
        return words + (f"{cardinal(second)}秒" if second else "")

    return Language(
        code="ja",
        cardinal=cardinal,
        ordinal=lambda number: f"{say(number)}番目",
        year=say,
        digits=_DIGITS,
        minus="マイナス",
        plus="プラス",
        point="点",
        months=(),
        month_forms={},
        date=date,
        time=time,
        units=nouns(_UNITS),
        per="毎",
        currencies=currencies(_CURRENCIES),
        money_joint="",
        scales=nouns("万: 万\n億: 億\n兆: 兆\n千: 千"),
        scale_joint="",
        percent="{}パーセント",
        to="から",
        ratio="対",
        fraction=lambda top, bottom: f"{say(bottom)}分の{say(top)}",
        abbreviations={},
        symbols=table(
            "&: アンド\n+: プラス\n=: イコール\n÷: 割る\n×: かける\n°: 度\n≈ ~: 約\n<: 小なり"
            "\n>: 大なり\n≤: 以下\n≥: 以上\n±: プラスマイナス\n@: アットマーク"
        )
        | {"™": "", "®": ""},
        web=table(
            ".: ドット\n@: アット\n/: スラッシュ\n-: ハイフン\n_: アンダーバー\n?: クエスチョン"
            "\n=: イコール\n&: アンド\n#: シャープ\n+: プラス\n:: コロン"
        ),
        number_sign="番号",
        extra=(
            (
                re.compile(r"0\d{1,3}-\d{1,4}-\d{4}(?!\d)"),
                lambda match, before: "の".join(map(by_digits, match.group().split("-"))),
            ),
            (
                re.compile(r"(?P<a>\d{1,9})[~〜～](?=\d)"),
                lambda match, before: f"{cardinal(int(match['a']))}から",
            ),
        ),
        letters_follow=True,
        space="",
    )
