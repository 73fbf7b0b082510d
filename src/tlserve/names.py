"""The ids that travel between rooms, as types of their own."""

from __future__ import annotations

from typing import NewType

RequestId = NewType("RequestId", int)
"""One generation request inside the engine; unique for the life of the process."""

TokenId = NewType("TokenId", int)
"""An index into the model's vocabulary."""

BlockId = NewType("BlockId", int)
"""A KV block: an index into the pool's arrays."""
