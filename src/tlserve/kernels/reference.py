"""The arithmetic of a decoder in plain numpy: the answer that every faster kernel is compared with.

Pure functions over float32 arrays; no weights, no KV pool and no model live here. T is tokens, D is head_dim, C is the
context; H query heads share K key/value heads in groups of G = H / K. numpy lets go of the GIL inside every large call.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Float32Array = NDArray[np.float32]

QUERY_TILE = 128
"""Query rows per tile of attention; bounds the score matrix to H x 128 x C."""


def linear(x: Float32Array, weight: Float32Array, bias: Float32Array | None = None) -> Float32Array:
    """A linear layer: x [T, N_in], weight [N_out, N_in], bias [N_out] -> [T, N_out]."""
    y: Float32Array = x @ weight.T
    if bias is not None:
        y += bias
    return y


def rms_norm(x: Float32Array, weight: Float32Array, eps: float) -> Float32Array:
    """Divide x [..., N] by its root mean square over N and multiply by weight [N] -> [..., N]."""
    mean_square = np.square(x).mean(axis=-1, keepdims=True)
    normed: Float32Array = x / np.sqrt(mean_square + np.float32(eps))
    return normed * weight


def rotate(x: Float32Array, cos: Float32Array, sin: Float32Array) -> Float32Array:
    """Rotary embedding, half-split: x [T, H, D], cos and sin [T, D / 2] -> [T, H, D].

    Dimension i and dimension i + D / 2 are one point in the plane, turned by the angle of its row.
    """
    half = x.shape[-1] // 2
    low, high = x[..., :half], x[..., half:]
    cos, sin = cos[:, None, :], sin[:, None, :]
    return np.concatenate((low * cos - high * sin, high * cos + low * sin), axis=-1)


def silu(x: Float32Array) -> Float32Array:
    """Multiply x, any shape, by its logistic function."""
    with np.errstate(over="ignore"):  # exp(-x) may become infinite; x / inf is then the right answer
        powers: Float32Array = np.exp(-x)
    return x / (1 + powers)


def gelu_tanh(x: Float32Array) -> Float32Array:
    """The tanh form of GELU (Hendrycks and Gimpel, arXiv:1606.08415), any shape."""
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    curve: Float32Array = np.tanh(inner)
    return np.float32(0.5) * x * (1 + curve)


def softcap(x: Float32Array, cap: float | None) -> Float32Array:
    """Squeeze x, any shape, smoothly into -cap .. cap; None leaves it alone."""
    if cap is None:
        return x
    squeezed: Float32Array = np.tanh(x / np.float32(cap))
    return squeezed * np.float32(cap)


def softmax(x: Float32Array) -> Float32Array:
    """Turn scores [..., N] into weights [..., N] that sum to 1 over N; entries of -inf become 0."""
    powers: Float32Array = np.exp(x - x.max(axis=-1, keepdims=True))
    total: Float32Array = powers.sum(axis=-1, keepdims=True)
    return powers / total


def attention(
    query: Float32Array,
    key: Float32Array,
    value: Float32Array,
    *,
    scale: float,
    window: int | None,
    cap: float | None,
) -> Float32Array:
    """Causal attention of a context's last rows: query [T, H, D], key and value [C, K, D] -> [T, H, D].

    Query row t stands at position C - T + t and sees the positions up to its own; with a window, only the last
    ``window`` of them, its own included.
    """
    num_rows, context = len(query), len(key)
    out = np.empty_like(query)
    for start in range(0, num_rows, QUERY_TILE):
        stop = min(start + QUERY_TILE, num_rows)
        last = context - num_rows + stop
        first = first_visible(last - (stop - start), window)
        out[start:stop] = _attend_tile(
            query[start:stop], key[first:last], value[first:last], scale=scale, window=window, cap=cap
        )
    return out


def paged_attention(
    query: Float32Array,
    key_blocks: Float32Array,
    value_blocks: Float32Array,
    block_table: NDArray[np.int32],
    context_len: int,
    *,
    scale: float,
    window: int | None,
    cap: float | None,
) -> Float32Array:
    """`attention` over keys that lie in blocks: query [T, H, D] -> [T, H, D].

    key_blocks and value_blocks [num_blocks, block_size, K, D]; block_table [>= ceil(context_len / block_size)] names
    the blocks of positions 0 to context_len - 1, which must have been stored.
    """
    block_size = key_blocks.shape[1]
    first = first_visible(context_len - len(query), window)
    used = block_table[first // block_size : -(-context_len // block_size)]
    span = slice(first % block_size, first % block_size + context_len - first)
    key = key_blocks[used].reshape(-1, *key_blocks.shape[2:])[span]
    value = value_blocks[used].reshape(-1, *value_blocks.shape[2:])[span]
    return attention(query, key, value, scale=scale, window=window, cap=cap)


def first_visible(position: int, window: int | None) -> int:
    """The first position that a query at ``position`` sees."""
    return 0 if window is None else max(0, position - window + 1)


def _attend_tile(
    query: Float32Array,
    key: Float32Array,
    value: Float32Array,
    *,
    scale: float,
    window: int | None,
    cap: float | None,
) -> Float32Array:
    """Attention whose score matrix exists as a whole; the last query row stands at the last key."""
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads = key.shape[1]
    group = num_heads // num_kv_heads
    scaled: Float32Array = query * np.float32(scale)
    grouped = scaled.reshape(num_rows, num_kv_heads, group, head_dim).transpose(1, 0, 2, 3)  # (K, T, G, D)
    products: Float32Array = grouped.reshape(num_kv_heads, -1, head_dim) @ key.transpose(1, 2, 0)  # (K, T * G, C)
    scores = softcap(products, cap).reshape(num_kv_heads, num_rows, group, -1)
    if num_rows > 1:
        np.putmask(scores, np.broadcast_to(_hidden(num_rows, len(key), window), scores.shape), -np.inf)
    weights = softmax(scores).reshape(num_kv_heads, num_rows * group, len(key))
    mixed: Float32Array = weights @ value.transpose(1, 0, 2)  # (K, T * G, D)
    by_row = mixed.reshape(num_kv_heads, num_rows, group, head_dim).transpose(1, 0, 2, 3)  # (T, K, G, D)
    return by_row.reshape(num_rows, num_heads, head_dim)


def _hidden(num_rows: int, context: int, window: int | None) -> NDArray[np.bool_]:
    """[T, 1, C]: whether a key is after a query row, or before its window."""
    row = np.arange(context - num_rows, context)[:, None, None]
    column = np.arange(context)
    hidden = column > row
    return hidden if window is None else hidden | (column <= row - window)
