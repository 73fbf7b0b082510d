"""Embeddings looked up in packed weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize

from tlserve.kernels.buffers import RowBuffer
from tlserve.kernels.embedding import EMBED_FLOATS, EMBED_QUANTISED
from tlserve.kernels.matrix import pack_matrices
from tlserve.kernels.tape import TOKENS
from tlserve.weights.quantize import exact_groups
from tlserve.weights.tensor import Tensor

VOCABULARY, SIZE = 40, 64


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F32", "F16", "BF16"])
def test_a_looked_up_row_is_the_checkpoints(play: Callable[..., None], type_name: str) -> None:
    """To the last bit, times the model's embedding scale; any token, also one twice."""
    values = np.random.default_rng(0).standard_normal((VOCABULARY, SIZE)).astype(np.float32)
    blocks = quantize(values, GGMLQuantizationType[type_name]).view(np.uint8)
    tensor = Tensor(name="embedding", shape=values.shape, type_name=type_name, blocks=blocks)
    [table] = pack_matrices([exact_groups(tensor) or tensor], widen=False)
    tokens = np.array([39, 0, 17, 17, 5], np.int32)
    result = RowBuffer.allocate(len(tokens), SIZE)
    fields = (table.data, table.depth, result.floats, result.stride, 8.0)
    if table.form is None:
        play(EMBED_FLOATS, *fields, table.kind, rows=len(tokens), step={TOKENS: tokens})
    else:
        form = (table.form.bits, int(table.form.half), table.form.factors, table.form.record_bytes)
        play(EMBED_QUANTISED, *fields, *form, rows=len(tokens), step={TOKENS: tokens})
    np.testing.assert_array_equal(result.floats[:, :SIZE], tensor.dequantize()[tokens] * 8)
