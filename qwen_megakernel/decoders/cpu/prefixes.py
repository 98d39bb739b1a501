"""The prefix cache: keys and values of positions that a prompt shares with earlier prompts.

A position is known by a hash of all rows up to it, so prompts that begin alike share the positions
of their beginning. The cache forgets the ends of prompts first, which are mostly the texts of
single prompts; the rows of a voice or an instruction, which stand in front of every text, are used
with each text and so stay.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import takewhile

from torch import Tensor


class PrefixCache:
    """Keys and values of prompts' positions, `kept_floats` float32 each.

    Beyond `limit_bytes` the cache forgets the least recently used ones.
    """

    def __init__(self, limit_bytes: int, kept_floats: int):
        self._most = limit_bytes // (4 * kept_floats)
        # Key of a position -> its [kept_floats]. A position is used after those behind it in its
        # prompt, so the first one here has none behind it.
        self._kept: OrderedDict[bytes, Tensor] = OrderedDict()

    def find(self, rows: Tensor) -> list[Tensor]:
        """Return the keys and values [kept_floats] of each position of a prompt's known beginning;
        `rows` are its embeddings, [num_positions, hidden_size] float32.
        """
        keys = self._known(list(keys_of(rows)))
        self._use(keys)
        return [self._kept[key] for key in keys]

    def add(self, rows: Tensor, read: Callable[[int], Tensor]) -> None:
        """Add a prompt, or as much of its beginning as the limit allows.

        Args:
            rows: [num_positions, hidden_size] float32 embeddings.
            read: read(position) returns the keys and values of one of the positions.
        """
        keys = list(keys_of(rows[: self._most]))
        num_known = len(self._known(keys))
        self._kept.update((keys[i], read(i)) for i in range(num_known, len(keys)))
        self._use(keys)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def _known(self, keys: Sequence[bytes]) -> Sequence[bytes]:
        return list(takewhile(self._kept.__contains__, keys))

    def _use(self, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):
            self._kept.move_to_end(key)


def keys_of(rows: Tensor) -> Iterator[bytes]:
    """Yield the key of each position of [num_positions, hidden_size] float32 embeddings."""
    so_far = blake2b(digest_size=16)
    for row in rows.numpy():
        so_far.update(row)
        yield so_far.digest()
