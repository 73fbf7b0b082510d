"""Rotary frequencies: old and new keys, each kind of scaling, tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tlserve.errors import CheckpointError, UnsupportedModelError
from tlserve.model.entries import Entries
from tlserve.model.rope import RopeSpec, read_rope

LLAMA3: dict[str, Any] = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 5e5, "rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **LLAMA3}},
    ],
)
def test_old_and_new_keys_say_the_same(config: dict[str, Any]) -> None:
    """rope_theta with rope_scaling, and the rope_parameters of newer exports."""
    assert read_rope(Entries(config), 10_000.0) == RopeSpec(
        theta=5e5, kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192
    )


@pytest.mark.parametrize("config", [{}, {"rope_scaling": None}, {"rope_scaling": {"rope_type": "default"}}])
def test_no_scaling_is_the_default(config: dict[str, Any]) -> None:
    """Absent, null and "default" are one and the same, with the architecture's theta."""
    assert read_rope(Entries(config), 1234.0) == RopeSpec(theta=1234.0)


def test_plain_frequencies() -> None:
    """Pair i makes theta ** (-2i / head_dim) radians per position."""
    expected = [10_000 ** (-2 * i / 8) for i in range(4)]
    np.testing.assert_allclose(RopeSpec(theta=10_000.0).frequencies(8), expected)


def test_linear_scaling_slows_every_pair() -> None:
    """A factor of 4 fits four times the context into the same angles."""
    plain, linear = RopeSpec(theta=10_000.0), RopeSpec(theta=10_000.0, kind="linear", factor=4.0)
    np.testing.assert_allclose(linear.frequencies(64), plain.frequencies(64) / 4)


def test_llama3_scaling_keeps_fast_pairs_and_slows_slow_ones() -> None:
    """Above high_freq_factor turns nothing changes, below low_freq_factor the factor applies, between lies a blend."""
    spec = RopeSpec(theta=5e5, kind="llama3", factor=8.0)
    plain = RopeSpec(theta=5e5).frequencies(128)
    ratio = spec.frequencies(128) / plain
    turns = 8192 * plain / (2 * math.pi)
    np.testing.assert_allclose(ratio[turns > 4], 1.0)
    np.testing.assert_allclose(ratio[turns < 1], 1 / 8)
    between = ratio[(turns > 1) & (turns < 4)]
    assert len(between) > 0
    assert ((between > 1 / 8) & (between < 1.0)).all()


def test_divisors_divide_pair_by_pair() -> None:
    """GGUF files carry Llama 3's scaling as one divisor per pair."""
    spec = RopeSpec(theta=10_000.0, divisors=(1.0, 2.0, 4.0, 8.0))
    np.testing.assert_allclose(spec.frequencies(8), RopeSpec(theta=10_000.0).frequencies(8) / [1, 2, 4, 8])


def test_tables_are_exact_at_far_positions() -> None:
    """Angles keep their precision where float32 angles would have lost it."""
    cos, sin = RopeSpec(theta=10_000.0).tables(4, 100_001)
    assert cos.shape == sin.shape == (100_001, 2)
    assert cos.dtype == sin.dtype == np.float32
    np.testing.assert_allclose(cos[100_000], [math.cos(100_000), math.cos(1000.0)], atol=1e-7)
    np.testing.assert_allclose(sin[100_000], [math.sin(100_000), math.sin(1000.0)], atol=1e-7)


@pytest.mark.parametrize("kind", ["yarn", "dynamic", "longrope", "su"])
def test_other_scalings_are_refused_by_name(kind: str) -> None:
    """Computing them as something else would be a silent error."""
    with pytest.raises(UnsupportedModelError, match=f"rope_scaling.rope_type is '{kind}'"):
        read_rope(Entries({"rope_scaling": {"rope_type": kind, "factor": 2.0}}), 10_000.0)


def test_partial_rotation_is_refused() -> None:
    """Heads that turn only in part belong to other architectures."""
    with pytest.raises(UnsupportedModelError, match=r"partial_rotary_factor is 0\.5"):
        read_rope(Entries({"rope_parameters": {"partial_rotary_factor": 0.5}}), 10_000.0)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 2e4}}, "rope_theta is 10000.0.*20000.0"),
        ({"rope_theta": -1}, "rope_theta is -1"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor is 1.0"),
    ],
)
def test_contradictions_are_named(config: dict[str, Any], complaint: str) -> None:
    """The message holds the full key and the value."""
    with pytest.raises(CheckpointError, match=complaint):
        read_rope(Entries(config), 10_000.0)
