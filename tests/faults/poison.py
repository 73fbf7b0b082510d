"""A model that counts in a circle of printable bytes, and fails where a prompt asks it to."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tlserve.config import ServeConfig
from tlserve.engine.load import LoadedEngine, load_engine
from tlserve.engine.progress import Report
from tlserve.model.batch import ForwardBatch
from tlserve.model.runner import ModelRunner

FIRST, LAST = 0x21, 0x7E
BAD_LOGITS = "\x07"
"""A prompt that ends with it gets no logits that could be sampled; its own request fails."""
BAD_STEP = "\x06"
"""A prompt that holds it makes the forward pass raise; every request of that step fails."""


def circle_logits() -> NDArray[Any]:
    """Logits [256, 256]: each printable byte is followed by the next, the last by the first, any other by the first."""
    table = np.zeros((256, 256), dtype=np.float32)
    for byte in range(256):
        table[byte, byte + 1 if FIRST <= byte < LAST else FIRST] = 50
    return table


def expected_text(last: str, num_tokens: int) -> str:
    """What follows a prompt that ends with the character ``last``."""
    size = LAST - FIRST + 1
    return "".join(chr(FIRST + (ord(last) - FIRST + 1 + step) % size) for step in range(num_tokens))


def load_poisonable(config: ServeConfig, report: Report) -> LoadedEngine:
    """Load an engine whose model can be poisoned by prompts."""
    loaded = load_engine(config, report)
    engine: Any = loaded.engine
    engine._runner = _Poisonable(loaded.engine.runner)
    return loaded


class _Poisonable:
    """A runner in front of a real one."""

    def __init__(self, runner: ModelRunner) -> None:
        self._inner = runner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def forward(self, batch: ForwardBatch) -> NDArray[np.float32]:
        """Compute, unless a token of the batch is poison."""
        if (batch.tokens == ord(BAD_STEP)).any():
            raise MemoryError("no memory for this batch")
        logits = self._inner.forward(batch).copy()
        logits[batch.tokens[batch.logit_rows] == ord(BAD_LOGITS)] = np.nan
        return logits
