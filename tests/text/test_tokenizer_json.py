"""Tokenizers from Hugging Face's tokenizer.json."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from text.vocabularies import byte_level, sentencepiece
from tlserve.errors import CheckpointError, UnsupportedModelError
from tlserve.text.rendered import Rendered
from tlserve.text.tokenizer_json import from_tokenizer_json

SPECIAL = ("<s>", "</s>", "<|end|>")


def byte_level_library() -> tokenizers.Tokenizer:
    """A tokenizer such as Llama 3's: byte-level, BOS from the post-processor; some special tokens swallow spaces."""
    tokens, merges, _ = byte_level()
    vocab = {token: index for index, token in enumerate([*SPECIAL, *tokens])}
    library = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[(a, b) for a, b in map(str.split, merges)]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<s>", AddedToken("</s>", lstrip=True), AddedToken("<|end|>", rstrip=True)])
    library.add_tokens(["<think>"])
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="$A $B", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return library


def metaspace_library(*, scheme: str) -> tokenizers.Tokenizer:
    """A tokenizer such as Mistral's: pieces with U+2581, bytes for the rest, a space before the first word."""
    tokens, _, _ = sentencepiece()
    vocab = {token: index for index, token in enumerate(tokens)}
    library = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "t"), ("h", "e")], byte_fallback=True))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    library.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    library.add_special_tokens(["<s>", "</s>"])
    return library


def data_of(library: tokenizers.Tokenizer) -> bytes:
    data: bytes = library.to_str().encode()
    return data


def edited(library: tokenizers.Tokenizer, **changes: object) -> bytes:
    document: dict[str, Any] = json.loads(library.to_str())
    return json.dumps(document | changes).encode()


BYTE_LEVEL = from_tokenizer_json(data_of(byte_level_library()))


@given(st.text(alphabet="the <|>/s end😀\n", max_size=20))
def test_ids_are_those_of_the_library(text: str) -> None:
    """Parsing special tokens is what the library does, BOS in front included, EOS behind left out."""
    expected = byte_level_library_ids(text)
    assert BYTE_LEVEL.encode(text, parse_special=True) == (expected if expected[:1] == [0] else [0, *expected])


LIBRARY = byte_level_library()


def byte_level_library_ids(text: str) -> list[int]:
    ids: list[int] = LIBRARY.encode(text, add_special_tokens=False).ids
    return ids


@given(st.text())
def test_encoding_is_lossless(text: str) -> None:
    """The bytes of the ids join to the text."""
    ids = BYTE_LEVEL.encode(text, parse_special=False)
    assert b"".join(map(BYTE_LEVEL.token_bytes, ids)) == text.encode()


def test_special_tokens_have_no_bytes_and_added_ones_have() -> None:
    """Which is which stands in the file."""
    assert list(BYTE_LEVEL.special_tokens) == list(SPECIAL)
    assert BYTE_LEVEL.token_bytes(0) == b""
    (think,) = BYTE_LEVEL.encode("<think>", parse_special=False)
    assert BYTE_LEVEL.token_bytes(think) == b"<think>"


@pytest.mark.parametrize(("add_bos", "expected"), [(None, (0,)), (True, (0,)), (False, ())])
def test_bos_is_what_the_post_processor_adds(add_bos: bool | None, expected: tuple[int, ...]) -> None:  # noqa: FBT001
    """Unless tokenizer_config.json forbids it."""
    assert from_tokenizer_json(data_of(LIBRARY), add_bos=add_bos).bos_ids == expected


def test_bos_may_come_from_the_configuration() -> None:
    """Files without a post-processor leave it to tokenizer_config.json."""
    data = edited(LIBRARY, post_processor=None)
    assert from_tokenizer_json(data).bos_ids == ()
    assert from_tokenizer_json(data, bos_token="<s>").bos_ids == ()
    assert from_tokenizer_json(data, add_bos=True, bos_token="<s>").bos_ids == (0,)
    with pytest.raises(CheckpointError, match=r"'<bos>', which is not in tokenizer\.json"):
        from_tokenizer_json(data, add_bos=True, bos_token="<bos>")


def test_a_literal_split_pattern_is_not_an_expression() -> None:
    """A pattern given as a string matches itself, one given as a regular expression matches what it says."""
    for kind, expected in (("String", ["a1b22c"]), ("Regex", ["a", "1", "b", "22", "c"])):
        split = {"type": "Split", "pattern": {kind: r"\p{N}+"}, "behavior": "Isolated", "invert": False}
        data = edited(LIBRARY, pre_tokenizer=split)
        pieces = from_tokenizer_json(data)._parsing.pre_tokenizer.pre_tokenize_str("a1b22c")
        assert [piece for piece, _ in pieces] == expected


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_the_spaces_of_metaspace_stay_where_they_belong(scheme: str) -> None:
    """A message that spells a control token changes nothing about the words around the template's own."""
    library = metaspace_library(scheme=scheme)
    tokenizer = from_tokenizer_json(data_of(library))
    plain = "the</s>the<s> ing"
    expected = library.encode(plain, add_special_tokens=False).ids
    assert tokenizer.encode_rendered(Rendered(plain, "\ufdd0")) == expected
    attacked = tokenizer.encode_rendered(Rendered(plain + "<\ufdd0/s>", "\ufdd0"))
    assert attacked[: len(expected)] == expected
    assert tokenizer.decode(attacked[len(expected) :]) == "</s>"


