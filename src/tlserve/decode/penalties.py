"""Counts the tokens of one request and changes logits by what has been counted.

Sparse: a row is changed only at tokens that have occurred, so the cost follows the text and not the vocabulary.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tlserve.decode.params import SamplingParams


class Penalties:
    """Repetition penalty over prompt and output (as Hugging Face has it); frequency and presence over the output alone.

    Engine thread only.
    """

    def __init__(self, params: SamplingParams, prompt: Iterable[int]) -> None:
        self._params = params
        self._repeats = params.repetition_penalty != 1.0
        self._subtracts = params.frequency_penalty != 0.0 or params.presence_penalty != 0.0
        self._seen = dict.fromkeys(prompt) if self._repeats else {}
        self._seen_ids = array("i", self._seen)
        self._slot: dict[int, int] = {}
        self._output_ids = array("i")  # the distinct tokens of the output, in order of appearance ...
        self._output_counts = array("i")  # ... and how often each has occurred

    @property
    def is_active(self) -> bool:
        """Whether any penalty changes anything."""
        return self._repeats or self._subtracts

    def count(self, token: int) -> None:
        """The output has one more token."""
        if self._repeats and token not in self._seen:
            self._seen[token] = None
            self._seen_ids.append(token)
        if self._subtracts:
            self._count_output(token)

    def apply(self, logits: NDArray[np.float32]) -> None:
        """Change ``logits`` (vocab,) in place."""
        if self._repeats and self._seen_ids:
            ids = np.array(self._seen_ids)
            values = logits[ids]
            penalty = np.float32(self._params.repetition_penalty)
            logits[ids] = np.where(values > 0, values / penalty, values * penalty)
        if self._output_ids:
            counts = np.array(self._output_counts)
            drop = self._params.frequency_penalty * counts + self._params.presence_penalty
            logits[np.array(self._output_ids)] -= drop.astype(np.float32)

    def _count_output(self, token: int) -> None:
        slot = self._slot.setdefault(token, len(self._output_ids))
        if slot == len(self._output_ids):
            self._output_ids.append(token)
            self._output_counts.append(0)
        self._output_counts[slot] += 1
