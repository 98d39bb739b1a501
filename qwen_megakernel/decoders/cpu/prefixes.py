"""What prompts have in common: keys and values of positions that another prompt had before.

A tree: prompts that begin alike share the nodes of their beginning. Its leaves, which are mostly
the texts of single prompts, are forgotten first; what a voice or an instruction puts in front of
every text is used with each of them and stays.
"""

from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch import Tensor


class _Node:
    """Positions that follow each other, up to where prompts part."""

    def __init__(self, rows: Tensor, kept: Tensor):
        self.rows, self.kept = rows, kept  # [n, hidden_size], [n, kept_floats]
        self.children: list[_Node] = []
        self.used = 0  # the later, the larger

    @property
    def num_bytes(self) -> int:
        return self.rows.nbytes + self.kept.nbytes

    def split(self, at: int) -> None:
        """Leave the first `at` positions here, and the others in a child."""
        rest = _Node(self.rows[at:].clone(), self.kept[at:].clone())
        rest.children, rest.used = self.children, self.used
        self.rows, self.kept = self.rows[:at].clone(), self.kept[:at].clone()
        self.children = [rest]


class PrefixCache:
    """Keys and values of prompts' positions, least recently used ones forgotten.

    Args:
        limit_bytes: that all of it takes.
        kept_floats: numbers that a position's keys and values are.
    """

    def __init__(self, limit_bytes: int, kept_floats: int):
        self._limit, self._kept_floats = limit_bytes, kept_floats
        self._root = _Node(torch.empty(0, 0), torch.empty(0, kept_floats))
        self._uses = count(1)
        self.num_bytes = 0

    def find(self, rows: Tensor) -> Tensor:
        """Of the beginning of a prompt that is known: its keys and values [n, kept_floats]."""
        found = [self._root.kept]
        for node, same in self._walk(rows):
            node.used = next(self._uses)
            found.append(node.kept[:same])
        return torch.cat(found)

    def add(self, rows: Tensor, read: Callable[[int, int], Tensor]) -> None:
        """Remember a prompt, as much of it as the limit allows.

        Args:
            rows: [num_positions, hidden_size] embeddings, copied.
            read: read(first, count) gives the keys and values of some of the positions.
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

    def _walk(self, rows: Tensor) -> Any:
        """Nodes from the root's children on, each with how many of its positions `rows` has."""
        at, node = 0, self._root
        while at < len(rows):
            node = next((c for c in node.children if torch.equal(c.rows[0], rows[at])), None)
            if node is None:
                return
            length = min(len(node.rows), len(rows) - at)
            differs = (node.rows[:length] != rows[at : at + length]).any(dim=1).nonzero()
            same = int(differs[0]) if len(differs) else length
            at += same
            whole = same == len(node.rows)
            yield node, same
            if not whole:
                return

    def _forget_one(self) -> None:
        """Remove the leaf that was not used for the longest time."""
        leaves, inner = [], [self._root]
        while inner:
            node = inner.pop()
            leaves += [(leaf.used, node, leaf) for leaf in node.children if not leaf.children]
            inner += [child for child in node.children if child.children]
        _, parent, leaf = min(leaves, key=lambda each: each[0])
        parent.children.remove(leaf)
        self.num_bytes -= leaf.num_bytes
