"""The one interface between the engine and the arithmetic.

The engine decides what to compute and hands over a ForwardBatch; a runner owns the weights and the KV arrays and gives
logits back. Which KV block belongs to whom is never a runner's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from tlserve.model.batch import ForwardBatch

ReportProgress = Callable[[float], None]
"""Called with the loaded share, 0.0 to 1.0; whatever it raises ends the load (that is how a load is cancelled)."""

ReportCompile = Callable[[str, int, int], None]
"""Called before a kernel is compiled, or found in the cache, with its name, its number from 1 on, and how many there are."""


@frozen(kw_only=True)
class Capacity:
    """How much a runner shall hold.

    Attributes:
        num_blocks: KV blocks in the pool.
        block_size: tokens per KV block.
        max_model_len: the longest sequence in tokens; it sizes the rotary tables, not the pool.

    """

    num_blocks: int
    block_size: int
    max_model_len: int


class ModelRunner(Protocol):
    """A loaded model with its KV pool. All methods run on the engine thread."""

    @property
    def description(self) -> str:
        """One line for the log: architecture, size, kernels and weight format."""

    @property
    def vocab_size(self) -> int:
        """The number of logits per row."""

    @property
    def hidden_size(self) -> int:
        """The length of one hidden state, and so of an embedding."""

    @property
    def max_model_len(self) -> int:
        """The longest sequence, prompt and answer together, in tokens."""

    @property
    def num_blocks(self) -> int:
        """KV blocks in the pool; ids are 0 to num_blocks - 1."""

    @property
    def block_size(self) -> int:
        """Tokens per KV block."""

    @property
    def kv_bytes_per_block(self) -> int:
        """Bytes of KV that one block holds over all layers; 0 for a model without attention."""

    def forward(self, batch: ForwardBatch) -> NDArray[np.float32]:
        """Store keys and values of every row, attend, and return the logits of ``batch.logit_rows``: [R, vocab_size].

        The result is the caller's to keep and to change. Rows of the same batch see the keys that earlier rows of
        their own sequence have just stored. NaN is passed on: judging logits is the engine's work.
        """

    def run_once(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The final, normalised hidden states of a text: [len(tokens), hidden_size]. Touches no block of the pool.

        Raises:
            EngineError: no tokens, more than max_model_len, or one outside the vocabulary.

        """

    def run_pieces(self, tokens: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        """The same a piece at a time, each [t, hidden_size]; ``forward`` may be called between two of them.

        Raises:
            EngineError: as ``run_once``, when the first piece is asked for.

        """

    def close(self) -> None:
        """End what the runner keeps running beside itself, such as threads. Closing twice is harmless."""
