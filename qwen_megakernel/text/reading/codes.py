"""Telephone numbers, codes, versions and addresses: what is read digit by digit, also in doubt.

A number read digit by digit is understood, and a telephone number read as billions is not. Words
before a number announce a code, a version or a model ("OTP is 482913"). They are those of all ten
languages, since texts about software mix them.
"""

import re

from qwen_megakernel.text.reading.surroundings import Found
from qwen_megakernel.text.reading.words import Words

MAX_PAST = 40  # characters before a number that may announce it

_TRAILING = ".,;:!?*_…"  # behind an address
# Digits in groups are a telephone number or a code, not a quantity or a range, if they have a
# prefix or a leading zero, or a layout of groups in which no quantity is written.
_PREFIXED = re.compile(r"\+|\(?0(?![./]\d\b)|\(\d{2,5}\)")
_LAYOUT = re.compile(
    r"(?:\d[-. ])?\d{3}[-–. ]\d{3}[-–. ]\d{4}|\d{3}-\d{2}-\d{4}|\d{3}[-–. ]\d{4}"
    r"|\d{4}(?:[ -]\d{4}){2,}(?: \d{1,3})?"
    r"|\d{3}[- ]\d{4}[- ]\d{4}|\d+(?:-\d+){3,}|\d{4} \d{3} \d{3}|\d{3}(?:[- .]\d\d){3}|\d{4} \d{6}"
    r"|\d(?:[ -]\d{3}){2}(?:[ -]\d\d){2}|\d \(\d{3,5}\) ?\d+(?:[- ]\d+)*|\d{2}[ -]\d{4,5}[ -]\d{4}"
    r"|\d{3}[ /]\d{6,7}|\d{3}\.\d{3}\.\d{3}-\d\d|\d\d\.\d{3}\.\d{3}/\d{4}-\d\d"
    r"|\d{5}[ -]\d{5}|\d{5}-\d{4}|\d{4} \d{2} \d{2} \d{2}|\d{2} \d{3} \d{2} \d{2}"
)
_HAS_ZERO = re.compile(r" 0(?:\d|\d{3,})(?!\d)")  # begins a group that no quantity has
_CALLED = re.compile(
    r"(?i)(?<![^\W_])(?:call|dial|phone|t[eé]l(?:[eé]?(?:ph|f)\w*)?|text|fax|mobile?|cell|anrufen|handy"
    r"|rufnummer|appelez|numéro|cellulare|chiam[ai]|(?:llam[ae]r?|contacte)(?:\sal)?|móvil|celular|ligue|telemóvel|тел"
    r"|телефону?|звоните|позвоните|факс|номеру)[\s.:]*$"
)
_DOLLARS = re.compile(r"(?<!R)\$|USD|MXN|£|GBP")  # a comma groups their thousands everywhere
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?: \d{3})+")
_LISTED = re.compile(r"\d[,;]\s\d+[,;]\s$")  # numbers in a list, not a house and a postal code
_MIN_PHONE_DIGITS = 7
_MIN_CODE_DIGITS = 7  # digits without a mark between thousands that are no quantity
MIN_NUMBERED_DIGITS = 5  # the same behind a sign for "number"
NUMBER_MARK = re.compile(r"(?:[nN]\.?[°º]|№|[nN]r\.?|[nN]o\.|[nN]\.)\s?$")
# The letters of a model, a flight or a serial number before its digits, which are read one by one.
_NAME_AND_DASH = re.compile(
    r"(?:(?<![^\W_])(?!FY)[A-ZА-ЯЁ]{1,5}-?(?:\d+-)*|(?![QH]\d-)[A-Za-z]\d{1,2}-)$"
)
_NAME = re.compile(r"(?<![A-Za-zА-яЁё])[A-ZА-ЯЁ]{2,5}$")

