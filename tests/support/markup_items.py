"""The items that a parser of markup returns for a text in pieces."""

from qwen_megakernel.text.markup.items import Item, Parser, Words


def items_of(parser: Parser, *pieces: str) -> tuple[list[Item], str | None]:
    """Return the items, with neighbouring words joined, and the error if there is one."""
    found = [item for piece in pieces for item in parser.feed(piece)] + parser.end()
    joined: list[Item] = []
    for item in found:
        if isinstance(item, Words) and joined and isinstance(joined[-1], Words):
            joined[-1] = Words(joined[-1].text + item.text)
        else:
            joined.append(item)
    return joined, str(parser.error) if parser.error else None
