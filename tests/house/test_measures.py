"""`measures.py` counts what it says that it counts."""

import threading

import measures
import pytest

from qwen_megakernel.records import TextIds

SOURCE = '''"""A module
of two lines."""

from os import (
    path,
)

class A:
    """A class."""

    # a comment
    size = 1  # beside code

    def double(self):
        """Return twice the size."""
        text = """a string
        that is no docstring"""
        return path, text
'''


def test_a_line_of_code_is_neither_docstring_nor_import_nor_blank():
    assert measures.code_lines(SOURCE) == len(["class", "size", "def", "text", "string", "return"])
    assert measures.num_lines([SOURCE, "a\n"]) == len(SOURCE.splitlines()) + 1


def test_classes_of_the_package_are_met_in_every_thread_while_it_counts():
    met = measures.MetClasses()
    try:
        TextIds([1], [2])
        met.is_counting = True
        thread = threading.Thread(target=TextIds, args=([1], [2]))
        thread.start()
        thread.join()
        str(pytest.param())  # a class of another package
        met.is_counting = False
    finally:
        met.close()
    assert met.names == {"records.TextIds"}
