from __future__ import annotations

import pytest

from tlserve.cache.radix import BlockKey, PrefixTree
from tlserve.errors import EngineError
from tlserve.names import BlockId


def key(*tokens: int, salt: str = "") -> BlockKey:
    return salt, tokens


def test_the_same_tokens_after_another_prefix_are_another_node() -> None:
    """A block is found by all tokens before it, not by its own alone."""
    tree = PrefixTree()
    one = tree.insert(None, key(1, 2), BlockId(0))
    tree.insert(one, key(7, 8), BlockId(1))
    other = tree.insert(None, key(3, 4), BlockId(2))
    assert tree.step(other, key(7, 8)) is None
    assert tree.step(None, key(7, 8)) is None
    found = tree.step(one, key(7, 8))
    assert found is not None
    assert found.block == 1


def test_salts_share_nothing() -> None:
    """The same prompt under another salt is a stranger."""
    tree = PrefixTree()
    tree.insert(None, key(1, 2, salt="tenant-a"), BlockId(0))
    assert tree.step(None, key(1, 2, salt="tenant-b")) is None


def test_equal_hashes_do_not_match() -> None:
    """Matching compares tokens: -1 and -2 have the same hash in CPython, and so have the keys made of them."""
    assert hash(key(-1)) == hash(key(-2))
    tree = PrefixTree()
    tree.insert(None, key(-1), BlockId(0))
    assert tree.step(None, key(-2)) is None


def test_only_leaves_can_be_removed() -> None:
    """A block that others continue stays; after them it may go, and the tree is empty again."""
    tree = PrefixTree()
    parent = tree.insert(None, key(1), BlockId(0))
    tree.insert(parent, key(2), BlockId(1))
    with pytest.raises(EngineError, match="KV block 0 cannot be evicted: 1 cached blocks continue it"):
        tree.remove(BlockId(0))
    tree.remove(BlockId(1))
    tree.remove(BlockId(0))
    assert len(tree) == 0
    assert tree.step(None, key(1)) is None


def test_pruning_forgets_a_block_and_all_behind_it() -> None:
    """Its neighbours and what stands before it stay."""
    tree = PrefixTree()
    first = tree.insert(None, key(1), BlockId(0))
    second = tree.insert(first, key(2), BlockId(1))
    tree.insert(first, key(3), BlockId(2))
    tree.insert(tree.insert(second, key(4), BlockId(3)), key(5), BlockId(4))
    assert sorted(tree.prune(BlockId(1))) == [1, 3, 4]
    assert tree.step(first, key(2)) is None
    assert sorted(tree.blocks()) == [0, 2]
