"""The tokenizer of models without one: a token is a byte."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from tlserve.errors import CheckpointError
from tlserve.text.rendered import Rendered
from tlserve.text.unicode import to_utf8


class ByteTokenizer:
    """Ids 0 to 255 are the bytes of UTF-8; a vocabulary may be larger, its other ids have no text.

    Raises:
        CheckpointError: The vocabulary is smaller than 256.
    """

    def __init__(self, vocab_size: int = 256) -> None:
        if vocab_size < 256:
            raise CheckpointError(
                f"a byte vocabulary has at least 256 tokens, this model has {vocab_size}: add a tokenizer.json"
            )
        self._vocab_size = vocab_size

    @property
    def vocab_size(self) -> int:
        """At least 256."""
        return self._vocab_size

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """None: every byte is text."""
        return MappingProxyType({})

    @property
    def bos_ids(self) -> tuple[int, ...]:
        """Nothing."""
        return ()

    def encode(self, text: str, *, parse_special: bool) -> list[int]:  # noqa: ARG002
        """The bytes of the text in UTF-8; there is nothing special to parse."""
        return list(to_utf8(text))

    def encode_rendered(self, rendered: Rendered) -> list[int]:
        """The bytes of the prompt in UTF-8."""
        return list(to_utf8(rendered.text))

    def token_bytes(self, token: int) -> bytes:
        """The byte itself, or ``b""`` for an id beyond them."""
        return bytes((token,)) if 0 <= token < 256 else b""

    def token_text(self, token: int) -> str:
        """The byte if it is ASCII, else U+FFFD."""
        return self.decode((token,))

    def decode(self, tokens: Iterable[int]) -> str:
        """The bytes read as UTF-8."""
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", "replace")
