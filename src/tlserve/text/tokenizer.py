"""What every tokenizer can do, whatever file it came from.

The builders live beside it: ``byte_tokenizer``, ``tokenizer_json``, ``gguf_bpe``, ``gguf_spm``. Chat templates are
rendered elsewhere; here their result becomes ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from tlserve.text.rendered import Rendered


class Tokenizer(Protocol):
    """Text to token ids and back.

    Every method is pure and may be called from several threads at once. A lone surrogate in the input, which no UTF-8
    text can hold, is read as U+FFFD.
    """

    @property
    def vocab_size(self) -> int:
        """One more than the greatest id that can be met."""

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """The control tokens: the text that spells each, and its id."""

    @property
    def bos_ids(self) -> tuple[int, ...]:
        """What the model wants in front of a raw completion; empty if nothing."""

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """The ids of a text that no template made.

        Args:
            text: The text, of any length.
            parse_special: If true, control tokens spelled in the text are control tokens, and ``bos_ids`` come first
                unless the text begins with them; if false, all of it is plain text and nothing is added.
        """

    def encode_rendered(self, rendered: Rendered) -> list[int]:
        """The ids of a rendered chat.

        The template's own control tokens are parsed; text of a message never becomes one. Nothing is added in front:
        a template writes the BOS token itself.
        """

    def token_bytes(self, token: int) -> bytes:
        """The bytes that this token adds to the text; ``b""`` for a control token or an id without text."""

    def token_text(self, token: int) -> str:
        """The token as people like to see it: control tokens by name, incomplete UTF-8 as U+FFFD."""

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of the tokens: their bytes in a row, read as UTF-8 with U+FFFD for what is invalid."""
