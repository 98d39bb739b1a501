"""Numbers that a word before them announces as a code, a version or a model: "OTP is 482913".

The words are those of all ten languages, since texts about software mix them.
"""

import re

MAX_PAST = 40  # characters before a number that may announce it

_CODES = """(?:(?:pass|post|zip|bar)?code|otp|pin|password|zip|postcode|(?:order|booking|account|ref
    |reference|ticket|tracking|serial|confirmation|invoice)\\s(?:number|no\\.?|id)|kennwort|passwort
    |plz|[a-zäöüß]+(?:nummer|code|schlüssel)|code(?:\\s(?:postal|secret|pin|d[e']\\s?\\w+))
    |(?:commande|pedido|ordine|заказ)\\s(?:n[°º.]|n\\.?º|№)|c[óo]digo(?:\\s(?:postal|pin|de\\s\\w+))?
    |clave|senha|cep|codice(?:\\s(?:pin|di\\s\\w+))?|(?:пин-?)?код(?:\\s\\w+)?|пароль|индекс|номер\\sзаказа
    |ext\\.|dw|app\\.|nebenstelle|ramal|durchwahl|interno|доб\\.|добавочный|分机|内線|내선|验证码|密码|邮编|订单号|编号|口令|コード|番号|번호|코드)"""
_LINKS = r"is|are|was|ist|lautet|war|est|es|è|é|:|：|—|\#|是|为|は|는|은"
_CODE = re.compile(
    rf"(?<![A-Za-zÀ-ÿА-яё])(?:{_CODES})(?:\s*(?:{_LINKS}))?\s*[\#(\"'“«]?$", re.I | re.X
)
_CODE_DIGITS = re.compile(r"(?:\d{3,12}|[-–]\d{2,12})(?![.,:/-]?\d|\s?[%°€$])(?![A-Za-z])")
_VERSION = re.compile(
    r"(?<![A-Za-zÀ-ÿА-яё])(?:versi(?:on|one|ón)|versão|верси[яюи]|release|v\.|python|node(?:\.?js)?|ios"
    r"|ipados|macos|android|windows|java|ubuntu|debian|php|ruby|cuda|(?:py)?torch|npm|pip|firmware"
    r"|chrome|firefox|版本|バージョン|버전)\s*$",
    re.IGNORECASE,
)
_MAKER = re.compile(
    "(?:Boeing|Airbus|Embraer|Bombardier|Cessna|Fokker|Боинга?|Аэробуса?|Эмбраера?|波音|空客|空中客车"
    r"|ボーイング|エアバス|보잉|에어버스)\s?$"
)
_MODEL = re.compile(r"\d{3}-\d{3}(?![.,/-]?\d)")
_VERSION_NUMBER = re.compile(r"\d{1,4}(?:\.\d{1,4})+(?![A-Za-z\d]|[.,/-]\d)")


def announced(text: str, place: int, past: str) -> tuple[str, int]:
    """Return the kind of a number at `place` that the text before it announces, and its end.

    Args:
        text: a segment.
        past: what stands before `place`, at most `MAX_PAST` characters of it.
    Returns:
        "code", "version" or "model", and the end of the number; ("", 0) for any other number.
    """
    for kind, word, number in (
        ("code", _CODE, _CODE_DIGITS),
        ("version", _VERSION, _VERSION_NUMBER),
        ("model", _MAKER, _MODEL),
    ):
        if (match := number.match(text, place)) and word.search(past):
            return kind, match.end()
    return "", 0
