"""Korean: native numerals before hours and counters, and Sino-Korean ones elsewhere."""

import re

from qwen_megakernel.text.reading.cldr import Noun
from qwen_megakernel.text.reading.language import Language
from qwen_megakernel.text.reading.surroundings import Found


class Korean(Language):
    counters = (
        "시간|시|명|살|개(?!월)|마리|잔|병|권|대|사람|가지|달(?!러)|송이|채|켤레|곳|알|정(?!도)|큰술|작은술|판|자루"
        "|벌|그루|봉지|팩|모금|박스|상자|조각|스푼|컵|장(?!관)|배(?!럴)|그릇|접시|자리|군데|통(?![신화계])|줄|칸|포기|모금|방울|바퀴|끼|숟갈|캔|쌍"
    )
    plates = "[가나다라마거너더러머버서어저고노도로모보소오조구누두루무부수우주아바사자하허호]"

    RULES = r"""
    (?P<y>\d{4}|\d\d)\.\s?(?P<m>1[0-2]|0?[1-9])\.\s?(?P<d>[0-3]?\d)(?:\.(?=\s?\S))?(?!\d) => .date
    (?P<m>1[0-2]|0?[1-9])\.\s?(?P<d>[12]\d|3[01]|0?[1-9])\.?(?=\s?\((?:{DAYS})\)) => .date
    (?P<n>\d{1,3})\s?번째 => {n:ordinal}
    1\+1(?=\s?(?:행사|이벤트|증정|상품|세일)) => 원 플러스 원
    2\+1(?=\s?(?:행사|이벤트|증정|상품|세일)) => 투 플러스 원
    B(?=\d[층F]) => 지하~
    (?P<n>[1-5]?\d)F{EDGE} => {n}층
    (?P<n>\d{1,4})/(?P<m>\d{1,4})\s?(?P<what>쪽|페이지|단계|문제|화|회|층) => {m}{what} 중 {n}{what}
    (?P<m>1[0-2]|[1-9])월 => {m:month}
    (?P<a>\d{2,3})(?P<k>{PLATES})\s?(?P<n>\d{4})(?![\d억만천조]) => {a} {k} {n:spell}
    (?P<a>\d{1,3})\s?대\s?(?P<b>\d{1,3})(?!\d) => {a} 대 {b}
    {NUM}(?P<many>[천만억]?)\s?(?P<of>원|회|번|달러|유로|엔|위안)/(?P<what>분|초|주|상자|박스|인|명|개월|개|병|봉지|봉|장|권|월|일|년|시간|건|회|박|팩|세트|잔|대)
        => {what}당 {num}{many}{of}
    .*(?:동|로|길|리|\d가|번지)
        >> (?!\d\d?-\d\d?으?로)(?P<a>\d{1,4})-(?P<b>\d{1,3})(?![\d-]) => {a} 다시 {b}
    (?<=[정회번개알])/일(?![가-힣]) => ~하루
    (?<=[A-Z])\+(?!\+) => {plus}
    (?:(?P<from>\d{1,3})[-~,])?(?P<n>(?![1-9]0대)\d{1,3})\s?(?P<what>{COUNTERS}) => .counter
    하루에?|매?주|매일|총|달에|일주일에|년에|시간에 >> (?P<n>\d{1,2})\s?(?P<what>번) => .counter
    11[0-9](?=[에나로은이를]|\s?번으로)|010-\d{4}-\d{4}|1[568]\d\d-\d{4}(?!\d) => .mobile
    """

    def read_counter(self, found: Found) -> str:
        """Return the words of a number, or of a range, and of the counter after it."""
        what = found["what"]
        if found.last == "제":
            return f"{self.say(int(found['n']))} {what}"
        say = self.hour if what == "시" else self.native
        say = self.say if what == "시간" and int(found["n"]) > 24 else say
        joint = "," if "," in found.text else f" {what}{self.to}"
        first = f"{say(int(found['from']))}{joint} " if found["from"] else ""
        return f"{first}{say(int(found['n']))} {what}"

    def read_mobile(self, found: Found) -> str:
        """Return the digits of a telephone number, without spaces inside a group."""
        return ", ".join(self.spell(group).replace(" ", "") for group in found.text.split("-"))

    def mixed(self, whole: str, top: int, bottom: int, noun: Noun | None) -> str:
        return re.sub("(?<=[이사오구])과 ", "와 ", super().mixed(whole, top, bottom, noun))

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
