from __future__ import annotations

import pytest

from tlserve.cache.pool import BlockPool
from tlserve.errors import EngineError
from tlserve.names import BlockId


def test_every_block_is_lent_once() -> None:
    """A pool lends each of its blocks exactly once, then refuses with the number it has."""
    pool = BlockPool(3)
    assert sorted(pool.take() for _ in range(3)) == [0, 1, 2]
    with pytest.raises(EngineError, match="none of the 3 KV blocks is free"):
        pool.take()


def test_a_block_is_free_after_its_last_holder() -> None:
    """A shared block stays used until everybody has let go."""
    pool = BlockPool(2)
    block = pool.take()
    pool.hold(block)
    pool.release(block, keep=False)
    assert (pool.num_used, pool.num_free) == (1, 1)
    pool.release(block, keep=False)
    assert (pool.num_used, pool.num_free) == (0, 2)


def test_kept_blocks_are_evicted_in_the_order_of_release() -> None:
    """Cached blocks are given up oldest first, and a block that was held again counts from its new release."""
    pool = BlockPool(3)
    first, second, third = pool.take(), pool.take(), pool.take()
    for block in (first, second, third):
        pool.release(block, keep=True)
    pool.hold(first)
    pool.release(first, keep=True)
    assert pool.cached_oldest_first() == [second, third, first]
    pool.evict(pool.oldest_cached())
    assert (pool.num_free, pool.num_cached, pool.num_used) == (1, 2, 0)
    assert pool.take() == second


def test_releasing_what_nobody_holds_is_an_error() -> None:
    """A double release is noticed at once, not when two requests write to the same block."""
    pool = BlockPool(1)
    block = pool.take()
    pool.release(block, keep=False)
    with pytest.raises(EngineError, match="KV block 0 is released, but nobody holds it"):
        pool.release(block, keep=False)


def test_integrity_check_notices_a_lost_block() -> None:
    """A block that is in no state is reported."""
    pool = BlockPool(2)
    pool.check_integrity()
    pool._free.pop()
    with pytest.raises(EngineError, match="lost or doubled"):
        pool.check_integrity()


def test_the_block_freed_last_is_taken_first() -> None:
    """Its memory is still warm."""
    pool = BlockPool(4)
    blocks = [pool.take() for _ in range(4)]
    for block in blocks:
        pool.release(block, keep=False)
    assert pool.take() == BlockId(blocks[-1])
