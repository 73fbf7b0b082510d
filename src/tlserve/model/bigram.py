"""The bigram runner: the next token depends on the current one alone, through a table of logits.

A model without attention: it needs no KV, accepts any block table, and answers in microseconds, which makes it the
model of choice for tests of everything around the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from tlserve.model.batch import ForwardBatch, check_text
from tlserve.model.runner import Capacity

VOCAB_SIZE = 256
"""Tokens are bytes."""


@frozen(eq=False, repr=False)
class BigramRunner:
    """A ModelRunner over one table [256, 256]: row = current byte, column = logit of the next."""

    table: NDArray[np.float32]
    capacity: Capacity

    @property
    def description(self) -> str:
        """One line for the log."""
        return "bigram table over bytes"

    @property
    def vocab_size(self) -> int:
        """The number of logits per row."""
        return VOCAB_SIZE

    @property
    def hidden_size(self) -> int:
        """A hidden state is the row of logits itself."""
        return VOCAB_SIZE

    @property
    def max_model_len(self) -> int:
        """The longest sequence in tokens."""
        return self.capacity.max_model_len

    @property
    def num_blocks(self) -> int:
        """KV blocks in the pool; they stay empty."""
        return self.capacity.num_blocks

    @property
    def block_size(self) -> int:
        """Tokens per KV block."""
        return self.capacity.block_size

    @property
    def kv_bytes_per_block(self) -> int:
        """Nothing is stored."""
        return 0

    def run_pieces(self, tokens: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        """All of it in one piece."""
        yield self.run_once(tokens)

    def close(self) -> None:
        """Nothing runs beside it."""

    def forward(self, batch: ForwardBatch) -> NDArray[np.float32]:
        """Logits [R, 256] of the wanted rows."""
        return self.table[batch.tokens[batch.logit_rows]]

    def run_once(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The table's rows [T, 256] of the tokens."""
        return self.table[check_text(tokens, vocab_size=VOCAB_SIZE, max_model_len=self.max_model_len)]
