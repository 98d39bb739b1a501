"""The expressions that all languages write, and their words.

`Language` has a table of rules (`grammar.rules_of`), and methods `read_...` for the rules that are
no templates. Such a method returns None for what is no expression of its rule.
"""

import re

from qwen_megakernel.text.reading.codes import MIN_NUMBERED_DIGITS, NUMBER_MARK
from qwen_megakernel.text.reading.quantities import FILE, Quantities
from qwen_megakernel.text.reading.surroundings import OPENING, Found, first_word
from qwen_megakernel.text.reading.tables import TYPED_SIGNS, any_of, words

_RANGE_BEGIN = re.compile(r"[$€£¥(]?\d")
_DIFFERENCE = re.compile(r"\d+(?:[.,]\d+)? ?=")
# Words before "1:10" that make it a ratio, and words behind it.
_BEFORE_RATIO = re.compile(
    r"(?:\b(?:ratio|scale|odds|mix(?:ed|ture)?|dilut\w+|maßstab|verhältnis|mischung|verdünn\w*"
    r"|échelle|dilu\w+|mélang\w+|rapporto|miscel\w+|scala|escala|proporción|mezcla\w*"
    r"|razão|proporção|mistur\w+|масштаб\w*|соотношени\w*|разб[ав]\w+|разве\w+)"
    r"(?:\W+\w{1,3})?|比例尺?|比率|縮尺|稀释|希釈|비율)\W*$",
    re.IGNORECASE,
)
BEHIND_RATIO = words("aspect ratio scale odds split dilution mix verdünnt verdünnen gemischt")
# Books of the Bible, behind which "3:16" is no time.
_BOOKS = words("""acts apocalypse cor corinthians corintios corinzi ephesians esodo exodus exode
    galatians genesis genèse génesis gênesis genesi giovanni isaiah jean jesaja jn joão joh gen
    gv jo rev matt rom johannes john juan kor korinther lk luca luke lukas marco mark markus
    mateo mateus matteo matthew matthieu matthäus mk mose mt offenbarung proverbs ps psalm
    psalmen psalms revelation romans romani romanos röm römer salmo thess thessalonians tim
    timothy ин кор лк мк мф пс рим быт псалом иоанна матфея луки марка исход бытие""")
_SCORED = re.compile(r"\d{1,3}(?![\d.,:/-]\d|\d|\s?(?:Uhr|h|ч|点|时|時|시|%|€)(?!\w))")
_SCORES = re.compile(r"(?<![\d.-])(\d{1,2})-(\d{1,2})(?:[、，,]\s?\d{1,2}-\d{1,2})*[、，,]\s?$")
_LAST_NUMBER = re.compile(r"\d[\d:.,]*$")
_BEGINS_WORD = re.compile(r"\w|[-$€£¥−.]\w")
# What has a place in a total, as in "page 5/12".
_PLACES = words("""chapter page slide step part episode question attempt round lap level kapitel
    seite folie schritt teil folge frage versuch runde chapitre étape partie épisode diapo tour
    capítulo paso parte episodio pregunta intento página episódio pergunta etapa capitolo pagina pag
    passo domanda глава страница стр шаг часть серия вопрос этап""")
BEFORE_HOURS = words("von ab um de das às à dalle alle с from at")
# What shows that "lun." is a weekday: a mark, or the end of a span of days.
_BEFORE_WEEKDAYS = words("""am vom zum al dal au du le bis a до et e y und sauf excepto exceto
    tranne außer fermé cerrado fechado chiuso""")
_BEHIND_WEEKDAY = re.compile(r"[,–-]|\s(?:al?|à|au|bis|по|et|e|y|und)\b|(?<!mar\.)\s\d|\s\d\d?/")


