"""Chooses the tokens that a chunk's logits yield: one, or a run of them when drafts were right.

The rule of speculation is here and nowhere else: row n + 1 is true only if the token chosen from row n is the draft that
row n + 1 was computed with. As every token is chosen by ordinary sampling from a true row, and the run stops where an
ordinary answer would, the output is that of a request without drafts: greedy or sampled, with any parameter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tlserve.decode.sampler import RequestSampler
from tlserve.engine.messages import TokenOut
from tlserve.schedule.plan import Chunk


def verify(chunk: Chunk, rows: NDArray[np.float32], sampler: RequestSampler) -> list[TokenOut]:
    """The new tokens of a chunk, in order; only the last can end the answer.

    Args:
        chunk: what was computed; its sequence does not know the new tokens yet.
        rows: logits, (chunk.num_logits, vocab).
        sampler: the request's; it moves on by as many tokens as are returned.

    Raises:
        BadLogits: a row that counts cannot be sampled.

    """
    sequence = chunk.sequence
    tokens: list[TokenOut] = []
    for index, row in enumerate(rows):
        sample = sampler.next(row)
        finish = sequence.finish_after(sample.token, sequence.num_generated + index + 1)
        tokens.append(TokenOut(sequence.id, sample.token, sample.logprob, finish, sample.top))
        if finish is not None or index == len(chunk.drafts) or sample.token != chunk.drafts[index]:
            break
    return tokens
