"""The source of the web page: contrast of its colours, and no other host."""

import re

import numpy as np
import pytest

from qwen_megakernel.server.app import PAGE

SOURCE = PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(scheme: str) -> None:
    blocks = re.findall(r":root \{(.*?)\}", SOURCE, re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#\w+)", blocks[("light", "dark").index(scheme)]))

    def luminance(name: str) -> float:
        digits = colours[name].lstrip("#")
        digits = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
        shares = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    def contrast(one: str, other: str) -> float:  # WCAG 2
        light, dark = sorted((luminance(one), luminance(other)), reverse=True)
        return (light + 0.05) / (dark + 0.05)

    grounds = ("page", "card", "field")
    pairs = [("on-accent", "accent"), ("bad", "bad-page")]
    pairs += [(ink, ground) for ink in ("ink", "muted") for ground in grounds]
    assert all(contrast(*pair) >= 4.5 for pair in pairs)
    assert all(contrast(edge, "card") >= 3 for edge in ("strong-line", "accent"))


def test_lengths_are_seconds_and_a_model_that_cannot_clone_has_no_form_for_it() -> None:
    text = re.sub(r"<script>.*</script>", "", SOURCE, flags=re.DOTALL)
    assert "(seconds)" in text and "(frames)" not in text
    assert '$("clone").parentElement.hidden = !model.can_clone' in SOURCE


def test_the_page_is_one_file_that_names_no_other_host() -> None:
    assert not re.findall(r'(?:src|href)="(?!data:,")[^"]+"', SOURCE)
    assert "://" not in SOURCE and "import " not in SOURCE
