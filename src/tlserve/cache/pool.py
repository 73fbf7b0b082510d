"""Counts who holds which KV block.

Knows ids and reference counts; never arrays, tokens or requests. Which cached block may be given up is the prefix
tree's question, asked by the manager.
Invariant: every block is free, cached or used, and free + cached + used == total.
"""

from __future__ import annotations

from collections import OrderedDict

from tlserve.errors import EngineError
from tlserve.names import BlockId


class BlockPool:
    """The KV blocks 0 to num_blocks - 1, each in one of three states.

    - *free*: holds nothing; on a stack, so that the block freed last, whose memory is still warm, is taken first.
    - *used*: held by one or more sequences.
    - *cached*: held by nobody, but its KV is known by the prefix tree; ordered by when it was last held.

    All methods are O(1). Engine thread only.
    """

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._holders = [0] * num_blocks
        self._free = [BlockId(block) for block in reversed(range(num_blocks))]
        # A linked list with a dictionary beside it: append, remove from the middle and pop the oldest are all O(1).
        self._cached: OrderedDict[BlockId, None] = OrderedDict()

    @property
    def num_blocks(self) -> int:
        """All blocks."""
        return self._num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds and the prefix tree knows."""
        return len(self._cached)

    @property
    def num_used(self) -> int:
        """Blocks that some sequence holds."""
        return self._num_blocks - len(self._free) - len(self._cached)

    def num_holders(self, block: BlockId) -> int:
        """How many sequences hold the block."""
        return self._holders[block]

    def take(self) -> BlockId:
        """Free -> used, for its first holder.

        Raises:
            EngineError: no block is free; the caller evicts first.

        """
        if not self._free:
            raise EngineError(f"none of the {self._num_blocks} KV blocks is free; evict a cached one first")
        block = self._free.pop()
        self._holders[block] = 1
        return block

    def hold(self, block: BlockId) -> None:
        """One more holder of a cached or used block."""
        self._cached.pop(block, None)
        self._holders[block] += 1

    def release(self, block: BlockId, *, keep: bool) -> None:
        """One holder less; the last one leaves the block cached, as the most recent, if ``keep``, and free if not.

        Raises:
            EngineError: nobody holds the block.

        """
        if self._holders[block] < 1:
            raise EngineError(f"KV block {block} is released, but nobody holds it")
        self._holders[block] -= 1
        if self._holders[block]:
            return
        if keep:
            self._cached[block] = None
        else:
            self._free.append(block)

    def oldest_cached(self) -> BlockId:
        """The cached block that was released first; there must be one."""
        return next(iter(self._cached))

    def evict(self, block: BlockId) -> None:
        """Cached -> free. The caller has already taken the block out of the prefix tree."""
        del self._cached[block]
        self._free.append(block)

    def cached_oldest_first(self) -> list[BlockId]:
        """A copy of the order of eviction, for integrity checks."""
        return list(self._cached)

    def check_integrity(self) -> None:
        """Count everything again.

        Raises:
            EngineError: a block is in two states, or in none.

        """
        idle = [*self._free, *self._cached]
        used = [block for block in range(self._num_blocks) if self._holders[block]]
        if sorted([*idle, *used]) != list(range(self._num_blocks)):
            raise EngineError(
                f"KV blocks are lost or doubled: {self.num_free} free + {self.num_cached} cached + {len(used)} used"
                f" is not {self._num_blocks} distinct blocks"
            )
