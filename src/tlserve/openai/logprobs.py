"""The two shapes of ``logprobs``: chat's list of entries, completions' parallel lists.

Every completion token has an entry, also the end token and the tokens of a stop string.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from tlserve.openai.values import Alternative, TokenLogprob, finite

Document = dict[str, object]


def chat_logprobs(tokens: Iterable[TokenLogprob]) -> Document:
    """The ``logprobs`` of a chat choice or chunk; ``bytes`` are the token's own, whole characters or not."""
    return {"content": [_chat_entry(token) for token in tokens], "refusal": None}


def _chat_entry(token: TokenLogprob) -> Document:
    return {**_named(token), "top_logprobs": [_named(alternative) for alternative in token.top]}


def _named(token: TokenLogprob | Alternative) -> Document:
    return {"token": token.text, "logprob": finite(token.logprob), "bytes": list(token.data)}


class CompletionLogprobs:
    """The ``logprobs`` of one completions choice, whole or piece by piece.

    ``text_offset`` counts characters (code points) from the beginning of the prompt, as OpenAI does: the first
    generated token sits at ``offset``, the length of the prompt's text. A token that ends inside a character leaves
    the next one at the same offset.
    """

    def __init__(self, offset: int) -> None:
        self._offset = offset
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def document(self, tokens: Iterable[TokenLogprob]) -> Document:
        """The lists for the tokens that follow those of the calls before; ``top_logprobs`` includes the sampled one."""
        chosen = list(tokens)
        return {
            "tokens": [token.text for token in chosen],
            "token_logprobs": [finite(token.logprob) for token in chosen],
            "top_logprobs": [_by_text(token) for token in chosen],
            "text_offset": [self._advance(token.data) for token in chosen],
        }

    def _advance(self, data: bytes) -> int:
        """Where a token of these bytes begins."""
        start = self._offset
        self._offset += len(self._decoder.decode(data))
        return start


def _by_text(token: TokenLogprob) -> dict[str, float]:
    """Texts to log probabilities, the sampled token first; of two tokens shown alike the likelier one stays."""
    by_text = {token.text: finite(token.logprob)}
    for alternative in token.top:
        by_text.setdefault(alternative.text, finite(alternative.logprob))
    return by_text
