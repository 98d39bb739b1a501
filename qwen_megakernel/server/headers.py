"""The values of response headers that contain a client's text.

HTTP allows neither control characters nor outer spaces in a value, and a server refuses to send one
with them: the client then gets no response at all.
"""

import re
from collections.abc import Iterable
from urllib.parse import quote

MAX_HEADER_CHARS = 1024  # of one value; proxies have 4 or 8 KB for all headers together

_UNCHANGED = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
_LEGAL = re.compile(rb"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?")


def header_value(text: str) -> str:
    """Return a text as the value of a header.

    Args:
        text: any text, half a surrogate pair included.
    Returns:
        The text without outer white space, percent-encoded (UTF-8) except for the printable
        characters of ASCII. It is cut between characters after at most 1024 characters.
    """
    encoded = ""
    for char in text.strip():
        encoded_char = quote(char, safe=_UNCHANGED, errors="replace")
        if len(encoded) + len(encoded_char) > MAX_HEADER_CHARS:
            break
        encoded += encoded_char
    return encoded.rstrip(" ")


def check_headers(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raise a ValueError that names and shows the first header that HTTP does not allow."""
    for name, value in headers:
        if not _LEGAL.fullmatch(value):
            what = f"The response header {name.decode()} has the value {value[:200]!r}"
            raise ValueError(f"{what}, which HTTP does not allow.")
