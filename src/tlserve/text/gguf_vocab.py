"""The vocabulary of a GGUF file, checked: one string and one kind for every id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import IntEnum

from tokenizers import AddedToken

from tlserve.errors import CheckpointError


class TokenType(IntEnum):
    """The values of ``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class GgufVocab:
    """The tokens of a file by id and by string.

    Raises:
        CheckpointError: There are no tokens, two are the same, or the types do not match them.
    """

    def __init__(self, tokens: Sequence[str], token_types: Sequence[int]) -> None:
        if not tokens:
            raise CheckpointError("the vocabulary is empty: tokenizer.ggml.tokens has no entries")
        if len(token_types) != len(tokens):
            raise CheckpointError(f"the vocabulary has {len(tokens)} tokens but {len(token_types)} token types")
        self.tokens = tuple(tokens)
        self.ids = {token: index for index, token in enumerate(tokens)}
        if len(self.ids) != len(tokens):
            token, count = Counter(tokens).most_common(1)[0]
            raise CheckpointError(f"the vocabulary holds the token {token!r} {count} times: ids must be unique")
        self._types = tuple(map(int, token_types))
        self.control = self.of_type(TokenType.CONTROL) | self.of_type(TokenType.UNKNOWN)
        self.user_defined = self.of_type(TokenType.USER_DEFINED)

    def of_type(self, kind: TokenType) -> frozenset[int]:
        """The ids of one type."""
        return frozenset(index for index, value in enumerate(self._types) if value == kind)

    def added_tokens(self) -> list[AddedToken]:
        """Control and user-defined tokens, which are looked for before anything else."""
        return [
            AddedToken(self.tokens[token], special=token in self.control, normalized=False)
            for token in sorted(self.control | self.user_defined)
            if self.tokens[token]
        ]

    def bos_ids(self, bos_id: int | None, *, add_bos: bool) -> tuple[int, ...]:
        """What goes in front of a raw completion."""
        if not add_bos:
            return ()
        if bos_id is None or not 0 <= bos_id < len(self.tokens):
            raise CheckpointError(
                f"the tokenizer adds a BOS token, but its id is {bos_id} in a vocabulary of {len(self.tokens)}"
            )
        return (bos_id,)
