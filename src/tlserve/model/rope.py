"""Rotary position embeddings: which frequencies a model turns its heads by, and the tables made of them.

Reads the old keys (``rope_theta``, ``rope_scaling``) and the newer ``rope_parameters``. Applying the rotation is the
kernels' work. Pairs are half-split: dimension i turns together with dimension i + head_dim / 2.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from tlserve.errors import CheckpointError, UnsupportedModelError
from tlserve.model.entries import Entries

RopeKind = Literal["default", "linear", "llama3"]


@frozen(kw_only=True)
class RopeSpec:
    """The frequencies of one rotary embedding.

    ``factor`` stretches positions: all frequencies alike ("linear"), or only the slow ones ("llama3").
    ``divisors``, when given, divides every frequency by its own number, head_dim / 2 of them: the form in which
    GGUF files carry any scaling that its converter has worked out beforehand.
    """

    theta: float
    kind: RopeKind = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    divisors: tuple[float, ...] | None = field(default=None, repr=False)

    def frequencies(self, head_dim: int) -> NDArray[np.float64]:
        """Radians per position of every pair, [head_dim / 2]."""
        base = self.theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
        if self.divisors is not None:
            base = base / np.asarray(self.divisors, dtype=np.float64)
        match self.kind:
            case "default":
                return base
            case "linear":
                return base / self.factor
            case "llama3":
                return self._stretch_slow(base)

    def tables(self, head_dim: int, length: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Cosine and sine for positions 0 .. length - 1, two arrays [length, head_dim / 2].

        Angles are computed in float64: at position 100,000 a float32 angle is already off by 0.004 radians.
        """
        angles = np.outer(np.arange(length, dtype=np.float64), self.frequencies(head_dim))
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def _stretch_slow(self, base: NDArray[np.float64]) -> NDArray[np.float64]:
        """Llama 3.1's rule: divide slow frequencies by the factor, keep fast ones, blend in between.

        What counts is how many turns a pair makes within the original context; source: the reference code of
        Llama 3.1 (``apply_scaling``).
        """
        turns = self.original_max_position * base / (2 * math.pi)
        keep = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        keep = np.clip(keep, 0.0, 1.0)
        return base * (keep + (1.0 - keep) / self.factor)


def read_rope(config: Entries, default_theta: float) -> RopeSpec:
    """The rotary embedding of a model that has one for all layers.

    Raises:
        CheckpointError: a value is wrong, or two keys contradict each other.
        UnsupportedModelError: a kind of scaling that tlserve does not compute (yarn, dynamic, longrope ...).

    """
    top_theta = config.optional_positive("rope_theta")
    for key in ("rope_parameters", "rope_scaling"):
        if config.has(key):
            section = config.section(key)
            theta = section.optional_positive("rope_theta")
            if None not in (theta, top_theta) and theta != top_theta:
                raise CheckpointError(f"config.json: rope_theta is {top_theta}, but {key}.rope_theta is {theta}")
            return read_section(section, theta or top_theta or default_theta)
    return RopeSpec(theta=top_theta or default_theta)


def read_section(section: Entries, theta: float) -> RopeSpec:
    """One object of rope parameters; ``theta`` is used as it is. Raises like `read_rope`."""
    _refuse_partial(section)
    kind = section.text("rope_type", section.text("type", "default"))
    match kind:
        case "default":
            return RopeSpec(theta=theta)
        case "linear":
            return RopeSpec(theta=theta, kind="linear", factor=section.positive("factor"))
        case "llama3":
            return _read_llama3(section, theta)
    raise UnsupportedModelError(
        f"config.json: {section.path}rope_type is {kind!r}; tlserve computes default, linear and llama3"
    )


def _read_llama3(section: Entries, theta: float) -> RopeSpec:
    spec = RopeSpec(
        theta=theta,
        kind="llama3",
        factor=section.positive("factor"),
        low_freq_factor=section.positive("low_freq_factor"),
        high_freq_factor=section.positive("high_freq_factor"),
        original_max_position=section.count("original_max_position_embeddings"),
    )
    if spec.high_freq_factor <= spec.low_freq_factor:
        raise section.wrong("high_freq_factor", f"above low_freq_factor, which is {spec.low_freq_factor}")
    return spec


def _refuse_partial(section: Entries) -> None:
    share = section.positive("partial_rotary_factor", 1.0)
    if share != 1.0:
        raise UnsupportedModelError(
            f"config.json: {section.path}partial_rotary_factor is {share}; tlserve turns whole heads (1.0) only"
        )
