"""Brazilian Portuguese: the genders of numerals, times such as "15h30", ordinals such as "1º"."""

from qwen_megakernel.text.reading.romance import Romance
from qwen_megakernel.text.reading.words import words


class Portuguese(Romance):
    code = "pt_BR"
    minus, plus, point = "menos", "mais", "vírgula"
    percent, per, to, number_sign = "por cento", "por", "a", "número"
    by, over, rating, power = "por", "por", "{} de {}", " elevado a {}"
    due = words("vencimento vence dia em até desde segunda terça quarta quinta sexta")
    ENDINGS = r"f: \bum$ uma, \bdois$ duas, centos centas, duzentos duzentas"
    halves = "meio", "meia"
    ordinal_marks, feminine_marks = r"\.?º|°|o\b", r"\.?ª|a\b"
    BEFORE_DIGITS = r"p\.\s?: página"
    FEMININE, MASCULINE = "a ã dade ção õe são", "o or al"
    PARTS = "2: meio; 3: terço; 4: quarto; 10: décimo; 100: centésimo"
    max_named_part, parts_form = 9, "{top} {bottom} avos"
    UNITS = """p.p.: ponto percentual, pontos percentuais; mAh: miliampere-hora, miliamperes-hora
        t: tonelada, f; seg: segundo; KB kB: quilobyte; kHz: quilohertz, quilohertz
        dB: decibel, decibéis; x × vez vezes: vez, vezes, f; copo copos: copo
        colher colheres: colher, colheres, f; col.~de~sopa: colher de sopa, colheres de sopa, f
        col.~de~chá: colher de chá, colheres de chá, f; pessoa pessoas: pessoa, f
        comp.: comprimido; pts: ponto
        bpm: batimento por minuto, batimentos por minuto"""
    SCALES = """mil: mil, mil; milhão milhões mi: milhão, milhões
        bilhão bilhões bi: bilhão, bilhões"""
    MONEY_SCALES = "M: milhão, milhões; k: mil, mil"
    CURRENCIES = """R$ BRL: real, reais / centavo; $ US$ USD: dólar, dólares / centavo
        € EUR: euro / cêntimo; £ GBP: libra, f / pêni, pence; ¥ JPY: iene"""
    money_joint, scale_joint = " e ", " de "
    SHORT_MONTHS = "jan fev mar abr mai jun jul ago set out nov dez"
    feminine_articles = words("à às as das nas pelas umas")
    links, first_day = words("de"), "primeiro"
    dates = "{day} de {month}", "{day} de {month} de {year}"
    times = "{h:f} {hours}", "{h:f} e {m}", " e {s} segundos"
    ABBREVIATIONS = """c/: com; s/: sem; p/: para; s/n: sem número; n/a: não aplicável
        a/c: aos cuidados de; c/c: conta corrente
        Sr.: senhor; Sra.: senhora; Srs.: senhores; Sras.: senhoras; hab.: habitantes
        Srta.: senhorita; Dr.: doutor; Dra.: doutora
        Prof.: professor; Profa.: professora; D.: dom; Eng.: engenheiro; etc.: et cetera
        p.ex. p.~ex.: por exemplo; aprox.: aproximadamente; Av.: avenida; R.: rua; pág.: página
        págs.: páginas; séc.: século; sécs.: séculos
        tel.: telefone; vol.: volume; cap.: capítulo; fig.: figura
        apto. ap.: apartamento; art.: artigo; máx.: máximo/a; mín.: mínimo/a; incl.: incluído/a
        temp.: temperatura; vel.: velocidade; a.C.: antes de Cristo
        d.C.: depois de Cristo; xíc.: xícara; EUA: Estados Unidos; a.a.: ao ano; a.m.: ao mês
        inc.: inciso"""
    final = words("etc. EUA a.a. a.m.")
    starters = words("""Agora Além Aqui As Assim Com Depois Ela Elas Ele Eles Em Então Essa Esse
        Esta Este Eu Hoje Isso Mas Nós Obrigado Obrigada Os Para Quando Se Também Um Uma Você""")
    SYMBOLS = """&: e; @: arroba; =: igual a; ÷: dividido por; ×: vezes; °: graus
        ≈ ~: aproximadamente; <: menor que; >: maior que; ≤: no máximo; ≥: no mínimo
        ±: mais ou menos; §: parágrafo; ©: copyright"""
    WEB = """.: ponto; /: barra; -: hífen; _: sublinhado; ?: interrogação; =: igual; #: cerquilha
        *: asterisco; :: dois pontos"""
    opens, followers = words("p. D."), words("h")

    RULES = r"""
    .*, >> (?P<a>[1-9]\d{3})-(?P<b>\d{3})(?![\d-]) => {a:spell}, {b:spell}
    (?P<a>\d{1,2})/(?P=a)\s?h(?:oras)?(?!\w) => {a} em {a} horas
    (?P<h>\d{1,2})\s?h\s?(?P<m>\d{1,2})\s?min(?!\w) => {h:counted:h} e {m:counted:min}
    {HOUR}h{MINUTE}?(?:min)?(?!\w) => .time
    D\.(?=\s[A-ZÀ-Ý]\w*a(?!\w)) => dona
    (?P<a>\d{1,2})(?:\sx\s|x(?=0(?!\d))|(?<=(?<!\d)0)x)(?P<b>\d{1,2})(?=\s(?!x|(?:{UNITS})(?!\w))|[^\w\s]|$)
        => {a} a {b}
    """
