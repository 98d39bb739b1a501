"""Memory for weights, on kernels with huge pages and without."""

import errno
import mmap

import pytest

from qwen_megakernel.errors import OutOfMemory
from qwen_megakernel.native.memory import HUGE_PAGE, huge_pages


def test_memory_begins_with_a_page():
    memory = huge_pages(HUGE_PAGE + 1, "Fewer.")
    assert len(memory) == HUGE_PAGE + 1 and memory.data_ptr() % HUGE_PAGE == 0
    assert not memory.any()


def test_a_kernel_without_huge_pages_gives_memory_all_the_same(monkeypatch):
    """It refuses the advice with EINVAL, as one that was built without them does."""

    class WithoutHugePages(mmap.mmap):
        def madvise(self, *_):
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", WithoutHugePages)
    assert len(huge_pages(100, "Fewer.")) == 100


def test_more_than_there_is_is_an_error_with_the_hint():
    with pytest.raises(OutOfMemory, match=r"does not fit into memory.*\nFewer\."):
        huge_pages(2**62, "Fewer.")
