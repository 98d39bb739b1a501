"""Other people's text, made fit for a line of a log or the value of a header."""


def printable(text: str, max_chars: int = 200) -> str:
    r"""Return `text` as one line that a terminal shows as it is.

    Characters that `repr` would escape become escapes, such as "\n", "\x1b" and "\u202e": control
    characters, line separators, marks of direction, half surrogate pairs, spaces other than " ".
    A backslash stays a backslash, so a text that is printable already is returned unchanged.

    Args:
        text: any text, of a client for example.
        max_chars: the most characters returned, 3 or more; a longer text is cut and ends in "...".
    """
    line = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode()
        for each in text[: max_chars + 1]
    )
    return line if len(line) <= max_chars else f"{line[: max_chars - 3]}..."
