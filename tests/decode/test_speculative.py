from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tlserve.config import SpeculativeConfig
from tlserve.decode.speculative import PromptLookup


def lookup(num_tokens: int = 4, ngram_max: int = 3, ngram_min: int = 2) -> PromptLookup:
    return PromptLookup(SpeculativeConfig(num_tokens=num_tokens, ngram_max=ngram_max, ngram_min=ngram_min))


def test_proposes_what_followed_the_last_time() -> None:
    """The text after the most recent earlier occurrence of the suffix is the draft."""
    assert lookup().propose([1, 2, 3, 8, 1, 2, 4, 5, 6, 7, 1, 2], 4) == (4, 5, 6, 7)


def test_a_longer_match_beats_a_more_recent_one() -> None:
    """Three equal tokens say more than two."""
    assert lookup(num_tokens=1).propose([9, 1, 2, 5, 8, 1, 2, 6, 9, 1, 2], 4) == (5,)


def test_nothing_is_proposed_without_a_match() -> None:
    """A text that never repeats itself costs no draft."""
    assert lookup().propose([1, 2, 3, 4, 5], 4) == ()


def test_a_running_loop_is_continued_beyond_the_end_of_the_text() -> None:
    """A period shorter than the draft repeats."""
    assert lookup().propose([5, 7, 7, 7], 4) == (7, 7, 7, 7)
    assert lookup().propose([1, 2, 1, 2], 4) == (1, 2, 1, 2)


def test_the_limit_is_kept() -> None:
    """What the scheduler cannot place is not proposed."""
    assert lookup().propose([1, 2, 1, 2], 3) == (1, 2, 1)
    assert lookup().propose([1, 2, 1, 2], 0) == ()


def test_failures_shorten_and_pause() -> None:
    """After a draft that was all wrong, the next is half as long and comes two tokens later; after more, ever later."""
    drafter, text = lookup(), [1, 2, 1, 2]
    drafter.learn(4, 0)
    assert [len(drafter.propose(text, 4)) for _ in range(3)] == [0, 0, 2]
    drafter.learn(2, 0)
    assert [len(drafter.propose(text, 4)) for _ in range(5)] == [0, 0, 0, 0, 1]


def test_wrong_guesses_cost_a_few_per_cent() -> None:
    """A text that keeps beginning to repeat itself and never does: of two thousand steps less than 4 % carry a draft."""
    drafter, text, drafted = lookup(), [1, 2], 0
    for new in range(100, 2100):
        drafts = drafter.propose(text, 100)
        if drafts:
            drafter.learn(len(drafts), 0)
        drafted += len(drafts)
        text += [new, 1, 2]
    assert 0 < drafted < 80


def test_success_lengthens_again() -> None:
    """Full acceptance doubles the draft up to the configured length and forgives earlier failures."""
    drafter, text = lookup(), [1, 2, 1, 2]
    for accepted in (0, 0):
        drafter.learn(1, accepted)
    while not drafter.propose(text, 4):
        pass
    drafter.learn(1, 1)
    assert len(drafter.propose(text, 4)) == 2
    drafter.learn(2, 2)
    assert len(drafter.propose(text, 4)) == 4


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(1, 40))
def test_growing_text_is_indexed_like_a_whole_one(text: list[int], split: int) -> None:
    """A proposal does not depend on how often one was asked for before."""
    grown = lookup(ngram_min=1)
    grown.propose(text[:split], 4)
    assert grown.propose(text, 4) == lookup(ngram_min=1).propose(text, 4)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40))
def test_drafts_agree_with_a_search(text: list[int]) -> None:
    """The index finds what looking through the whole text from its end finds."""
    expected: tuple[int, ...] = ()
    for size in (3, 2, 1):
        ends = [end for end in range(size, len(text)) if text[end - size : end] == text[len(text) - size :]]
        if size <= len(text) and ends:
            expected = tuple((text + text[ends[-1] :] * 4)[ends[-1] : ends[-1] + 4])
            break
    assert lookup(ngram_min=1).propose(text, 4) == expected
