from __future__ import annotations

from tlserve.decode.randomness import stream


def test_known_values() -> None:
    """The numbers are part of the promise that a seed repeats: SplitMix64's published outputs for the state 0."""
    # The first outputs of the reference implementation seeded with 0; mixing leaves the seed 0 as it is.
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [stream(0, position) for position in range(3)] == [(value >> 11) * 2.0**-53 for value in published]


def test_any_integer_is_a_seed_modulo_2_to_the_64() -> None:
    """Negative and huge seeds are seeds like others; 2**32 is not 0."""
    assert stream(-1, 5) == stream(2**64 - 1, 5)
    assert stream(2**64 + 7, 5) == stream(7, 5)
    assert len({stream(seed, 0) for seed in (0, 1, -1, 2**32 - 1, 2**32, 2**63 - 1, 2**63)}) == 7


def test_draws_are_uniform_across_positions_and_across_seeds() -> None:
    """Walking either way fills [0, 1) evenly: 20 bins of 20 000 draws stay within five standard deviations."""
    for draws in ([stream(3, n) for n in range(20_000)], [stream(n, 3) for n in range(20_000)]):
        bins = [0] * 20
        for draw in draws:
            assert 0.0 <= draw < 1.0
            bins[int(draw * 20)] += 1
        assert max(abs(count - 1000) for count in bins) < 5 * (1000 * 0.95) ** 0.5


def test_neighbouring_seeds_are_unrelated() -> None:
    """No seed walks the sequence of another one, shifted."""
    first = {stream(1, position) for position in range(1000)}
    assert not first & {stream(seed, position) for seed in (2, 3, 1 + 0x9E3779B97F4A7C15) for position in range(1000)}
