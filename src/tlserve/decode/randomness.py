"""Random numbers that depend on nothing but a request's seed and the position of the token to draw.

There is no generator state to keep, so a draw is the same whether the request ran alone, was preempted and computed
again, or was verified as a draft.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15


def stream(seed: int, position: int) -> float:
    """The draw number ``position`` of a seed: uniform in [0, 1), a multiple of 2**-53.

    This is SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014) read at an
    index instead of step by step; the seed is mixed first, so that neighbouring seeds do not walk the same sequence.

    Args:
        seed: any integer; only its value modulo 2**64 counts.
        position: how many tokens the output already has, >= 0.

    """
    start = _mix(seed & _MASK)
    return (_mix((start + (position + 1) * _GOLDEN_GAMMA) & _MASK) >> 11) * 2.0**-53


def _mix(z: int) -> int:
    """The finaliser of SplitMix64: a bijection of 64-bit integers in which each input bit flips half of the output."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