def test_the_space_that_a_special_token_takes_is_gone_under_attack_too() -> None:
    """Spaces next to tokens that strip them vanish, whether or not a message spells a control token elsewhere."""
    plain = "a<|end|>  b  </s>c"
    expected = byte_level_library_ids(plain)
    assert BYTE_LEVEL.decode(expected) == "abc"
    attacked = BYTE_LEVEL.encode_rendered(Rendered(plain + "<\ufdd0s>", "\ufdd0"))
    assert attacked[: len(expected)] == expected
    assert BYTE_LEVEL.decode(attacked) == "abc<s>"


def test_a_message_does_not_take_the_place_of_a_control_token() -> None:
    """Where an added token swallows the template's own, the one that a message spelled is still text."""
    library = byte_level_library()
    library.add_tokens([AddedToken("the</s>", normalized=False)])
    tokenizer = from_tokenizer_json(data_of(library))
    ids = tokenizer.encode_rendered(Rendered("<\ufdd0/s>the</s>", "\ufdd0"))
    assert ids == [*tokenizer.encode("</s>the", parse_special=False), 1]


def test_holes_and_ids_beyond_have_no_text() -> None:
    """Ids need not be dense, and a model may have more logits than its tokenizer has tokens."""
    library = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "b": 3}, merges=[]))
    library.decoder = decoders.ByteLevel()
    tokenizer = from_tokenizer_json(data_of(library))
    assert tokenizer.vocab_size == 4
    assert [tokenizer.token_bytes(token) for token in (0, 1, 3, 4, -1)] == [b"a", b"", b"b", b"", b""]
    assert tokenizer.token_text(99) == ""


def test_truncation_and_padding_in_the_file_are_ignored() -> None:
    """They belong to training; a prompt is read whole."""
    library = byte_level_library()
    library.enable_truncation(3)
    library.enable_padding(length=8)
    tokenizer = from_tokenizer_json(data_of(library))
    for text in ("the", "the the the the"):
        for parse_special in (True, False):
            expected = BYTE_LEVEL.encode(text, parse_special=parse_special)
            assert tokenizer.encode(text, parse_special=parse_special) == expected


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"not json", b"\xff", b'{"model": {"type": "BPE", "vocab": {}, "merges": ["a b"]}}']
)
def test_damaged_files_are_refused(data: bytes) -> None:
    """With what the library says about them."""
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read"):
        from_tokenizer_json(data)


def test_an_empty_vocabulary_is_refused() -> None:
    """A file without tokens is no tokenizer."""
    library = tokenizers.Tokenizer(models.BPE())
    with pytest.raises(CheckpointError, match="no tokens"):
        from_tokenizer_json(data_of(library))


def test_other_ways_to_spell_bytes_are_refused_by_name() -> None:
    """WordPiece does not say where the spaces go."""
    library = byte_level_library()
    library.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedModelError, match="decodes with WordPiece"):
        from_tokenizer_json(data_of(library))
    with pytest.raises(UnsupportedModelError, match="decodes with nothing"):
        from_tokenizer_json(edited(library, decoder=None))


def test_normalizers_are_the_files_own() -> None:
    """What the file normalises is normalised, with special parsing and without."""
    library = byte_level_library()
    library.normalizer = normalizers.Lowercase()
    tokenizer = from_tokenizer_json(data_of(library), add_bos=False)
    for parse_special in (True, False):
        assert tokenizer.decode(tokenizer.encode("THE", parse_special=parse_special)) == "the"


def test_a_message_cannot_reach_a_control_token_through_a_normalizer() -> None:
    """Full-width brackets that Unicode's NFKC turns into plain ones stay text; the template's own token is one."""
    library = byte_level_library()
    library.normalizer = normalizers.NFKC()
    library.add_special_tokens([AddedToken("<|turn|>", special=True, normalized=True)])
    tokenizer = from_tokenizer_json(data_of(library), add_bos=False)
    turn = tokenizer.special_tokens["<|turn|>"]
    ids = tokenizer.encode_rendered(Rendered("<|turn|>a\uff1c|turn|\uff1e", "\ufdd0"))
    assert ids.count(turn) == 1
    assert tokenizer.decode(ids) == "a<|turn|>"
