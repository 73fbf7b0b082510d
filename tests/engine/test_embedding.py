from __future__ import annotations

import numpy as np
import pytest

from tlserve.engine.embedding import pool_embedding


@pytest.mark.parametrize("flat", [False, True])
def test_mean_of_the_states_at_length_one(flat: bool) -> None:  # noqa: FBT001
    """(3, 0) and (0, 4) have the mean (1.5, 2): (0.6, 0.8) at length one; a flat array says the same."""
    hidden = np.array([[3, 0], [0, 4]], dtype=np.float32)
    vector = pool_embedding(hidden.reshape(-1) if flat else hidden, 2)
    assert vector.dtype == np.float32
    assert vector.tolist() == pytest.approx([0.6, 0.8])


def test_zero_stays_zero() -> None:
    """States that cancel out have no direction; dividing by their length would give NaN."""
    assert pool_embedding(np.array([[1, -1], [-1, 1]], dtype=np.float32), 2).tolist() == [0.0, 0.0]


def test_long_texts_keep_their_precision() -> None:
    """A hundred thousand equal states have the embedding of one."""
    state = np.array([0.1, 0.2, 0.3], dtype=np.float32)
    assert pool_embedding(np.tile(state, (100_000, 1)), 3) == pytest.approx(pool_embedding(state, 3), abs=1e-7)
