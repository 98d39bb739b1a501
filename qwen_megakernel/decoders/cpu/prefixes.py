"""The prefix cache: keys and values of positions that a prompt shares with earlier prompts.

It is a tree: prompts that begin alike share the nodes of their beginning. The cache forgets leaves
first, which are mostly the texts of single prompts; the rows of a voice or an instruction, which
stand in front of every text, are used with each text and so stay.
"""

from collections.abc import Callable, Iterator
from itertools import count

import torch
from torch import Tensor


class _Node:
    """Consecutive positions, up to the one after which prompts differ."""

    def __init__(self, rows: Tensor, kept: Tensor):
        self.rows, self.kept = rows, kept  # [n, hidden_size], [n, kept_floats]
        self.children: list[_Node] = []
        self.used = 0  # number of the last use; a later use has a larger number

    @property
    def num_bytes(self) -> int:
        return self.rows.nbytes + self.kept.nbytes

    def split(self, at: int) -> None:
        """Keep the first `at` positions here, and move the others into a child."""
        rest = _Node(self.rows[at:].clone(), self.kept[at:].clone())
        rest.children, rest.used = self.children, self.used
        self.rows, self.kept = self.rows[:at].clone(), self.kept[:at].clone()
        self.children = [rest]


class PrefixCache:
    """Keys and values of prompts' positions; the cache forgets the least recently used ones.

    Args:
        limit_bytes: maximum size of the cache.
        kept_floats: number of float32 values in the keys and values of a position.
    """

    def __init__(self, limit_bytes: int, kept_floats: int):
        self._limit, self._kept_floats = limit_bytes, kept_floats
        self._root = _Node(torch.empty(0, 0), torch.empty(0, kept_floats))
        self._uses = count(1)
        self.num_bytes = 0

    def find(self, rows: Tensor) -> Tensor:
        """Return the keys and values of a prompt's known beginning.

        Args:
            rows: [num_positions, hidden_size] embeddings.
        Returns:
            [n, kept_floats] float32 of the first n positions, which are in the cache.
        """
        found = [self._root.kept]
        for node, same in self._walk(rows):
            node.used = next(self._uses)
            found.append(node.kept[:same])
        return torch.cat(found)

    def add(self, rows: Tensor, read: Callable[[int, int], Tensor]) -> None:
        """Add a prompt, or as much of its beginning as the limit allows.

        Args:
            rows: [num_positions, hidden_size] embeddings; they are copied.
            read: read(first, count) returns the keys and values of some of the positions.
        """
        rows = rows[: self._limit // (4 * self._kept_floats + rows[0].nbytes)]
        at, parent = 0, self._root
        for node, same in self._walk(rows):
            if same < len(node.rows) and at + same < len(rows):
                node.split(same)
            at, parent = at + same, node
            node.used = next(self._uses)
        if at < len(rows):
            new = _Node(rows[at:].clone(), read(at, len(rows) - at))
            new.used = next(self._uses)
            parent.children.append(new)
            self.num_bytes += new.num_bytes
        while self.num_bytes > self._limit:
            self._forget_one()

    def _walk(self, rows: Tensor) -> Iterator[tuple[_Node, int]]:
        """Yield the nodes below the root along `rows`, each with the number of equal positions."""
        at, node = 0, self._root
        while at < len(rows):
            child = next((c for c in node.children if torch.equal(c.rows[0], rows[at])), None)
            if child is None:
                return
            node = child
            length = min(len(node.rows), len(rows) - at)
            differs = (node.rows[:length] != rows[at : at + length]).any(dim=1).nonzero()
            same = int(differs[0]) if len(differs) else length
            at += same
            whole = same == len(node.rows)
            yield node, same
            if not whole:
                return

    def _forget_one(self) -> None:
        """Remove the leaf that has not been used for the longest time."""
        leaves: list[tuple[int, _Node, _Node]] = []
        inner = [self._root]
        while inner:
            node = inner.pop()
            leaves += [(leaf.used, node, leaf) for leaf in node.children if not leaf.children]
            inner += [child for child in node.children if child.children]
        _, parent, leaf = min(leaves, key=lambda each: each[0])
        parent.children.remove(leaf)
        self.num_bytes -= leaf.num_bytes
