"""Control blocks: the grid barrier of a launch, and the word in which it reports its error.

A launch is enqueued before the launches in front of it have ended. So each has its own control
block and attention tickets, and a launch that fails does not change those of the next.
"""

import ctypes
from collections import deque

import torch
from torch import Tensor

from qwen_megakernel.decoders.kernel.library import MAX_STREAMS, Control
from qwen_megakernel.native.structs import offset_of

# The blocks of a launch poll the first word, which has a cache line of its own.
WORDS = 2 * offset_of(Control, "left") // 4
ERROR_WORD = offset_of(Control, "error") // 4
assert ctypes.sizeof(Control) <= 4 * WORDS


class ControlBlocks:
    """One control block and one set of tickets for every launch that may be under way.

    A launch that ends without an error leaves both zero; after an error `give_back` zeroes them.

    Args:
        num_slots: slots of the decoder: each may have a prompt under way, and all of them a step.
        num_rows, num_heads: shape of the tickets: streams of a launch, key-value heads.
    Attributes:
        words: [count, WORDS] int32, a `Control` at the beginning of each row.
        tickets: [count, num_rows, num_heads] int32.
        free: the rows that no launch has, in the order in which launches get them.
    """

    def __init__(self, num_slots: int, num_rows: int, num_heads: int, device: torch.device):
        count = num_slots + -(-num_slots // MAX_STREAMS) + 1
        self.words = torch.zeros(count, WORDS, dtype=torch.int32, device=device)
        self.tickets = torch.zeros(count, num_rows, num_heads, dtype=torch.int32, device=device)
        self.free = deque(range(count))

    def __len__(self) -> int:
        return len(self.words)

    @property
    def errors(self) -> Tensor:
        """The error words [count] int32, 0 for none; a view."""
        return self.words[:, ERROR_WORD]

    def take(self) -> int:
        return self.free.popleft()

    def give_back(self, row: int, *, is_clean: bool) -> None:
        """Free the row of a launch that has ended; the next launch finds zeros there."""
        if not is_clean:
            self.words[row].zero_()
            self.tickets[row].zero_()
        self.free.append(row)
