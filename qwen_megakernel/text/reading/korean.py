"""Korean: Sino-Korean numerals, and the native ones before hours and what is counted."""

from __future__ import annotations

import re

from qwen_megakernel.text.reading.language import Language, Numerals, currencies, nouns, table

_TENS = ("", "열", "스물", "서른", "마흔", "쉰", "예순", "일흔", "여든", "아흔")
_ONES = ("", "한", "두", "세", "네", "다섯", "여섯", "일곱", "여덟", "아홉")
_COUNTERS = "시간|시|명|살|개|마리|잔|병|권|대|번째|사람|가지|달|송이|채|켤레|곳"
_UNITS = """
    km: 킬로미터
    m: 미터
    cm: 센티미터
    mm: 밀리미터
    m² m2 ㎡: 제곱미터
    km²: 제곱킬로미터
    kg: 킬로그램
    g: 그램
    mg: 밀리그램
    t: 톤
    l L: 리터
    ml mL: 밀리리터
    °C ℃: 도
    °: 도
    h: 시간
    min: 분
    s: 초
    ms: 밀리초
    KB kB: 킬로바이트
    MB: 메가바이트
    GB: 기가바이트
    TB: 테라바이트
    Hz: 헤르츠
    kHz: 킬로헤르츠
    MHz: 메가헤르츠
    GHz: 기가헤르츠
    W: 와트
    kW: 킬로와트
    V: 볼트
    dB: 데시벨
    x ×: 배
"""
_CURRENCIES = """
    ₩ KRW: 원
    $ USD: 달러 / 센트
    € EUR: 유로 / 센트
    £ GBP: 파운드 / 펜스
    ¥ JPY: 엔
"""


def korean() -> Language:
    """The tables of Korean."""
    say = Numerals("ko")

    def native(number: int) -> str:
        if number == 20:
            return "스무"
        return _TENS[number // 10] + _ONES[number % 10] if 0 < number < 100 else say(number)

    def counted(match: re.Match[str], before: str) -> str | None:
        number = int(match["n"])
        if match["what"] == "시" and not 1 <= number <= 12:
            return f"{say(number)} 시"
        return f"{native(number)} {match['what']}"

    def time(hour: int, minute: int, second: int | None) -> str:
        words = f"{native(hour) if 1 <= hour <= 12 else say(hour)} 시"
        words += f" {say(minute)} 분" if minute or second else ""
        return words + (f" {say(second)} 초" if second else "")

    def month(number: int) -> str:
        return {6: "유월", 10: "시월"}.get(number, f"{say(number)}월")

    def date(day: int, month_number: int, year: int | None, before: str) -> str:
        words = f"{month(month_number)} {say(day)}일"
        return words if year is None else f"{say(year)}년 {words}"

    return Language(
        code="ko",
        cardinal=lambda number, gender: say(number),
        ordinal=lambda number: f"{native(number) if number > 1 else '첫'} 번째",
        year=say,
        digits=("공", *"일이삼사오육칠팔구"),
        minus="마이너스",
        plus="플러스",
        point="점",
        months=tuple(month(number) for number in range(1, 13)),
        month_forms={},
        date=date,
        time=time,
        units=nouns(_UNITS),
        per="퍼",
        currencies=currencies(_CURRENCIES),
        money_joint=" ",
        scales=nouns("만: 만\n억: 억\n조: 조\n천: 천"),
        percent="퍼센트",
        to="에서",
        fraction=lambda top, bottom: f"{say(bottom)}분의 {say(top)}",
        abbreviations={},
        symbols=table(
            "&: 앤드\n@: 골뱅이\n+: 더하기\n=: 는\n%: 퍼센트\n÷: 나누기\n×: 곱하기\n°: 도"
            "\n≈ ~: 약\n±: 플러스 마이너스\n≤: 이하\n≥: 이상"
        )
        | {"™": "", "®": "", "/": " "},
        web=table(
            ".: 점\n@: 골뱅이\n/: 슬래시\n-: 하이픈\n_: 밑줄\n?: 물음표\n=: 등호\n&: 앤드"
            "\n#: 샵\n+: 플러스\n:: 콜론"
        ),
        number_sign="번호",
        extra=(
            (
                re.compile(r"(?P<y>\d{4})년\s?(?P<m>1[0-2]|[1-9])월\s?(?P<d>[0-3]?\d)일"),
                lambda match, before: date(
                    int(match["d"]), int(match["m"]), int(match["y"]), before
                ),
            ),
            (re.compile(r"(?P<m>1[0-2]|[1-9])월"), lambda match, before: month(int(match["m"]))),
            (re.compile(rf"(?P<n>\d{{1,3}})\s?(?P<what>{_COUNTERS})"), counted),
            (
                re.compile(r"010-\d{4}-\d{4}"),
                lambda match, before: ", ".join(
                    "".join("공일이삼사오육칠팔구"[int(digit)] for digit in group)
                    for group in match.group().split("-")
                ),
            ),
        ),
        letters_follow=True,
    )
