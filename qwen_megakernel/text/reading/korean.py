"""Korean: native numerals before hours and counters, and Sino-Korean ones elsewhere."""

import re

from qwen_megakernel.text.reading.language import Language, Rules

_TENS = ("", "열", "스물", "서른", "마흔", "쉰", "예순", "일흔", "여든", "아흔")
_ONES = ("", "한", "두", "세", "네", "다섯", "여섯", "일곱", "여덟", "아홉")
_COUNTERS = (
    "시간|시|명|살|개(?!월)|마리|잔|병|권|대|번째|사람|가지|달(?!러)|송이|채|켤레|곳|알|정(?!도)|큰술|작은술|판|자루"
    "|벌|그루|봉지|팩|모금|박스|상자|조각|스푼|컵|배(?!럴)|그릇|접시"
)


class Korean(Language):
    code = "ko"
    minus, plus, point = "마이너스", "플러스", "점"
    percent, per, to, number_sign = "퍼센트", "퍼", "에서", "번호"
    by, over = "곱하기", "에"
    to_is_suffix, ratio = True, "대"
    parts_form = "{bottom}분의 {top}"
    DIGITS = "공 일 이 삼 사 오 육 칠 팔 구"
    UNITS = "°C ℃: 도; h: 시간; min: 분; s: 초; dB: 데시벨; x ×: 배"
    SCALES = "만: 만; 억: 억; 조: 조; 천: 천"
    CURRENCIES = """₩ KRW: 원; $ USD: 달러 / 센트; € EUR: 유로 / 센트; £ GBP: 파운드 / 펜스
        ¥ JPY: 엔"""
    money_joint = " "
    dates = "{month} {day}일", "{year}년 {month} {day}일"
    times = "{h:hour} 시", "{h:hour} 시 {m} 분", " {s} 초"
    SYMBOLS = """&: 앤드; @: 골뱅이; +: 더하기; =: 는; ÷: 나누기; ×: 곱하기; °: 도; ≈ ~: 약
        ±: 플러스 마이너스; ≤: 이하; ≥: 이상"""
    WEB = ".: 점; /: 슬래시; -: 하이픈; _: 밑줄; ?: 물음표; =: 등호; #: 샵; :: 콜론"
    letters_follow = has_ordinal_points = True

    def rules(self) -> Rules:
        """Dates, months, numbers before counters, and mobile numbers."""
        date = r"(?P<y>\d{4})년\s?(?P<m>1[0-2]|[1-9])월\s?(?P<d>[0-3]?\d)일"
        dotted = (
            r"(?P<y>\d{4}|\d\d)\.\s?(?P<m>1[0-2]|0?[1-9])\.\s?(?P<d>[0-3]?\d)(?:\.(?=\s?\S))?(?!\d)"
        )
        yield dotted, self.written_date
        yield date, "{y}년 {m:month} {d}일"
        yield r"(?<![A-Za-z])(?P<r>[IVX]{2,7})(?![A-Za-z0-9])", self.roman_alone
        yield r"(?P<m>1[0-2]|[1-9])월", "{m:month}"
        yield rf"(?:(?P<from>\d{{1,3}})[-~])?(?P<n>\d{{1,3}})\s?(?P<what>{_COUNTERS})", self.counted
        yield r"(?<=[시분초일월년원명개])\s?~\s?(?=오전|오후|\d)", "에서 "
        yield (
            r"11[0-9](?=[에나로은이를]|\s?번으로)",
            lambda match, _: self.spell(match[0]).replace(" ", ""),
        )
        yield r"010-\d{4}-\d{4}|1[568]\d\d-\d{4}(?!\d)", self.mobile

    def counted(self, match: re.Match[str], before: str) -> str:
        """Return the words of a number, or of a range, and of the counter after it."""
        if match.string[: match.start()].endswith("제"):
            return f"{self.say(int(match['n']))} {match['what']}"
        say = self.hour if match["what"] == "시" else self.native
        first = f"{say(int(match['from']))} {match['what']}{self.to} " if match["from"] else ""
        return f"{first}{say(int(match['n']))} {match['what']}"

    def mobile(self, match: re.Match[str], before: str) -> str:
        """Return the digits of a mobile number, without spaces inside a group."""
        return ", ".join(self.spell(group).replace(" ", "") for group in match[0].split("-"))

    def native(self, number: int) -> str:
        """Return a native numeral in the form that stands before a noun."""
        if number == 20:
            return "스무"
        return _TENS[number // 10] + _ONES[number % 10] if 0 < number < 100 else self.say(number)

    def hour(self, number: int) -> str:
        """Return an hour: a native numeral from 1 to 12, a Sino-Korean one otherwise."""
        return self.native(number) if 1 <= number <= 12 else self.say(number)

    def ordinal(self, number: int) -> str:
        return f"{self.native(number) if number > 1 else '첫'} 번째"

    def month(self, number: int) -> str:
        """Return the name of a month; June and October are irregular."""
        return {6: "유월", 10: "시월"}.get(number) or f"{self.say(number)}월"
