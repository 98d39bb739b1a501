"""Chinese: numerals (num2words has none), years digit by digit, and 2 before a counter."""

import re

from qwen_megakernel.text.reading.language import Language

_PLACES = ("", "十", "百", "千", "万", "十", "百", "千", "亿", "十", "百", "千", "万", "十", "百")


class Chinese(Language):
    counters = (
        "个|只|本|次|天|位|名|人|件|条|张|辆|台|杯|瓶|碗|周|小时|分钟|点|倍|种|家|间|元|块|米|公里|千克"
        "|岁|晚|场|首|篇|幅|句|集|项|款|匹|棵|支|把|轮|局|秒|星期|桌|趟|遍|吨|升|毫升|克|角|瓣|根|页"
        "|片|年|汤匙|茶匙|站|颗|粒|大勺|小勺|勺|厅|份|套|双|部|组|盒|包|袋|居室|斤"
    )

    RULES = r"""
    (?P<n>[12]\d{3}(?=[学财]?年|\s?[-~～至到]\s?[12]\d{3}(?:[学财]?年|赛季)|赛季)|(?<=\d米)\d\d(?![\d秒分])|(?:[6-9]0|[09]5|00)(?=后(?![面来天年]))|\d\d(?=年\d{1,2}月)|(?<=[A-Z]·)\d{5}(?!\d))
        => {n:spell}
    (?P<n>\d{3,4})(?=室|房间)|(?P<m>1[3-9]\d{9})(?!\d) => {n:spell_phone}{m:spell_phone}
    .*[打叫拨]|(?:.*[打叫拨])?1\d\d[或和、]
        >> (?P<n>11[049]|12[02])(?![\d:-]|[.,\s]\d) => {n:spell_phone}
    .*(?:拨打?|致电|热线|客服|电话|短信|联系|[座栋幢]|单元)
        >> (?P<n>\d{3,6})(?![\d:-]|[.,\s]\d|{COUNTERS}|万|千) => {n:spell_phone}
    (?!.*[共约近达过额¥￥]$).* >> (?P<n>1(?:1[049]|2[02])(?=急救|报警|火警|热线|电话)
        |95\d{3}|1(?:00(?:86|10)|2(?:123|306|3[0-9][0-9])))
        (?![.,:/-]?\d|%|\s?(?:[人元块万亿美日欧港字年月天吨米步度平分]|{COUNTERS}|[A-Za-z]))
        => {n:spell_phone}
    (?P<n>\d{1,4})/(?P<m>\d{1,4})(?P<what>[页頁题集章层关]) => {n}{what}，共{m}{what}
    (?P<a>[1-9])\.?(?P<b>\d)(?=折) => {a}{b}
    .*\d.* >> (?<=[元次片粒克升件个份张台瓶杯gGlLmB])/(?=[^\W\d_A-Za-z]) => 每
    (?!.*(?:第(?:\d+[、,-])*|[a-z])$).* >> 2(?=(?:[-~]\d)?(?:{COUNTERS}|[万亿千])) => 两
    满\d+$ >> -(?=\d) => 减
    (?<=\d)\+(?={COUNTERS}) => 多
    (?!.*号[是为:：]*$).* >> #(?P<n>\d{4,})(?![.,-]?\d) => 号{n:spell}
    """

    def spell_phone(self, group: str) -> str:
        return self.spell(group).replace("一", "幺")

    def cardinal(self, number: int, gender: str = "") -> str:
        """Return the words of a number; one 零 stands for several zeros in a row."""
        if number in (0, 2):
            return "两" if number and gender == "c" else self.digits[number]
        places = zip(str(number)[::-1], _PLACES, strict=False)
        words = "".join(self.digits[int(digit)] + place for digit, place in [*places][::-1])
        words = re.sub("零+([万亿]|$)", r"\1", re.sub("零[十百千]", "零", words))
        words = re.sub("零+", "零", words.replace("亿万", "亿"))
        return words.removeprefix("一") if words.startswith("一十") else words

    def dated_year(self, number: int) -> str:
        return self.spell(str(number))

    def time(self, hour: int, minute: int, second: int | None) -> str:
        words = f"{'两' if hour == 2 else self.cardinal(hour)}点"
        if minute or second:
            words += f"{'零' if 0 < minute < 10 else ''}{self.cardinal(minute)}分"
        return words + (f"{self.cardinal(second)}秒" if second else "")
