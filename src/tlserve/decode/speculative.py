"""Prompt lookup: guesses the next tokens by finding where the text has said the same before.

Only proposes. A draft is accepted by the engine when it equals the token that ordinary sampling yields at its position,
so a bad guess costs time and never changes an answer. The idea is Apoorv Saxena's "Prompt Lookup Decoding" (2023).
"""

from __future__ import annotations

from collections.abc import Sequence

from tlserve.config import SpeculativeConfig

_LONGEST_PAUSE = 32
"""Tokens; short enough that a text that begins to quote is noticed soon."""


class PromptLookup:
    """The drafts of one sequence. Engine thread only.

    Every n-gram is remembered with the position after its last occurrence, so a token costs a few dictionary writes
    and a proposal a few reads, whatever the length of the text.
    """

    def __init__(self, config: SpeculativeConfig) -> None:
        self._config = config
        self._after: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0
        self._length = config.num_tokens
        self._num_misses = 0
        self._pause = 0

    def propose(self, tokens: Sequence[int], limit: int) -> tuple[int, ...]:
        """At most ``limit`` guesses for what follows ``tokens``, which only ever grow from call to call."""
        if self._pause:
            self._pause -= 1
            return ()
        limit = min(limit, self._length)
        start = self._find(tokens) if limit > 0 else None
        return () if start is None else self._continue(tokens, start, limit)

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        """What became of a proposal: the next is longer after full success, and rests ever longer after failures."""
        if num_accepted:
            self._num_misses = 0
            grown = 2 * num_drafted if num_accepted == num_drafted else num_accepted
            self._length = max(1, min(grown, self._config.num_tokens))
        else:
            self._num_misses += 1
            self._length = max(1, self._length // 2)
            self._pause = min(2**self._num_misses, _LONGEST_PAUSE)

    def _find(self, tokens: Sequence[int]) -> int | None:
        """The position after the last earlier occurrence of the longest suffix that has one."""
        self._index(tokens)
        for size in range(self._config.ngram_max, self._config.ngram_min - 1, -1):
            if size <= len(tokens):
                start = self._after.get(tuple(tokens[len(tokens) - size :]))
                if start is not None:
                    return start
        return None

    def _index(self, tokens: Sequence[int]) -> None:
        """Remember the n-grams before each new token: only those have something to continue with."""
        for end in range(self._num_indexed, len(tokens)):
            for size in range(self._config.ngram_min, min(self._config.ngram_max, end) + 1):
                self._after[tuple(tokens[end - size : end])] = end
        self._num_indexed = len(tokens)

    @staticmethod
    def _continue(tokens: Sequence[int], start: int, count: int) -> tuple[int, ...]:
        """The ``count`` tokens from ``start``; beyond the end of the text they repeat, as the text has just begun to."""
        period = len(tokens) - start
        return tuple(tokens[start + index % period] for index in range(count))
