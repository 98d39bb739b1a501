"""Brazilian Portuguese: the genders of numerals, times such as "15h30", ordinals such as "1º"."""

from qwen_megakernel.text.reading.romance import Romance
from qwen_megakernel.text.reading.tables import words


class Portuguese(Romance):
    RULES = r"""
    .*, >> (?P<a>[1-9]\d{3})-(?P<b>\d{3})(?![\d-]) => {a:spell}, {b:spell}
    (?P<a>\d{1,2})/(?P=a)\s?h(?:oras)?(?!\w) => {a} em {a} horas
    (?P<h>\d{1,2})\s?h\s?(?P<m>\d{1,2})\s?min(?!\w) => {h:counted:h} e {m:counted:min}
    {HOUR}h{MINUTE}?(?:min)?(?!\w) => .time
    aos|em|e >> (?P<n>\d{1,3})['′](?!\w|\+) => {n} minutos
    D\.(?=\s[A-ZÀ-Ý]\w*a(?!\w)) => dona
    (?i)\b(?:{THINGS})s?\s(?:d[eo]\s)?$
        >> (?P<a>\d{1,2})\s?x\s?(?P<b>\d{1,2}){BEHIND_SCORE} => {a} por {b}
    (?P<a>\d{1,2})(?:\sx\s|x(?=0(?!\d))|(?<=(?<!\d)0)x)(?P<b>\d{1,2}){BEHIND_SCORE} => {a} a {b}
    \bpor\s(?:\d/\d,?\s(?:e\s)?)*$ >> (?=[67]|..[67])(?P<a>[0-7])/(?P<b>[0-7])(?![\d/]) => {a} a {b}
    (?P<a>\d)x(?P<b>\d)(?=\s(?:nos|sobre|contra|diante)(?!\w)) => {a} a {b}
    (?i)\b(?:final:?|{SCORES}\w*:?(?:\sd[eo])?)\s$ >> (?P<a>\d)x(?P<b>\d){BEHIND_SCORE} => {a} a {b}
    \b(?:[A-ZÀ-Ý][a-zà-ÿ]+|em)\s$ >> (?P<a>\d)x(?P<b>\d){BEHIND_SCORE} => {a} a {b}
    """

    # Words before the sizes of a thing, words before a score, and what stands behind one.
    things = words("""foto tamanho formato caixa tela quadro mesa piso grade matriz cubo painel lona
        bandeja tapete tenda janela porta sala quarto terreno pacote cartela tabuleiro
        modelo kit papel azulejo""")
    scores = (
        "(?:por|plac|termin|acab|fic|ganh|venc|perd|empat|gole|bat|vitóri|derrot|resultad|virada)"
    )
    behind_score = r"(?![.,]\d)(?=\s(?!x|(?:{UNITS})(?!\w))|[^\w\s]|$)"
