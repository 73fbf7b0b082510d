"""Which tokens' KV lies in which block: a prefix tree with one block per node.

A node is reached by the exact tokens of all blocks before it, so two different prefixes can never be taken for each
other, whatever their hashes do. Who holds a block and when it may be evicted is left to the pool and the manager.
Invariant: the blocks on the way from the root to a node hold the KV of the tokens on that way.
"""

from __future__ import annotations

from attrs import define, field

from tlserve.errors import EngineError
from tlserve.names import BlockId

BlockKey = tuple[str, tuple[int, ...]]
"""What a step down the tree is labelled with: the salt and the tokens of one full block."""


@define(eq=False)
class Node:
    """One full block. ``parent`` is None for the first block of a prefix; ``key`` labels the step from it to here."""

    key: BlockKey
    block: BlockId
    parent: Node | None
    children: dict[BlockKey, Node] = field(factory=dict, repr=False)


class PrefixTree:
    """Full blocks by their tokens; the salt is part of every key, so that tenants share no node. Engine thread only."""

    def __init__(self) -> None:
        self._first: dict[BlockKey, Node] = {}
        self._by_block: dict[BlockId, Node] = {}

    def __len__(self) -> int:
        return len(self._by_block)

    def step(self, parent: Node | None, key: BlockKey) -> Node | None:
        """The node that ``key`` leads to from ``parent`` (None: from the root), if there is one."""
        return self._children(parent).get(key)

    def insert(self, parent: Node | None, key: BlockKey, block: BlockId) -> Node:
        """Hang a block, whose KV is computed, under ``parent``; nothing may hang there under the same key."""
        node = Node(key, block, parent)
        self._children(parent)[key] = node
        self._by_block[block] = node
        return node

    def remove(self, block: BlockId) -> None:
        """Forget a leaf.

        Raises:
            EngineError: other blocks continue this one, so that it cannot go first.

        """
        node = self._by_block[block]
        if node.children:
            raise EngineError(f"KV block {block} cannot be evicted: {len(node.children)} cached blocks continue it")
        del self._by_block[block]
        del self._children(node.parent)[node.key]

    def prune(self, block: BlockId) -> list[BlockId]:
        """Forget a block and all that continue it; returns them."""
        top = self._by_block[block]
        del self._children(top.parent)[top.key]
        pruned, left = [], [top]
        while left:
            node = left.pop()
            del self._by_block[node.block]
            pruned.append(node.block)
            left.extend(node.children.values())
        return pruned

    def node_of(self, block: BlockId) -> Node | None:
        """The node that holds this block, if the tree knows it."""
        return self._by_block.get(block)

    def blocks(self) -> list[BlockId]:
        """Every block that the tree knows, for integrity checks."""
        return list(self._by_block)

    def _children(self, parent: Node | None) -> dict[BlockKey, Node]:
        return self._first if parent is None else parent.children
