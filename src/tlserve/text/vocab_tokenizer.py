"""A tokenizer over a vocabulary, run by the ``tokenizers`` library.

The builders decide what the vocabulary, its merges and its pre-tokenizer are; here, what is a control token and what
is not.

Invariant: no id of a control token comes out of text that a message brought in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import tokenizers
from attrs import frozen
from tokenizers import pre_tokenizers

from tlserve.text.control import ControlFinder
from tlserve.text.rendered import Rendered, without_mark
from tlserve.text.unicode import without_surrogates


@frozen
class Vocabulary:
    """What a builder found in the model's files.

    Attributes:
        library: The model and its pre-tokenizer, with control tokens added as special tokens, others as added tokens.
        pieces: The string of every id, ``""`` where an id has none.
        control: The ids of control tokens; they have no text.
        verbatim: The ids of pieces that are plain text, not written in the alphabet of ``to_bytes``.
        to_bytes: The bytes that a piece spells.
        bos_ids: What goes in front of a raw completion.
    """

    library: tokenizers.Tokenizer
    pieces: Sequence[str]
    control: frozenset[int]
    verbatim: frozenset[int]
    to_bytes: Callable[[str], bytes]
    bos_ids: tuple[int, ...] = ()


class VocabTokenizer:
    """Implements `Tokenizer` for byte-level BPE and SentencePiece vocabularies alike."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        pieces = vocabulary.pieces
        self._special = {pieces[token]: token for token in sorted(vocabulary.control) if pieces[token]}
        self._finder = ControlFinder(self._special)
        self._parsing = vocabulary.library
        self._literal = _literal_twin(vocabulary.library)
        self._continuing = _continuing_twin(vocabulary.library)
        added = vocabulary.library.get_added_tokens_decoder().values()
        self._strips_left = frozenset(token.content for token in added if token.lstrip)
        self._strips_right = frozenset(token.content for token in added if token.rstrip)

    def __repr__(self) -> str:
        return f"<VocabTokenizer of {self.vocab_size} tokens, {len(self._special)} of them control>"

    @property
    def vocab_size(self) -> int:
        """The number of ids, those without text included."""
        return len(self._vocabulary.pieces)

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Control tokens by the text that spells them, in order of their ids."""
        return MappingProxyType(self._special)

    @property
    def bos_ids(self) -> tuple[int, ...]:
        """What goes in front of a raw completion."""
        return self._vocabulary.bos_ids

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """See `Tokenizer.encode`; takes time proportional to the text, without the GIL."""
        text = without_surrogates(text)
        if not parse_special:
            return _encode(self._literal, text)
        ids = _encode(self._parsing, text)
        bos = list(self.bos_ids)
        return ids if ids[: len(bos)] == bos else bos + ids

    def encode_rendered(self, rendered: Rendered) -> list[int]:
        """See `Tokenizer.encode_rendered`; where no message spells a control token, the prompt is one text."""
        text = without_surrogates(rendered.text)
        marked = without_surrogates(rendered.marked)
        ids = _encode(self._parsing, text)
        if not rendered.mark or self._are_own(ids, text, marked):
            return ids
        return list(self._encode_apart(marked, rendered.mark))

    def _are_own(self, ids: list[int], text: str, marked: str) -> bool:
        """Whether all control tokens are the template's: the usual case, as few messages spell any.

        The text alone does not tell: a normalizer may make a control string of what was none.
        """
        own = [self._special[control] for control in self._finder.split(marked)[1::2]]
        found = [token for token in ids if token in self._vocabulary.control]
        return found == own and self._finder.spelled(text) == self._finder.spelled(marked)

    def _encode_apart(self, marked: str, mark: str) -> Iterator[int]:
        """Encodes the template's control tokens, and the plain text between them, each on its own."""
        parts = ["", *self._finder.split(marked), ""]
        for before, plain, after in zip(parts[:-1:2], parts[1::2], parts[2::2], strict=True):
            text = without_mark(plain, mark)
            text = text.lstrip() if before in self._strips_right else text
            text = text.rstrip() if after in self._strips_left else text
            yield from _encode(self._continuing if before else self._literal, text)
            if after:
                yield self._special[after]

    def token_bytes(self, token: int) -> bytes:
        """The exact bytes, so that those of consecutive tokens join to the text."""
        vocabulary = self._vocabulary
        if not 0 <= token < self.vocab_size or token in vocabulary.control:
            return b""
        piece = vocabulary.pieces[token]
        return piece.encode() if token in vocabulary.verbatim else vocabulary.to_bytes(piece)

    def token_text(self, token: int) -> str:
        """The name of a control token, else the text of its bytes."""
        return self._vocabulary.pieces[token] if token in self._vocabulary.control else self.decode((token,))

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of the tokens, nothing cleaned up."""
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", "replace")


def _encode(library: tokenizers.Tokenizer, text: str) -> list[int]:
    # Only the batch call releases the GIL: a long prompt then stalls no other thread.
    return library.encode_batch_fast([text], add_special_tokens=False)[0].ids


def _literal_twin(library: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The same tokenizer (the model itself is shared), for which control tokens are plain text."""
    twin = tokenizers.Tokenizer(library.model)
    for part in ("normalizer", "pre_tokenizer"):
        if (value := getattr(library, part)) is not None:
            setattr(twin, part, value)
    added = library.get_added_tokens_decoder()
    twin.add_tokens([added[token] for token in sorted(added)])
    twin.encode_special_tokens = True
    return twin


def _continuing_twin(library: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The literal twin for what is not the start: if only the first word gets a space in front, nothing does here."""
    twin = _literal_twin(library)
    words = library.pre_tokenizer
    if isinstance(words, pre_tokenizers.Metaspace) and words.prepend_scheme == "first":
        twin.pre_tokenizer = pre_tokenizers.Metaspace(words.replacement, prepend_scheme="never", split=words.split)
    return twin
