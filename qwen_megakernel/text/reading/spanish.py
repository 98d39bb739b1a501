"""Spanish: the genders of numerals, ordinals such as "1.º" and "1er", and hours after noon."""

from qwen_megakernel.text.reading.romance import Romance
from qwen_megakernel.text.reading.words import words


class Spanish(Romance):
    code = "es"
    minus, plus, point = "menos", "más", "coma"
    percent, per, to, number_sign = "por ciento", "por", "a", "número"
    by, over, rating, power = "por", "sobre", "{} sobre {}", " elevado a {}"
    due = words("el del al día hasta desde vence vencimiento")
    ENDINGS = r"""f: uno$ una, cientos\b cientas, quinientos quinientas
        c: veintiuno$ veintiún, uno$ un"""
    ordinal_marks = r"\.?º|\.?°|o\b|ro\b|do\b|to\b|mo\b|vo\b|no\b"
    feminine_marks = r"\.?ª|a\b(?!\.)|(?:ra|da|ta|ma|va|na)\b"
    clock_words, feminine_articles = words("las"), words("la las unas")
    halves = "medio", "media"
    BEFORE_DIGITS = r"p\.\s?: página; c/: cada"
    PARTS = """2: medio; 3: tercio; 4: cuarto; 10: décimo; 11: onceavo; 12: doceavo; 20: veinteavo
        100: centésimo"""
    FEMININE, MASCULINE = "a dad dade cione ción sión tud", "o or ore al ale án ane e"
    max_named_part, parts_form = 9, "{top} entre {bottom}"
    noun_gender = "c"
    UNITS = """p.p.: punto porcentual, puntos porcentuales; mAh: miliamperio hora, miliamperios hora
        seg: segundo; dB: decibelio; x × vez veces: vez, veces, f; cda. cdas.: cucharada, f
        cdta. cdtas.: cucharadita, f; vaso vasos: vaso; pts pts.: punto
        persona personas pers: persona, f; comp.: comprimido
        lpm: latido por minuto, latidos por minuto"""
    SCALES = "mil: mil, mil; millón millones M: millón, millones"
    MONEY_SCALES = "k: mil, mil"
    CURRENCIES = """€ EUR: euro / céntimo; $ USD: dólar, dólares / centavo
        £ GBP: libra, f / penique; ¥ JPY: yen, yenes; MXN: peso / centavo"""
    money_joint, scale_joint = " con ", " de "
    SHORT_MONTHS = "ene feb mar abr may jun jul ago sept/sep oct nov dic"
    links = words("de del")
    dates = "{day} de {month}", "{day} de {month} de {year}"
    ABBREVIATIONS = """D.ª: doña; dcha.: derecha; izq. izda.: izquierda; hab.: habitantes
        háb.: hábiles; mill.: millones; p.a.: por año
        s/n: sin número; c/u: cada uno; a/c: aire acondicionado; n/a: no aplica
        Sr.: señor; Sra.: señora; Srta.: señorita; Sres.: señores; Dr.: doctor
        Dra.: doctora; D.: don; Dña.: doña; Prof.: profesor; Ud. Vd.: usted; Uds. Vds.: ustedes
        etc.: etcétera; p.ej. p.~ej.: por ejemplo; aprox.: aproximadamente; Avda. Av.: avenida
        C/: calle; pág.: página; págs.: páginas; núm.: número; tel.: teléfono; vol.: volumen
        cap.: capítulo; fig.: figura; ext.: extensión; art.: artículo; máx.: máximo/a
        mín.: mínimo/a; incl.: incluido/a; temp.: temperatura; vel.: velocidad
        EE.UU. EE.~UU.: Estados Unidos; cda.: cucharada; cdta.: cucharadita; a.C.: antes de Cristo
        d.C.: después de Cristo"""
    final = words("etc. EE.UU. EE.~UU.")
    starters = words("""Además Ahora Allí Así Aunque Con Cuando Después Ella Ellas Ellos En Entonces
        Esta Este Esto Gracias Hay Hoy Luego Nosotros Para Pero Si Su Sus También Un Una Usted Ya Yo
       """)
    SYMBOLS = """&: y; @: arroba; =: igual a; ÷: dividido entre; ×: por; °: grados
        ≈ ~: aproximadamente; <: menor que; >: mayor que; ≤: como máximo; ≥: como mínimo
        ±: más o menos; §: sección; ©: copyright"""
    WEB = """.: punto; /: barra; -: guion; _: guion bajo; ?: interrogación; =: igual; #: almohadilla
        *: asterisco; :: dos puntos"""
    opens, followers = words("p. s. ss. EE. &"), words("h hab")

    RULES = r"""
    1(?:\.?[º°]|ro)(?=\sde\s) => primero
    1\.?er(?!\w) => primer
    3\.?er(?!\w) => tercer
    (?P<n>[2-9])\shab\. => {n} habitaciones
    s\.(?=\s[IVX]+(?!\w)) => siglo
    ss\.(?=\s[IVX]+(?!\w)) => siglos
    &(?=\s(?:[Hh]i(?![aeou])|[Ii](?![aeou]))) => e
    """

    def time(self, hour: int, minute: int, second: int | None) -> str:
        """Return a time of day; "horas" follows a full hour above 12, and midnight."""
        words = self.cardinal(hour, "f")
        words += f" y {self.say(minute)}" if minute else " horas" * (hour > 12 or not hour)
        return words + (f" con {self.say(second)} segundos" if second else "")
