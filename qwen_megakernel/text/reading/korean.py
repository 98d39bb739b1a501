"""Korean: native numerals before hours and counters, and Sino-Korean ones elsewhere."""

from qwen_megakernel.text.reading.language import Language
from qwen_megakernel.text.reading.surroundings import Found

_COUNTERS = (
    "시간|시|명|살|개(?!월)|마리|잔|병|권|대|번째|사람|가지|달(?!러)|송이|채|켤레|곳|알|정(?!도)|큰술|작은술|판|자루"
    "|벌|그루|봉지|팩|모금|박스|상자|조각|스푼|컵|장(?!관)|배(?!럴)|그릇|접시"
)

_PLATES = "[가나다라마거너더러머버서어저고노도로모보소오조구누두루무부수우주아바사자하허호]"


class Korean(Language):
    code = "ko"
    minus, plus, point = "마이너스", "플러스", "점"
    percent, per, to, number_sign = "퍼센트", "퍼", "에서", "번호"
    by, over, rating = "곱하기", "에", "{1}점 만점에 {0}"
    suffixes, score, power = ("에서", "에", "의"), "대", "의 {} 제곱"
    parts_form, chapter, verse = "{bottom}분의 {top}", " 장", " 절"
    DIGITS = "공 일 이 삼 사 오 육 칠 팔 구"
    UNITS = "%p: 퍼센트포인트; mAh: 밀리암페어시; °C ℃: 도; dB: 데시벨; x ×: 배"
    SCALES = "만: 만; 억: 억; 조: 조; 천: 천"
    CURRENCIES = """₩ KRW: 원; $ USD: 달러 / 센트; € EUR: 유로 / 센트; £ GBP: 파운드 / 펜스
        ¥ JPY: 엔"""
    money_joint = " "
    dates = "{month} {day}일", "{year}년 {month} {day}일"
    times = "{h:hour} 시", "{h:hour} 시 {m} 분", " {s} 초"
    SYMBOLS = """&: 앤드; @: 골뱅이; +: 더하기; =: 는; ÷: 나누기; ×: 곱하기; °: 도; ≈ ~: 약
        ±: 플러스 마이너스; ≤: 이하; ≥: 이상"""
    WEB = ".: 점; /: 슬래시; -: 하이픈; _: 밑줄; ?: 물음표; =: 등호; #: 샵; *: 별표; :: 콜론"
    letters_follow = has_ordinal_points = True

    RULES = rf"""
    (?P<y>\d{{4}}|\d\d)\.\s?(?P<m>1[0-2]|0?[1-9])\.\s?(?P<d>[0-3]?\d)(?:\.(?=\s?\S))?(?!\d) => .date
    (?P<m>1[0-2]|[1-9])월 => {{m:month}}
    (?P<a>\d{{2,3}})(?P<k>{_PLATES})\s?(?P<n>\d{{4}})(?![\d억만천조]) => {{a}} {{k}} {{n:spell}}
    (?P<a>\d{{1,3}})\s?대\s?(?P<b>\d{{1,3}})(?!\d) => {{a}} 대 {{b}}
    (?<=[A-Z])\+(?!\+) => {{plus}}
    (?:(?P<from>\d{{1,3}})[-~])?(?P<n>\d{{1,3}})\s?(?P<what>{_COUNTERS}) => .counter
    (?<=[시분초일월년원명개])\s?~\s?(?=오전|오후|\d) => 에서~
    11[0-9](?=[에나로은이를]|\s?번으로) => .mobile
    010-\d{{4}}-\d{{4}}|1[568]\d\d-\d{{4}}(?!\d) => .mobile
    """

    def read_counter(self, found: Found) -> str:
        """Return the words of a number, or of a range, and of the counter after it."""
        what = found["what"]
        if found.last == "제":
            return f"{self.say(int(found['n']))} {what}"
        say = self.hour if what == "시" else self.native
        first = f"{say(int(found['from']))} {what}{self.to} " if found["from"] else ""
        return f"{first}{say(int(found['n']))} {what}"

    def read_mobile(self, found: Found) -> str:
        """Return the digits of a telephone number, without spaces inside a group."""
        return ", ".join(self.spell(group).replace(" ", "") for group in found.text.split("-"))

    def native(self, number: int) -> str:
        """Return a native numeral in the form that stands before a noun."""
        if not 0 < number < 100:
            return self.say(number)
        named = {1: "한", 20: "스무"}.get(number)
        return named or self.say(number, "ordinal").removesuffix(" 번째")

    def hour(self, number: int) -> str:
        """Return an hour: a native numeral from 1 to 12, a Sino-Korean one otherwise."""
        return self.native(number) if 1 <= number <= 12 else self.say(number)

    def ordinal(self, number: int) -> str:
        return f"{self.native(number) if number > 1 else '첫'} 번째"

    def month(self, number: int) -> str:
        """Return the name of a month; June and October are irregular."""
        return {6: "유월", 10: "시월"}.get(number) or f"{self.say(number)}월"
