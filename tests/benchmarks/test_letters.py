"""benchmarks/letters.py: the estimated length of a spoken text."""

from benchmarks.letters import count_letters


def test_digits_ideographs_and_pauses_take_longer_than_letters():
    assert count_letters("a") < count_letters("a,") < count_letters("a.")
    assert count_letters("7") == count_letters("four")
    assert count_letters("你") == 3
