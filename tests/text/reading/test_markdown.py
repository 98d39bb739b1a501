"""Markdown is read as its text."""

import pytest

from qwen_megakernel.text.reading.reader import Reading

READING = Reading()


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("**Hello** you", "Hello you"),
        ("**Hello you**, *and* ***all***", "Hello you, and all"),
        ("__bold__ and _italic_", "bold and italic"),
        ("~~no~~ yes", "no yes"),
        ("see https://example.com/a.", "see example dot com slash a."),
        ("[two words](https://x.io/y) here", "two words here"),
        ("![a cat](cat.png)", "a cat"),
        ("<https://x.io>", "x dot io"),
        ("`code` and ``more``", "code and more"),
        ("```python\nprint\n```", "\nprint\n"),
        ("# Title\ntext", "Title.\ntext"),
        ("### Is it?\ntext", "Is it?\ntext"),
        ("- milk\n- eggs\nend", "milk.\neggs.\nend"),
        ("- \n- two\n", "\ntwo.\n"),
        ("- one\n- \n- two\n1. \n2. x", "one.\n\ntwo.\none. \ntwo. x"),
        ("* one\n+ two\n", "one.\ntwo.\n"),
        ("1. first\n2. second\n", "one. first.\ntwo. second.\n"),
        ("> quoted\n> text", "quoted\ntext"),
        (
            "Rooms: 2\n- 5 beds\n- Room 6\n- Room 7\n",
            "Rooms: two\nfive beds.\nRoom six.\nRoom seven.\n",
        ),
        ("1\n* 2\n+ 3\n> 4", "one\ntwo.\nthree.\nfour"),
        ("2<li>5 beds", "two\nfive beds"),
        ("5 -\n2", "five minus two"),
        ("above\n---\nbelow", "above\n\nbelow"),
        ("| a | b |\n|---|---|\n", "a , b ,\n\n"),
        ("it was so.[1] Then", "it was so. Then"),
        ("Q&amp;A &lt;5", "Q and A less than five"),
        (r"a \*star\*", "a *star*"),
        ("2 * 3", "two times three"),
        ("one - two", "one - two"),
        ("snake_case_name", "snake case name"),
        ("**3:05** pm", "three oh five p m"),
        ("line<br>break", "line\nbreak"),
        ("one<br />two", "one\ntwo"),
        ('<p class="a">One</p><p>Two</p>', "One\nTwo\n"),
        ("<ul><li>milk</li><li>eggs</li></ul>", "milk.\neggs.\n"),
        ("<h2>Title</h2><p>Text &amp; more</p>", "Title.\nText and more\n"),
        ('<a href="https://x.io">Click here</a> now', "Click here now"),
        ("<table><tr><td>a</td><td>b</td></tr></table>", " a  b \n"),
        (
            "Tom&rsquo;s caf&eacute; &euro;5 &mdash; x &lt; 5",
            "Tom’s café five euros — x less than five",
        ),
        ("if a <b then", "if a less than b then"),
        ("- [ ] Buy 2 eggs\n- [x] Pay $5\n", "Buy two eggs.\nPay five dollars.\n"),
        ("Step 1\ufe0f\u20e3: open", "Step one: open"),
        (r"so \(x = 5\) and $y + 2$", "so x equals five and y plus two"),
        (r"$$\frac{3}{4} \times 8$$ is \boxed{6}.", "three quarters times eight is six."),
        (r"20^\circ C, 50\%, 2^{3}", "twenty degrees C, fifty percent, two cubed"),
        ("$HOME or $5 and $6", "$HOME or five dollars and six dollars"),
        (r"a\_b", "a_b"),
    ],
)
def test_marks_are_not_spoken(written: str, spoken: str):
    made = READING.reader("on", "english", None)
    assert made.whole(written) == spoken
    made = READING.reader("on", "english", None)
    assert "".join(map(made.feed, written)) + made.end() == spoken
