"""Brazilian Portuguese: the genders of numerals, times such as "15h30", ordinals such as "1º"."""

from qwen_megakernel.text.reading.romance import Romance


class Portuguese(Romance):
    RULES = r"""
    .*, >> (?P<a>[1-9]\d{3})-(?P<b>\d{3})(?![\d-]) => {a:spell}, {b:spell}
    (?P<a>\d{1,2})/(?P=a)\s?h(?:oras)?(?!\w) => {a} em {a} horas
    (?P<h>\d{1,2})\s?h\s?(?P<m>\d{1,2})\s?min(?!\w) => {h:counted:h} e {m:counted:min}
    {HOUR}h{MINUTE}?(?:min)?(?!\w) => .time
    aos|em >> (?P<n>\d{1,3})['′](?!\w|\+) => {n} minutos
    D\.(?=\s[A-ZÀ-Ý]\w*a(?!\w)) => dona
    (?P<a>\d{1,2})(?:\sx\s|x(?=0(?!\d))|(?<=(?<!\d)0)x)(?P<b>\d{1,2})(?=\s(?!x|(?:{UNITS})(?!\w))|[^\w\s]|$)
        => {a} a {b}
    \bpor\s(?:\d/\d,?\s(?:e\s)?)*$ >> (?=[67]|..[67])(?P<a>[0-7])/(?P<b>[0-7])(?![\d/]) => {a} a {b}
    \b(?!Foto|Tamanho|Formato|Caixa|Tela|Quadro|Mesa|Piso|Grade|Matriz|Cubo)[A-ZÀ-Ý][a-zà-ÿ]+\s$
        >> (?P<a>\d)x(?P<b>[012]|(?P=a))(?=\s(?!x|(?:{UNITS})(?!\w))|[^\w\s]|$) => {a} a {b}
    de|em|por|final|plac\w+:?|(?:termin|acab|fic|ganh|venc|perd|empat|gole|bat)\w+
        >> (?P<a>[1-9])x(?P<b>[12]|(?P=a))(?=\s(?!x|(?:{UNITS})(?!\w))|[^\w\s]|$) => {a} a {b}
    """
