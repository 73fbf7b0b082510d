"""The embedding of a text: the mean of its hidden states, at length one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def pool_embedding(hidden: NDArray[np.float32], d: int) -> NDArray[np.float32]:
    """Mean over the tokens, divided by its Euclidean norm; both in float64, so long texts lose nothing.

    Args:
        hidden: final-normed states, (tokens, d) or the same flat; at least one token.
        d: the length of one state.

    Returns:
        (d,) float32 of norm 1; zeros, which have no direction, stay zeros.

    """
    mean = hidden.reshape(-1, d).mean(axis=0, dtype=np.float64)
    norm = float(np.linalg.norm(mean))
    return np.asarray(mean / norm if norm > 0.0 else mean, dtype=np.float32)