class Language(Quantities):
    """The words and the rules of one language."""

    RULES = r"""
    (?i)(?:(?:https?|ftp|wss?)://|www\.){ADDRESS}+ => .web
    (?i)[\w.+-]{1,64}@(?:[\w-]+\.)+[a-z]{2,} => .web
    (?i)(?:localhost|\d{1,3}(?:\.\d{1,3}){3})[:/]\d{1,5}(?!\d)(?:/{ADDRESS}*)? => .web
    (?i)(?:[a-z0-9][\w-]*\.)+(?:com|org|net|io|dev|ai|app|edu|gov|info|eu|de|fr|es|it|pt|br|ru|kr|jp
        |cn|uk|us|ca|au|ch|at|co|ly|tv|gg|xyz|nl|pl)(?![\w-]|\.\w)(?::\d{2,5}(?!\d))?
        (?:/{ADDRESS}*)? => .web
    {BEGIN}(?P<a>{DAYS})(?:\.?\s?[-–]\s?|~|\s(?P<link>{DAY_LINKS})\s)(?P<b>{DAYS}){EDGE}\.? => .days
    (?!{LETTERS_FOLLOW}){BEGIN}(?P<list>(?:{DAYS})(?:\.?(?:,\s|\s?[/+&]\s?)(?:{DAYS}))+(?:\s(?:{DAY_LINKS})\s(?:{DAYS}))?)
        (?!\w)\.? => .list_of_days
    (?!{LETTERS_FOLLOW}){BEGIN}(?P<a>{DAYS})(?=:?(?:\s(?:{BEFORE_HOURS}))?\s\d\d?(?:[-–:/.h]|\s(?:Uhr|h|ч)\b|(?:er)?\s{MONTH}))
        => .days
    (?P<a>{DAYS})\. => .days
    {LETTERS_FOLLOW}(?<=\()(?P<a>{DAYS})(?=\)) => .days
    (?P<y>\d{4})-(?P<m>\d\d)-(?P<d>\d\d)T(?P<h>[01]\d|2[0-4]):(?P<min>[0-5]\d)
        (?::(?P<s>\d\d)(?:[.,]\d+)?)?(?P<utc>Z)?{EDGE} => .date_and_time
    #{HEX}|[\da-fA-F]{1,4}(?:::?[\da-fA-F]{1,4}){4,7}(?![\w:]) => .hex
    (?P<x>802)\.(?P<n>\d{1,2})(?P<a>[a-z])(?P<b>[a-z]?)(?!\w) => {x:spell} {dot} {n} {a} {b}
    ∗\s(?=1\d{3}|20\d\d|\d{1,2}\.?\s(?i:{MONTH})|\d{1,2}[./]\d) => {born}
    [A-Z]{2}\d\d(?: ?[A-Z\d]{4}){2,7}(?: ?[A-Z\d]{1,3})?(?![^\W_]) => .iban
    (?=[A-Z0-9-]*\d)(?=[\d-]*[A-Z])[A-Z0-9]+(?:-[A-Z0-9]+)*(?!['’.,]?\w|-\w|/) => .mixed_id
    (?P<y>\d{4})(?P<mark>[-/]|\.(?=\d\d\.\d\d))(?P<m>\d\d?)(?P=mark)(?P<d>\d\d?)(?!\.?\d) => .date
    (?P<d>\d\d?)\.(?P<m>\d\d?)\.(?P<y>\d{4}){DATE_END}(?:\sг\.)? => .date
    (?P<{FIRST}>\d{1,2})(?P<mark>[-./])(?P<{SECOND}>\d{1,2})(?P=mark)(?P<y>\d{4}|\d\d)
        {DATE_END} => .date
    (?i)(?P<d>\d{1,2})(?:{ORDINAL_MARKS})?(?:\.?\s(?:(?:{LINKS})\s)?|-(?={MONTH}-\d{4}(?!\d)))(?P<m>{MONTH})
        (?:(?:-|,?\s(?:(?:{LINKS})\s)?)(?P<y>\d{4})(?!\d))? => .date
    (?i)(?P<m>{SHORT_MONTH})\.?(?=\s(?:(?:19|20)\d\d(?![\d:])|de$)) => .month
    (?i)(?:(?<=\d\s)|(?<=\d\.\s))(?P<m>{SHORT_MONTH})\.?(?!\w) => .month
    {LETTERS_FOLLOW}(?P<m>1[0-2]|[1-9])(?:[·・](?!\d/)|\.(?=\d\d?[\"”]?\s?(?:事|地震|运动|假|テロ
        |の?震災|절(?!반)|테러|전쟁|혁명|민주|운동|사태|참사|대책|총선|지방선거)))(?P<d>\d{1,2})(?!\d)
        => {m:spell} {d:spell}
    {LETTERS_FOLLOW}(?P<a>\d{1,2})[-–](?P<b>\d{1,2})(?=[での]?[勝敗負引胜负败输]|战胜|告负|不敌|落后|惜败|으?로(?!\s?\d))
        => {a} {score} {b}
    {LETTERS_FOLLOW}(?<!点)0(?P<n>[1-9])(?=[月日時时分秒월일분초]) => {n}
    {LETTERS_FOLLOW}(?<=\d[秒초])(?P<n>\d\d)(?!\d) => ~{n:spell}
    {LETTERS_FOLLOW}(?<=[^\WA-Za-z_]|[%℃)Mm])\s?~\s?(?=[-−¥$€₩]?\d|오[전후]|[上下午]|[AP]M) => {to}~
    {LETTERS_FOLLOW}(?=0|\d\d?/0|(?:[2-9]|1[0-2])/(?:1[34789]|2[1-35-9]|31)(?!\d)|1[0-2]/[1-9](?![\d拍倍])
        |(?:12/1[0-2]|11/1[01])(?![拍倍])|(?<=[~-])\d\d?/\d
        |(?:1/1|2/[12]|3/[1-3]|4/[1-4]|5/[1-5]|6/[1-6]|[7-9]/[1-7])(?:[はにのがも은는이가을에]|까지)
        |\d\d?/\d\d?(?:は?[月火水木金土日]曜|是?(?:星期|周|礼拜)[一二三四五六日天]
        |\"?[은는]?\s?(?:[월화수목금토일]요일|공?휴|쉬|쉽)|・\d\d?(?![\d/:])
        |\s?[（(](?:{DAYS}|[祝休])[)）]|[~-]\d\d?/\d|[)\s]{1,2}\d{1,2}:\d\d
        |\s?(?:上午|下午|午前|午後|오전|오후|前|まで|から|까지|부터)|(?<=/\d\d)\s?[~～-]\s?\d))
        (?P<m>1[0-2]|0?[1-9])/(?P<d>[12]\d|3[01]|0?[1-9])(?![/.]?\d) => .date
    (?<![\d/.])(?P<m>0[1-9]|1[0-2]){OF_YEAR}(?P<y>(?:19|20)\d\d|{DAY_FIRST}(?<=0\d/)[2-4]\d)(?![.,]?\d|/)
        => .date
    {EXPIRY} >> {DAY_FIRST}(?P<m>1[0-2])/(?P<y>[2-4]\d)(?![.,/]?\d|/) => .date
    (?P<{FIRST}>\d{1,2})/(?P<{SECOND}>\d{1,2})(?![/.,]?\d|/) => .day_and_month
    (?P<r>[IVXLCDM]+)(?:e|ᵉ)?\s?[-–—]\s?(?P<to>[IVXLCDM]+)(?:e|ᵉ)?(?!\w|['’]\w) => .roman_range
    {LETTERS_FOLLOW}(?<![A-Za-z])(?P<r>[IVX]{2,7})(?![A-Za-z0-9]) => .roman
    (?P<r>[IVXLCDM]+)(?:\.(?=\s|$)|ers?|re|ᵉ|e)?(?!\w|['’](?!s\b)\w|\.\w) => .roman
    (?P<n>\d{1,3}(?=:)|1(?=/\d+ ))[:/](?P<w>\d{1,3}(?:(?:{GROUP}| )\d{3})+)(?![\d:])
        => {n} {ratio} {num}
    {VERSES} >> (?P<a>\d{1,3})(?::|,(?!\d{3}))(?P<b>\d{1,3})(?!\d|[:,]\d) => {a}{chapter} {b}{verse}
    (?P<m>\d{1,2}):(?P<w>[0-5]\d)[.,](?P<d>\d{1,3})(?:\s?(?:[mM]in|мин)\b\.?)?(?![\d:]){EDGE}
        => {m:counted:min} {num}{end}
    (?i){LETTERS_FOLLOW}(?P<h>1[0-2]|0?[1-9])(?::{MINUTE})?\s?(?P<half>[ap])(?:m|\.m\.?){EDGE}
        => .half_day
    (?i){LETTERS_FOLLOW}(?P<half>[ap])\.?m\.?\s?(?=\d\d?(?::\d\d(?!\d)|\s?[点时時시])) => .half_day
    (?i){HOUR}:{MINUTE}(?::(?P<s>[0-5]\d))?(?:\s?(?:Uhr|h(?:rs?|s)?)\b)?(?![\d:]) => .time
    (?P<h>\d{1,2})\s?h\s?(?P<m>\d{1,2})\s?(?:min|m|['′])(?:\s?(?P<s>\d{1,2})\s?(?:s|\"|″|''))?(?!\w)
        => {h:counted:h} {m:counted:min} {s:counted:s}
    (?P<m>\d{1,3})(?:m(?:in)?|['′])(?P<s>[0-5]?\d)(?:s|\"|″|'')(?P<d>\d\d)?(?!\w)
        => {m:counted:min} {s:counted:s} {d}
    (?P<h>\d{1,2})\s?h\s?(?:00|{MINUTE})(?!\w|['′]) => {h:counted:h} {m}
    (?P<n>\d{1,3})°\s?(?P<m>\d{1,2}(?:[.,]\d+)?)\s?['′]
        (?:\s?(?P<s>\d\d?(?:[.,]\d+)?)\s?(?:\"|″|''))? => .angle
    (?:°(?:\s?[\d.,]*\d\s?['′\"″]{0,2}){0,2}\s?|[A-Z]-\d{1,3}\s)$
        >> (?P<d>{COMPASS})(?!['’-]?\w) => {d:compass}
    (?P<n>\d{1,3})(?:[\"″s]|'')(?P<d>\d\d)(?!\w) => {n:counted:s} {d}
    (?P<m>2[5-9]|[3-9]\d):0(?:0|(?P<s>[1-9]))(?![\d:]) => {m:counted:min} {s:counted:s}
    (?P<a>\d{1,4}):(?P<b>\d{1,6})(?![\d:]) => {a} {ratio} {b}
    (?P<n>[1-3])\.?\s(?P<book>{BOOKS})
        (?:\.?\s(?P<a>\d{1,3})[:,]\s?(?P<b>\d{1,3})(?!\d)|\.(?=\s)|(?=\s\d)) => .book
    (?!.*(?:vers\w+|верси.|版本|バージョン|버전)$).*
        >> (?i)v(?:er\.)?\.?\s?(?=\d+\.\d) => {version_name}
    (?P<n>\d{1,3})(?:['′.]\s?|(?=\+\d\d?['′]))\+\s?(?P<m>\d{1,2}){EDGE}['′]? => {n} {plus} {m}
    (?:\+ ?)?\(?\d{1,14}\)?(?:(?: ?[-–./] ?| ?(?=\()|(?<=\)) ?| )\(?\d{1,14}\)?)+
        (?: ?x(?P<x>\d{1,6})(?!\w))?|\+\d{7,15}(?!\d) => .phone
    boeing|airbus|embraer|bombardier|cessna|fokker|(?:боинг|аэробус|эмбраер)а?
        >> (?P<a>\d{3})-(?P<b>\d{1,3})(?![.,/-]?\d) => {a} {b}
    .*(?:波音|空客|空中客车|ボーイング|エアバス|보잉|에어버스)
        >> (?P<a>\d{3})-(?P<b>\d{1,3})(?![.,/-]?\d) => {a:spell} {b:spell}
    https?[-/\d.]* >> (?P<n>[1-5](?!00)\d\d)(?![\d.:,-]*\w) => {n:spell}
    (?:https?-)?(?:err(?:or|ore|eur|o)s?|fehler|ошибк[аиу]|status|response)|.*(?:错误|エラー|오류)
        >> (?P<n>[45](?!00)\d\d)(?![\d.:,-]*\w) => {n:spell}
    \d+(?P<mark>[-:])\d+(?:(?P=mark)\d+)+(?![:-]){EDGE} => .chain
    (?P<y>1[89]\d\d|20\d\d)/(?P<z>\d\d|(?:19|20)\d\d)(?![\d/]) => .two_years
    (?P<a>24)[/x](?P<b>7)(?![\d/]) => {a} {b}
    (?P<w>\d{1,3})[.,](?P<d>\d{1,2})/(?P<b>\d{1,3})(?![\d/]) => .rated
    {LETTERS_FOLLOW}(?P<w>\d{1,3})/(?P<b>[1-9]?[05]0|20|30)
        (?:[分点]|(?=\s?점)|(?<=\d\d/100)(?![\d/万億억만])) => .rated
    .*(?:[评評得]分|[评評][价価]|成绩|满意度|満足度|スコア|点数|평점|점수|만족도)[^。]{0,20}
        >> {LETTERS_FOLLOW}(?P<w>\d{1,2})/(?P<b>10|5)(?![\d/]) => .rated
    (?:{PLACES})\.? >> (?!{LETTERS_FOLLOW})(?P<w>\d{1,3})(?P<at>/)(?P<b>\d{1,3})(?![\d/]) => .rated
    größe|gr\.|sizes?|waist|jeans|джинсы|taglia|talla|размер >> (?P<a>\d\d)/(?P<b>\d\d)(?![\d/])
        => {a} {b}
    (?!{LETTERS_FOLLOW})(?!20/20|50/50)(?P<w>\d{1,3})/(?P<b>(?P=w)|100)(?![\d/]) => .rated
    (?!{LETTERS_FOLLOW})(?P<w>[245-9])/(?P<b>10)(?![\d/]| ?(?:{UNITS}){EDGE}) => .rated
    (?:\d{1,3}(?:,\d{1,3}){2,}|{LETTERS_FOLLOW}\d\d?,\d\d?(?=[^\WA-Za-z_]))(?![\d,.]*\d) => .list
    (?P<sizes>{SIZE}(?:(?: ?x ?|×){SIZE})+)
        (?: ?(?P<unit>{UNITS}){EDGE}(?:/(?P<per>{UNITS}){EDGE})?{UNIT_POINT}
        |{EDGE}(?!\^|[.,]?\d| ?=| ?(?:{CURRENCIES}){EDGE})) => .size
    \^(?P<minus>[-−]?)(?P<n>\d{1,3})(?!\d) => .power
    (?P<sizes>{SIZE}(?: × {SIZE}){2,}|{SIZE} × {SIZE}(?= ?(?:{UNITS}){EDGE}))
        (?: ?(?P<unit>{UNITS}){EDGE}{UNIT_POINT})?{EDGE} => .size
    (?P<n>\d{1,4})(?P<letter>[xyz]){EDGE}(?=\s*(?:[-+−=*^²³]|/(?![A-Za-z]{2}|[djh](?!\w))))
        => {n} {letter}
    [x×](?=\s(?:{CURRENCIES})?\s?\d) => .product
    [-=+−] >> (?P<n>\d{1,4})(?P<letter>[xyz]){EDGE} => {n} {letter}
    \d++(?:\.\d++){2,}+(?!,\d\d?(?!\d)) => .pointed
    {SIGN}(?P<sym>{CURRENCIES})\s?{NUM}{MONEY}{CODE}{PER_ONE} => .money
    (?P<sym>{CURRENCIES})(?P<sign>[-−]){NUM}{MONEY}{CODE}{PER_ONE} => .money
    {SIGN}{NUM}{MONEY}\s?(?P<sym>{CURRENCIES}){EDGE}{PER_ONE} => .money
    {DEGREE_IS_ORDINAL}(?P<w>\d{1,2})°(?=\s(?:ex(?!\w)|[a-zà-ÿ]{3})
        (?<!\sall|\sdel|\snor|\ssud|\sest|\ssop|\ssob|\scon)) => .ordinal
    {DUE} >> {DEGREE_IS_ORDINAL}1°(?=\s(?:al?|e|y|ao|o)(?!\w)|$) => {first_day}
    {LETTERS_FOLLOW}{SIGN}(?P<w>\d{1,3}(?:,\d{3})+|\d+)\.00(?=\s?(?:[美欧]?元|円|원)) => .number
    {LETTERS_FOLLOW}(?P<n>\d{1,3})%(?=(?i:off)) => {n:counted:%}
    .*(?:[时時]速|시속) >> {LETTERS_FOLLOW}(?P<n>\d{1,4})\s?km/h => {n:counted:km}
    (?<=[A-Z]-)(?P<n>\d{1,4})(?=\s(?:[NSEW](?!\w)|[Kk]m\s\d)) => {n}
    {SIGN}{NUM}{SPAN}(?P<gap>[ -]?)(?P<unit>{UNITS})
        (?:(?:/|(?<=[kKMGT]b)p)(?P<per>{UNITS}))?{EDGE}{UNIT_POINT} => .unit
    (?:(?<=/kg)|(?<=/кг))/(?P<per>[^\W\d_]+) => .per
    (?<=[^\W\d_])/(?:(?<=[元円원万]/)|(?=\w{1,2}[²³])|(?<=\w{3}/)(?=(?:s|min|h|d[ií]a|m[eê]se?|a[nñ]n?o
        |giorno|jour|mois|Tag|Monat|Jahr|день)(?!\w)))(?P<per>{UNITS}){EDGE}
        => .per
    (?<=[A-Z])(?P<a>\d{1,2})/(?P<y>(?:19|20)\d\d)(?![\d/]) => {a} {y:year}
    (?P<w>\d{1,3}(?:{GROUP}\d{3})+|\d{1,5}(?=/\d{4}))/(?P<y>(?:19|20)\d\d|\d\d)(?![\d/])
        => {num} {slash} {y:year}
    (?<![\d.,/])(?P<n>(?:1[2-9]|[2-9]\d)(?=/\d\d\s?(?:hr?s?|Std|Stunden|heures|ore|hora\w)(?!\w))
        |[2-9](?=/\d\d?\s?(?:days|j|jours|Tagen?|giorni|gg|d[ií]as)(?!\w)))/ => {n} {to}~
    /(?=(?:100\s?(?:km|g|ml|mL)|24\s?(?:h|Std|ч))(?!\w)) => ~{per}~
    (?:(?P<w>\d+)(?:\s|-(?=[1-7]/[2-8](?!\d))))?(?P<n>\d{1,4})(?: / |/)(?P<d>\d{1,4})(?![\d/])
        (?: ?(?![x×](?!\w))(?P<unit>{UNITS}){EDGE}{UNIT_POINT})?{EDGE} => .fraction
    (?P<w>\d{1,3}(?:{GROUP}\d{3})+|\d+)(?:{ORDINAL_MARKS}){EDGE} => .ordinal
    (?<![\w/&])(?<![^\W\d_]\.)(?:{ABBREVIATIONS}){EDGE}(?!/) => .abbreviation
    .*(?:番?号码?|번호)[是为はが은는]?[:：]? >> {LETTERS_FOLLOW}(?P<x>)#\s?(?=[A-Z\d]) => {x}
    #\s?(?P<n>\d{5,}(?![.,]?\d)|\d{4,}(?=-[A-Z\d])) => {number_sign} {n:spell}
    #\s?{NUM} => {number_sign} {num}
    (?:[nN]\.?[º°]|№|#)\s?(?=[A-ZА-Я]{1,4}-?\d) => {number_sign}~
    [Kk]m\s(?=\d) => .at_kilometer
    (?!{LETTERS_FOLLOW}){NUM}\s?(?P<scale>{LONG_SCALES}){EDGE} => .scaled
    {NUM}(?=\s(?P<noun>[^\W\d_]{2,})) => .counted
    (?![~≈<>≤≥±]\s?[\d.,]+[^\W\d_]){SIGN}{NUM} => .number
    (?<=GMT|UTC)[-–−](?=\d) => ~{minus}~
    (?<=[^\W_]|[%°¢])[ ]?[-–—] ?(?=[$€£¥]?\d)|(?<=\d)~(?=\d) => .dash
    (?<=\d)-(?P<link>[a-zà-ÿа-яё]{1,4})-(?=\d) => ~{link}~
    .+ >> (?<=.)-(?=\d) => ~
    (?<!#)(?<![^\W\d])(?P<key>\#(?![\w\#])|∗(?![^\W\d_])) => {key:web}
    (?<![A-Za-z#])(?P<key>[#∗])(?=[键或をか을를이키キ]) => {key:web}
    [\d.,]+|co2 >> /(?=\w{2}|[hsч])(?P<per>{UNITS})(?!\w) => .per
    (?:fois|(?:.*-)?mal|veces|volte|vezes|раза?|р\.) >> /(?P<per>[^\W\d_]+)(?!\w) => .per
    (?P<sym>[€£₽₹₩$])(?![\w$€£¥]) => .currency
    {SYMBOLS} => .symbol
    (?<![^\W\d_]{2})(?<=[\w)])(?P<n>[²³])(?!\w) => .power
    """

    def patterns(self) -> dict[str, str]:
        """Return the regular expressions that rules name in capitals, besides attributes."""
        mark, short = re.escape(self.group_mark), {*self.month_forms} - self.full_months
        return {
            "ADDRESS": r"[^\s<>\"'()\[\]{}]",
            "VERSES": rf"(?:{any_of(_BOOKS)})\.?|.*(?:福音|[诗詩]篇|ヨハネ|マタイ|ルカ|복음|시편)",
            "PLACES": any_of(_PLACES),
            "SIZE": r"\d{1,6}(?:[.,]\d{1,3})?",
            # The hexadecimal digits of a colour, which are no word.
            "HEX": r"(?:(?=[\da-f]*\d|\d*[A-F])(?=\d*[a-fA-F])(?![A-F]\d{5})[\da-fA-F]{6}"
            + r"|[a-f](?=[a-f]?\d)[\da-f]{2})(?!\w)",
            "HOUR": r"(?P<h>[01]?\d|2[0-4])",
            "MINUTE": r"(?P<m>[0-5]\d)",
            # A sign; behind a word it is a dash, or in East Asia behind a number and its counter.
            "SIGN": r"(?P<sign>(?:(?<![^\W_])(?<![%°¢])|{LETTERS_FOLLOW}(?:(?<=[至到为はがら은는])"
            + r"|(?<=[^\WA-Za-z_])(?<!\d)(?<!\d.)(?<!\d..))(?=[-−][\d.]+\s?[℃°度도%]))"
            + r"[-−+±~≈<>≤≥]\s?(?!(?<=\+ )\d{1,4}[xyz]\s?[-+−=*^]))?",
            # The point of a unit, where no sentence begins.
            "UNIT_POINT": r"(?:\.(?:(?=\s+[a-zß-öø-ÿа-яё+&(=–-])|$)"
            + r"|(?:(?<=ft|lb|yd|hr|\sч|дн)|(?<=lbs|hrs|min|мин))\.(?=\s\d))?",
            # Where no letter or digit follows; only ASCII ones count in a language that writes
            # words directly after digits.
            "DATE_END": r"(?!\d|[./]\d|-(?!\d{1,2}[./]\d)\d)",  # the second of two may follow
            "EDGE": r"(?![A-Za-z]|\d+(?!\d|[^\0-\x7f]))" if self.letters_follow else r"(?![^\W_])",
            "BEGIN": r"(?<![^\W_])" if self.space else "(?:)",
            "GROUP": mark,
            "UNITS": any_of(self.units).replace('"', r'"(?![^\W_])'),
            "NUM": self._num(""),
            "PER_ONE": r"(?:/(?P<per>[^\W\d_]+(?:·\w)?){UNIT_POINT})?",
            "SPAN": rf"(?:\s?[-–—~]\s?{self._num('to')})?",
            "MONEY": rf"(?:\s?[-–—]\s?(?:{any_of(self.currencies)})?{self._num('to')})?"
            + r"(?:,[-–—]{1,2})?" * (self.decimal == ",")
            + rf"(?:\s?(?P<scale>{any_of([*self.scales, *self.money_scales])}){{EDGE}})?",
            "CODE": rf"(?:\s(?P<code>{any_of(self.currency_names)})(?!\w))?",
            "LONG_SCALES": any_of({*self.scales} - {*"kKBT"}),
            # Words before the month and the year in which a card expires, as in "bis 10/27".
            "EXPIRY": r"bis|до|hasta|até|(?:jusqu')?au|en|fin"
            + r"|(?:expir|scad|v[aá]l|venc|gültig|caduc|действ)\w*",
            "DAY_LINKS": any_of(self.day_links),
            "BEFORE_HOURS": any_of(BEFORE_HOURS),
            "DAYS": any_of([*self.weekdays, *self.weekdays.values()]),
            "MONTH": rf"(?:{any_of(self.full_months)}|(?:{any_of(short)})\.?)(?!\w)",
            "SHORT_MONTH": any_of(short - {"mar"}),
            "OF_YEAR": "[/.]" if self.decimal == "," else "/",
            "FIRST": "d" if self.day_first else "m",
            "SECOND": "m" if self.day_first else "d",
        }

    def _num(self, name: str) -> str:
        """Return the pattern of a number, whose groups are `name` + "w" and `name` + "d"."""
        mark, decimal = re.escape(self.group_mark), re.escape(self.decimal)
        return (
            rf"(?P<{name}w>\d{{1,3}}(?:{mark}\d{{3}})+(?!\d)"
            rf"|(?<![A-Za-z])\d{{1,3}}(?:[ '’]\d{{3}})+(?!\d)"
            # Numbers grouped as in India, and numbers with the marks of another language.
            rf"|\d{{1,2}}(?:{mark}\d\d)+{mark}\d{{3}}(?!\d)"
            rf"|\d{{1,3}}(?:{decimal}\d{{3}}){{2,}}(?!\d)|\d{{1,3}}(?:{decimal}\d{{3}})+(?={mark}\d{{1,2}}(?!\d))"
            rf"|\d+|(?={decimal}\d))(?:[.,](?P<{name}d>\d+))?(?![.,]?\d)"
        )

    # ---- dates and times -------------------------------------------------------------------------

    def read_date(self, found: Found) -> str | None:
        """Return the words of a date; None if no month or day has these numbers."""
        name, day, year = found["m"].lower().rstrip("."), int(found["d"] or 0), found["y"]
        if not found["d"] and (NUMBER_MARK.search(found.past) or FILE.search(found.past)):
            return None  # "no. 12/2025"
        month = self.month_forms.get(name) or (int(name) if name.isdigit() else 0)
        if month > 12 and name.isdigit() and day <= 12:
            day, month = month, day  # written in the order of another country
        if not (1 <= month <= 12 and day <= 31 and (day or not found["d"])):
            return None
        if len(year) == 2:
            year = ("20" if int(year) < 70 else "19") + year
        said = self.date(day, month, int(year) if year else None, found.before)
        return said + self.kept_point(found)

    def read_date_and_time(self, found: Found) -> str | None:
        date = self.read_date(found)
        time = self.time(int(found["h"]), int(found["min"]), int(found["s"] or 0) or None)
        return date and date + self.space + time + " UTC" * bool(found["utc"])

    def read_month(self, found: Found) -> str:
        """Return the name of a month that is abbreviated before a year, as in "Dez. 2026"."""
        return self.month(self.month_forms[found["m"].lower().rstrip(".")])

    def read_day_and_month(self, found: Found) -> str | None:
        """Return the words of a date without a year; None where it may be a fraction."""
        if not self.due or found.last in tuple("/.,$"):
            return None
        is_due = found.word.strip(".,(") in self.due or "0" in (found["d"][0], found["m"][0])
        second = int(found["m" if self.day_first else "d"])
        least = min(12, self.max_named_part) if self.day_first else self.max_named_part
        is_sure = is_due or (int(found["d"]) > least and second > 9)
        return self.read_date(found) if is_sure else None

    def read_days(self, found: Found) -> str | None:
        """Return the words of an abbreviated weekday, or of a range of weekdays."""
        is_alone = not found["b"] and found.text.endswith(".")
        is_sea = (self.code, found["a"]) == ("es", "mar")
        is_sure = found.word in _BEFORE_WEEKDAYS and not is_sea
        if is_alone and not is_sure and not _BEHIND_WEEKDAY.match(found.rest):
            return None
        names = filter(None, (found["a"], found["b"]))
        joint = f" {found['link']} " if found["link"] else self.between_ends
        said = joint.join(self.weekdays.get(name, name) for name in names)
        return said + self.kept_point(found)

    def read_list_of_days(self, found: Found) -> str:
        """Return the words of days such as "lun, mer et ven" and "Mo/Mi"."""
        names = (self.weekdays.get(day, day) for day in re.findall(r"[^\W\d_]+", found["list"]))
        return ", ".join(names).replace(f", {self.symbols['&']},", f" {self.symbols['&']}")

    def read_time(self, found: Found) -> str | None:
        is_ratio = _BEFORE_RATIO.search(found.past) or first_word(found.rest) in BEHIND_RATIO
        if is_ratio and not found["s"]:
            return None
        return self.time(int(found["h"]), int(found["m"] or 0), int(found["s"] or 0) or None)

    def read_half_day(self, found: Found) -> str:
        """Return the words of "3:30 PM", or of "PM" before a time; the half of the day is first."""
        half = self.halves[found["half"] in "pP"]
        half = "" if found.past.rstrip().endswith(half) else half + self.space
        time = self.time(int(found["h"]), int(found["m"] or 0), None) if found["h"] else ""
        return half + time + self.kept_point(found)

    def read_two_years(self, found: Found) -> str | None:
        """Return "2019/20" as two years; None where the second does not follow the first."""
        year, second = int(found["y"]), found["z"]
        if int(second[-2:]) != (year + 1) % 100:
            return None
        is_year = len(second) == 4 or (self.years_joint is not None and second < "10")
        last = self.year(year + 1) if is_year else self.number(second)
        return self.year(year) + (self.years_joint or self.space) + last

    # ---- words and signs -------------------------------------------------------------------------

    def read_abbreviation(self, found: Found) -> str:
        word = found.text.rstrip(".")
        is_day = word in self.weekdays or word.lower() in self.month_forms
        is_final = is_day or found.text in self.final or found.text in self.scales
        return self.abbreviations[found.text] + (self.kept_point(found) if is_final else "")

    def read_dash(self, found: Found) -> str | None:
        """Return the words of a dash between numbers: of a range, a difference or a score."""
        before = found.before
        if self.letters_follow and (number := _LAST_NUMBER.search(before)):
            before = number[0]
        ends = before, re.split("[-–—]", before)[-1]  # not the second dash of "1-on-1"
        if not all(map(_RANGE_BEGIN.match, ends)):
            return None
        second = re.match(r"\d+", found.rest)
        is_less = second is not None and before.isdecimal() and int(second[0]) < int(before)
        is_numbered = NUMBER_MARK.search(found.match.string[: found.match.start() - len(before)])
        is_part = second is not None and second[0][0] == "0" != before[0] and len(second[0]) > 1
        if is_part and before.isdecimal():
            return self.space  # "4711-08"
        if is_less and (is_numbered or len(before) >= MIN_NUMBERED_DIGITS):
            return self.space  # a number of two parts: "no. 48213-7"
        is_minus = found.text == " - " and ":" not in before
        if is_minus or _DIFFERENCE.match(found.rest):
            return self._joint(self.subtraction or self.minus)
        scores = _SCORES.search(found.past[: -len(before)])
        is_score = is_less or (scores is not None and int(scores[1]) > int(scores[2]))
        if is_score and self.score is not None and len(before) < 4 and _SCORED.match(found.rest):
            return self._joint(self.ratio) if self.ratio else self.space
        return self.between_ends

    def read_power(self, found: Found) -> str:
        minus = self.minus + self.space if found["minus"] else ""
        number = self.spell if found["n"] in "²³" else self.number
        return self.power.format(minus + number(found["n"]))

    def read_angle(self, found: Found) -> str:
        """Return the words of an angle in degrees, minutes and maybe seconds."""
        said = []
        for name, unit in (("n", "°"), ("m", "min"), ("s", "s")):
            whole, _, decimals = found[name].replace(",", ".").partition(".")
            said += [self.count(str(int(whole)), decimals, self.units[unit])] if whole else []
        return self.space.join(said).replace("分钟", "分")

    def read_product(self, found: Found) -> str:
        """Return the word for an "x" or "×", between lengths such as "3 m x 4 m", or not."""
        is_size = re.match(rf"[ \d.,]+{re.escape(found.before)}(?!\w)", found.rest)
        return self.by if found.before in self.units and is_size else self.symbols["×"]

    def read_book(self, found: Found) -> str:
        """Return the words of a book of the Bible, and of a verse, "1 Cor. 13:4"."""
        said = f"{self.book_number} {self.books[found['book']]}"
        said += " {a}{chapter} {b}{verse}" if found["a"] else self.kept_point(found)
        return self.fill(said, found.match.groupdict())

    def read_symbol(self, found: Found) -> str | None:
        symbol, last, following = found.text, found.last, found.rest[:1]
        behind = found.match.string[: found.match.start()]
        if behind.endswith(symbol) or found.rest.startswith(symbol):
            return None  # the symbol is repeated, as in a line of stars
        if symbol == "*" and not (found.before[-1:].isalnum() or last == ")"):
            return None
        is_wave = self.letters_follow and not following.isdigit()  # "네~"
        is_revision = last.isalpha() and self.space  # "HEAD~3"
        if symbol == "~" and (is_wave or is_revision or not following.isalnum()):
            return None
        if symbol in TYPED_SIGNS and (last + following).strip(" ") in tuple("=<>-!"):
            return None  # a longer sign: "===", "-->"
        said = self.symbols[symbol]
        space = self.space if last.strip() and last not in OPENING else ""
        if not said.strip():
            return said if said and space and following.isalnum() else ""
        return space + said + (self.space if _BEGINS_WORD.match(found.rest) else "")