# Capitals and digits that are no id: "2024-Q3", "Q1-2025", "12-MAR-2024", seats, "10X20".
_NO_ID = re.compile(
    r"(?:FY)?\d{2,4}-[QHW]\d{1,2}|[QHW]\d{1,2}-?(?:FY)?\d{2,4}|\d{1,2}-[A-Z]{3,}-\d{2,4}"
    r"|\d{1,3}[A-Z]-\d{1,3}[A-Z]|\d+(?:X\d+)+[A-Z]*"
)
_RANGE_IN_UNITS = re.compile(r"\d+-(\d+)([A-Z]+)")
_RUN = re.compile(r"\d+|[A-Z]+")
_MIN_ID_DIGITS = 4
_CHECK_LETTER = re.compile(r"[A-Z](?!\w)")  # behind the digits of an id, "12345678Z"


class Codes(Words):
    """The rules of what is read digit by digit; its rows come before those of all languages."""

    announced = r"""(?ix:(?<![A-Za-zÀ-ÿА-яё])(?:
    (?:pass|post|zip|bar)?code|id|otp|pin|password|zip(?:\+4)?|port[ao]?|puerto
    |порт\w*|(?:order|booking|account|ref|reference|part|item|ticket|tracking|serial|confirmation|invoice)\s(?:number|no\.?|id|\#)|kennwort
    |(?:card|account|acct\.?|visa|mastercard|amex|number|ssn|phone)(?:\s\w+){0,2}\s(?:ending|ends)(?:\s(?:in|with))?|passwort
    |(?-i:CAP|CP|C\.P\.|CV[VC]2?|SIRE[TN]|DNI|NI[EF]|EAN|IMEI|VAT)|p\.\s?iva|(?<=\d)转|房间|房号
    |(?:bestell|rechnung|auftrag|vertrag|kunde|vorgang|sendung|ticket|artikel)\w*\s(?:nr\.|nummer)
    |plz|blz|[a-zäöüß]+[-.]*(?:nummer|nr\.|code|schlüssel)|nr\.:|r[eéi]f\.(?:\s\w+)?|арт\.|code(?:\s(?:postal|secret|pin|d[e']\s?\w+))
    |(?:commande|pedido|ordine|заказ)\s(?:n[°º.]|n\.?º|№)
    |(?:n(?:um[eé]ro|úmero|[°º]|\.º))(?:\sd[eio])?\s(?:commande|client|dossier|suivi|série|compte|facture
    |réservation|pedido|cuenta|conta|cliente|fa[ct]tura|fatura|serie|série|reserva|seguimiento|ordine
    |conto|prenotazione|pratica)|c[óo]d\.(?:\s\w+){0,2}|c[óo]digo(?:\s(?:postal|pin|de\s\w+))?
    |ende(?:t|nd)\sauf|(?:cuenta|tarjeta)\sterminada\sen|se\sterminant\spar|(?:conto|carta)\sche\stermina\scon
    |(?:conta|cartão)\s(?:com\s)?final|оканчивающ\w+\sна|尾号|下[4四]桁|끝자리
    |fax|ag(?:\.|ência)|c/c|conta(?:\scorrente)?|끝\s?[4네]?\s?자리
    |matr[íi]cula|placa|targa|clave|senha|cep|codice(?:\s(?:pin|di\s\w+))?|(?:пин-?)?код(?:\s\w+)?|пароль|индекс|(?:номер|№)\s(?:заказа|клиента|договора|брони|полиса|сч[её]та)
    |ext(?:ension)?|ext\.|dw|app\.|nebenstelle|ramal|durchwahl|interno|доб\.|добавочный|分机|内線|내선|码|端口|订单|ポート|포트|邮编|[单户账卡]号|编号|口令|コード|番号|번호|코드)
    (?:\s*(?:is|are|was|ist|lautet|war|est|es|è|é|:|：|—|\#|是|为|は|는|은))?\s*[\#("'“«]?)"""
    RULES = r"""
    {ANNOUNCED}(?<!\d)(?<!\d\s)$ >> (?!0\d+ \d|0\d{1,3}-\d{3,4}-|{LETTERS_FOLLOW}\d{3}-\d{4}(?!\d))
        (?P<n>(?:\d{3}(?: \d{3})+|\d{4}(?: \d{4})+|(?=[\d-]{6})\d+(?:-\d{1,12})+|[-–]?\d{3,12}
        |[-–]\d\d)(?![.,/-]?\d|:\d\d|\s?[%°€$])(?!-?[A-Z]+\d|[A-Za-z])) => {n:spell}
    (?i:(?<![A-Za-zÀ-ÿА-яё])(?:versi(?:on|one|ón)|versão|верси[яюи]|release|{VERSION_MARK}|python|cuda
        |node(?:\.?js)?|ios|ipados|macos|android|windows|java|ubuntu|debian|php|ruby|(?:py)?torch|npm|pip
        |firmware|chrome|firefox|usb|hdmi|bluetooth|版本|バージョン|버전))\s*$
        >> (?P<n>(?!\d{1,2}\.\d{1,2}\.(?:(?:19|20)\d\d(?!\d)|\s[a-zäöü]))\d{1,4}(?:\.\d{1,4})+)
        (?![A-Za-z\d]|[.,/-]\d) => {n:version}
    (?i:(?<![^\W_])https?/)$ >> (?P<n>[1-3](?:\.\d)?)(?![.\d]) => {n:version}
    """

    def digits_of(self, found: Found, name: str = "") -> tuple[str, str]:
        """Return the digits of a number before and after its decimal mark."""
        whole, decimals = re.sub(r"\D", "", found[f"{name}w"]), found[f"{name}d"]
        is_grouped = len(decimals) == 3 and self.decimal == "," and _DOLLARS.search(found["sym"])
        return (whole + decimals, "") if is_grouped else (whole, decimals)

    def _is_code(self, found: Found, whole: str) -> bool:
        """Return whether a number is so long that its thousands would be marked in a quantity."""
        text, begin, before = found.match.string, found.match.start(), found.before
        has_name = _NAME_AND_DASH.search(text, 0, begin) is not None
        if has_name or (len(whole) == 4 and _NAME.search(before) and not found["sign"]):
            is_year = not has_name and self.is_year(whole)
            is_round = len(whole) < 5 and whole.endswith("00")
            return found.text == whole and len(whole) > 2 and not (is_year or is_round)
        if self._is_postal(found, whole):
            return True
        least = MIN_NUMBERED_DIGITS if NUMBER_MARK.search(text, 0, begin) else _MIN_CODE_DIGITS
        is_plain = found.text == whole and not whole.endswith("000")
        is_apart = not found.rest[:1].isalpha() or _CHECK_LETTER.match(found.rest) is not None
        return is_plain and is_apart and len(whole) >= least

    def _is_postal(self, found: Found, whole: str) -> bool:
        """Return whether a number is a postal code, as in "rue de la Paix 12, 75002 Paris"."""
        house = found.before[:-1]
        is_listed = house.isdigit() and (_LISTED.search(found.past) or self.is_year(house))
        is_behind_comma = self.decimal == "," and found.before[-1:] == "," and not is_listed
        return is_behind_comma and len(whole) == self.postal_digits and found.text == whole

    def read_phone(self, found: Found) -> str | None:
        text, following = found.text.partition("x")[0].rstrip(), found.rest[:1]
        if (following.isalnum() and not self.letters_follow) or following in tuple("€$£¥₽%"):
            return None
        is_number = sum(map(str.isdigit, text)) >= _MIN_PHONE_DIGITS
        is_called = bool(_CALLED.search(found.past) or re.search(self.announced + "$", found.past))
        if _THOUSANDS.fullmatch(text) and not is_called:
            is_number &= not (self.groups_with_spaces or text.endswith(" 000"))
        elif not _PREFIXED.match(text) and not is_called:
            is_number &= _LAYOUT.fullmatch(text) is not None or _HAS_ZERO.search(text) is not None
        if re.fullmatch(r"\d{3} \d{4}", text) and found.before.strip(".,").isnumeric():
            return None
        is_version = re.fullmatch(r"\d+(?:\.\d+){2,}", text) and not _LAYOUT.fullmatch(text)
        is_version = is_version and text[0] != "0"
        if not is_number or is_version or re.fullmatch(r"\d+\.\d+", text):
            return None
        plus = self.plus + " " if text.startswith("+") else ""
        said = plus + ", ".join(map(self.spell_phone, re.findall(r"\d+", text)))
        return said + (f" {self.extension} {self.spell(found['x'])}" if found["x"] else "")

    def read_mixed_id(self, found: Found) -> str | None:
        """Return the digits and letters of an id such as "8842-XK19", one by one; None for a name.

        An id has a group with letters and digits, or three groups, or digits between letters.
        """
        text = found.text
        groups, runs = text.split("-"), _RUN.findall(text)
        num_digits = sum(map(str.isdigit, text))
        least = _MIN_ID_DIGITS - (len(groups) > 2)
        is_mixed = len(runs) > max(2, len(groups)) or len(groups) > 2
        is_id = is_mixed and num_digits >= least and not _NO_ID.fullmatch(text)
        if groups[0].isdecimal() and groups[1:2] and groups[1] in self.units:
            return None  # "256-GB-SSD"
        if not is_id or found.last in tuple("-.,"):
            return None
        unit = _RANGE_IN_UNITS.fullmatch(text)
        if unit and (len(unit[1]) < _MIN_ID_DIGITS or unit[2] in self.units | self.scales):
            return None
        return " ".join(
            run if len(run) > 2 and run.isalpha() else self._singly(run) for run in runs
        )

    def read_iban(self, found: Found) -> str | None:
        """Return an IBAN in groups of four; None if its check digits are not right."""
        text = found.text.replace(" ", "")
        if int("".join(str(int(char, 36)) for char in text[4:] + text[:4])) % 97 != 1:
            return None
        return ", ".join(self._singly(text[at : at + 4]) for at in range(0, len(text), 4))

    def _singly(self, text: str) -> str:
        """Return capitals and digits one by one."""
        runs = _RUN.findall(text)
        return " ".join(" ".join(run) if run.isalpha() else self.spell(run) for run in runs)

    def read_pointed(self, found: Found) -> str | None:
        """Return the words of a version or an address such as "10.0.0.1"; None for a quantity."""
        parts = found.text.split(".")
        are_groups = all(len(part) == 3 for part in parts[1:])
        if self.decimal == "," and are_groups:
            return None
        if len(parts) == 4 and all(int(part) < 256 for part in parts):
            return self._joint(self.dot).join(map(self.spell, parts))
        if are_groups and 0 < int(parts[0]) < 1000:
            return self.number("".join(parts))
        return self.version(found.text)

    def version(self, text: str) -> str:
        """Return the words of "10.4.12", a version."""
        point = self.point if self.decimal == "." else self.dot
        return self._joint(point).join(map(self.number, text.split(".")))

    def read_chain(self, found: Found) -> str:
        """Return the words of a formation (4-3-3), of the number of a part, or of a mixture."""
        joint = self._joint(self.ratio) if found["mark"] == ":" and self.ratio else self.space
        return joint.join(map(self.number, found.text.split(found["mark"])))

    def read_hex(self, found: Found) -> str:
        """Return the digits of a colour such as "#ff8800", or of an address of a network."""
        sign = self.web["#"] + " " if found.text[0] == "#" else ""
        return sign + ", ".join(map(self._singly, re.findall(r"\w+", found.text.upper())))

    def read_web(self, found: Found) -> str:
        """Return the words of an address: its marks by their names, its digits one by one."""
        text = found.text
        address = re.sub(r"(?i)^(?:https?|ftp|wss?)://", "", text).rstrip(_TRAILING + "/")
        said: list[str] = []
        for part in re.findall(r"(?i)^www|[^\W\d_]+|\d|.", address):
            if part.lower() == "www":
                said += ["w", "w", "w"]
            else:
                said.append(self.spell(part) if part.isdigit() else self.web.get(part, part))
        return " ".join(said) + text[len(text.rstrip(_TRAILING)) :]
