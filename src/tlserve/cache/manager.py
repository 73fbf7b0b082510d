"""Lends KV blocks to sequences and remembers what the computed ones hold.

Knows ids and token ids; never an array, a request or a priority. Whom to preempt when blocks run out is the
scheduler's decision. A sequence's blocks, by what may be done with them (bs = block size)::

    |<---- num_committed * bs ---->|<---- computed, not full ---->|<---- reserved ---->|
    |  in the tree, shared, never  |  the sequence's own, written by coming steps;     |
    |  written again               |  freed, not cached, when the sequence lets go     |

Sharing is by whole blocks: a prompt that leaves a cached prefix inside a block computes that block again in one of its
own, so no block that two sequences see is ever written.
Invariants: free + cached + used == total; whoever holds a block of the tree holds all blocks before it.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from attrs import define, field

from tlserve.cache.pool import BlockPool
from tlserve.cache.radix import BlockKey, Node, PrefixTree
from tlserve.errors import EngineError
from tlserve.names import BlockId


@define(eq=False)
class Lease:
    """One sequence's hold on its KV blocks; only the BlockManager changes it.

    Attributes:
        salt: only leases with the same salt share blocks.
        blocks: the block table, int32: the KV of position i lies in ``blocks[i // block_size]``.
        num_committed: how many leading blocks are in the prefix tree.
        last: the tree's node of the last committed block.
        is_private: its KV is not to be shared, because part of it is distrusted.

    """

    salt: str
    blocks: array[int] = field(factory=lambda: array("i"))
    num_committed: int = 0
    last: Node | None = field(default=None, repr=False)
    is_private: bool = False


class BlockManager:
    """The one face of the KV cache that the scheduler sees. Engine thread only.

    Args:
        num_blocks: blocks in the pool.
        block_size: tokens per block.
        mode: "radix" shares computed blocks between requests; "off" never does.

    """

    def __init__(self, num_blocks: int, block_size: int, mode: Literal["off", "radix"]) -> None:
        self._block_size = block_size
        self._shares = mode == "radix"
        self._pool = BlockPool(num_blocks)
        self._tree = PrefixTree()
        self._leases: set[Lease] = set()
        self._num_evictions = 0

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self._block_size

    @property
    def num_blocks(self) -> int:
        """All blocks of the pool."""
        return self._pool.num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return self._pool.num_free

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds, kept for a later prompt with the same beginning."""
        return self._pool.num_cached

    @property
    def num_used(self) -> int:
        """Blocks that sequences hold."""
        return self._pool.num_used

    @property
    def num_available(self) -> int:
        """Blocks that could be lent now: free ones, and cached ones by eviction."""
        return self._pool.num_free + self._pool.num_cached

    @property
    def num_evictions(self) -> int:
        """How many cached blocks were given up so far to lend them anew."""
        return self._num_evictions

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold the KV of this many tokens."""
        return -(-num_tokens // self._block_size)

    def num_available_without(self, leases: Iterable[Lease]) -> int:
        """Blocks that could be lent if these leases were released: those that nobody else holds count too."""
        held = Counter(BlockId(block) for lease in leases for block in lease.blocks)
        return self.num_available + sum(self._pool.num_holders(block) == n for block, n in held.items())

    def match(self, tokens: Sequence[int], salt: str) -> Lease:
        """A new lease on the longest cached prefix of ``tokens``, in whole blocks.

        The last token is never part of it: its row must be computed to get the logits that follow it.
        """
        lease = Lease(salt)
        self._leases.add(lease)
        limit = (len(tokens) - 1) // self._block_size if self._shares else 0
        for index in range(limit):
            node = self._tree.step(lease.last, self._key(lease, tokens, index))
            if node is None:
                break
            self._pool.hold(node.block)
            lease.blocks.append(node.block)
            self._advance(lease, node)
        return lease

    def reserve(self, lease: Lease, num_tokens: int) -> bool:
        """Lend blocks until the lease covers ``num_tokens`` positions; all of them, or none and False."""
        missing = self.num_blocks_for(num_tokens) - len(lease.blocks)
        if missing > self.num_available:
            return False
        for _ in range(missing):
            lease.blocks.append(self._take())
        return True

    def commit(self, lease: Lease, tokens: Sequence[int], num_computed: int) -> None:
        """Publish the lease's full blocks: KV of the first ``num_computed`` of ``tokens`` is in place, and final.

        Where the tree already knows the same tokens, the lease moves over to the tree's block and frees its own. The
        two hold the same KV, and this keeps the second invariant of this module, and a popular prefix in memory once.
        """
        if not self._shares or lease.is_private:
            return
        for index in range(lease.num_committed, num_computed // self._block_size):
            key = self._key(lease, tokens, index)
            own = BlockId(lease.blocks[index])
            node = self._tree.step(lease.last, key)
            if node is None:
                node = self._tree.insert(lease.last, key, own)
            else:
                self._pool.hold(node.block)
                self._pool.release(own, keep=False)
                lease.blocks[index] = node.block
            self._advance(lease, node)

    def release(self, lease: Lease) -> None:
        """End the lease: blocks of the tree stay cached once nobody holds them, the others are free.

        The end of the prefix is released first, so that in the order of eviction every block comes after those that
        continue it. The oldest cached block is therefore always a leaf.
        """
        self._leases.remove(lease)
        for index in reversed(range(len(lease.blocks))):
            self._pool.release(BlockId(lease.blocks[index]), keep=index < lease.num_committed)
        lease.blocks = array("i")

    def distrust(self, lease: Lease) -> None:
        """Forget the lease's prefix from its first block on, and all that continues it: its KV may be wrong.

        Whoever holds a part of it keeps its blocks for itself, publishes none of them, and frees them in the end.
        O(blocks + leases); for the rare case that a model's numbers have gone bad.
        """
        lease.is_private = True
        if not lease.num_committed:
            return
        first = BlockId(lease.blocks[0])
        for other in self._leases:
            if other.num_committed and other.blocks[0] == first:
                other.num_committed, other.last, other.is_private = 0, None, True
        for block in self._tree.prune(first):
            if not self._pool.num_holders(block):
                self._pool.evict(block)

    def evict(self) -> None:
        """Give up the oldest cached block; there must be one."""
        block = self._pool.oldest_cached()
        self._tree.remove(block)
        self._pool.evict(block)
        self._num_evictions += 1

    def check_integrity(self) -> None:
        """Count everything again. O(blocks); for idle moments and tests.

        Raises:
            EngineError: a block is lost, doubled, held by nobody or counted wrongly, or the tree is broken.

        """
        self._pool.check_integrity()
        held = Counter(BlockId(block) for lease in self._leases for block in lease.blocks)
        for block in range(self._pool.num_blocks):
            if held[BlockId(block)] != self._pool.num_holders(BlockId(block)):
                raise EngineError(
                    f"KV block {block} has a wrong count of holders: {held[BlockId(block)]} leases hold it"
                )
        for lease in self._leases:
            self._check_path(lease)
        self._check_order()

    def _take(self) -> BlockId:
        if not self._pool.num_free:
            self.evict()
        return self._pool.take()

    def _key(self, lease: Lease, tokens: Sequence[int], index: int) -> BlockKey:
        start = index * self._block_size
        return lease.salt, tuple(tokens[start : start + self._block_size])

    def _advance(self, lease: Lease, node: Node) -> None:
        lease.last = node
        lease.num_committed += 1

    def _check_path(self, lease: Lease) -> None:
        """The committed blocks of a lease are the way from the root to its last node."""
        path = []
        node = lease.last
        while node is not None:
            path.append(node.block)
            node = node.parent
        if path[::-1] != list(lease.blocks[: lease.num_committed]):
            raise EngineError(f"a lease says that blocks {lease.blocks.tolist()} are committed, the tree {path[::-1]}")

    def _check_order(self) -> None:
        """Cached blocks are exactly the tree's that nobody holds, each after all that continue it."""
        cached = self._pool.cached_oldest_first()
        known = self._tree.blocks()
        if set(cached) != {block for block in known if not self._pool.num_holders(block)}:
            raise EngineError(f"{len(cached)} cached KV blocks are not the ones that the prefix tree knows")
        seen: set[BlockId] = set()
        for block in cached:
            node = self._tree.node_of(block)
            seen.add(block)
            if node is not None and any(child.block not in seen for child in node.children.values()):
                raise EngineError(f"KV block {block} would be evicted before a block that continues it")
