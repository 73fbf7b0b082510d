"""Byte-level BPE from GGUF metadata."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from text.vocabularies import CONTROLS, byte_level, small_bpe
from tlserve.errors import CheckpointError, UnsupportedModelError
from tlserve.text.gguf_bpe import from_gguf_bpe
from tlserve.text.vocab_tokenizer import VocabTokenizer

FAMILIES = ("gpt-2", "smollm", "llama-bpe", "qwen2", "tekken")


def words(pre: str, text: str) -> list[str]:
    """How a family splits a text: with every word in the vocabulary, each becomes one token."""
    tokenizer = small_bpe(pre=pre)
    split = tokenizer._parsing.pre_tokenizer
    assert split is not None
    return [text[start:end] for _, (start, end) in split.pre_tokenize_str(text)]


def test_merges_are_applied_in_their_order() -> None:
    """The best merges come first, wherever they are."""
    tokenizer = small_bpe()
    pieces = [tokenizer.token_bytes(token) for token in tokenizer.encode("the the them tim end", parse_special=False)]
    assert pieces == [b"the", b" the", b" the", b"m", b" t", b"im", b" ", b"end"]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["I", "'", "LL", " don", "'t", " 1234567", "\n\n", "\n", "b", "  ", " x", "!?"]),
        ("smollm", ["I", "'", "LL", " don", "'t", " ", *"1234567", "\n\n", "\n", "b", "  ", " x", "!?"]),
        ("llama-bpe", ["I", "'LL", " don", "'t", " ", "123", "456", "7", "\n\n\n", "b", "  ", " x", "!?"]),
        ("qwen2", ["I", "'LL", " don", "'t", " ", *"1234567", "\n\n\n", "b", "  ", " x", "!?"]),
        ("tekken", ["I", "'LL", " don", "'t", " ", *"1234567", "\n\n\n", "b", "  ", " x", "!?"]),
    ],
)
def test_each_family_splits_in_its_own_way(pre: str, expected: list[str]) -> None:
    """Contractions, digits and newlines go as in the training of the models that name the rule."""
    assert words(pre, "I'LL don't 1234567\n\n\nb   x!?") == expected


def test_tekken_splits_where_small_letters_end() -> None:
    """Its words begin with capitals; a slash belongs to the signs before it."""
    assert words("tekken", "HelloWorld ABCdef x//\ny") == ["Hello", "World", " ABCdef", " x", "//\n", "y"]


def test_a_text_without_a_rule_goes_by_that_of_gpt2() -> None:
    """Files older than the key have byte-level vocabularies of GPT-2's kind."""
    text = "I'LL don't 12 the\n\nx"
    assert small_bpe(pre=None).encode(text, parse_special=False) == small_bpe().encode(text, parse_special=False)


def test_an_unknown_rule_is_refused_by_name() -> None:
    """A wrong split would be a silent loss of quality; the refusal lists what is known."""
    with pytest.raises(UnsupportedModelError, match=r"'falcon' is not .* default, .*gpt-2, .*qwen2, smollm, tekken"):
        small_bpe(pre="falcon")


def test_qwen_composes_letters_and_accents() -> None:
    """It was trained on text in Unicode's composed form; the others read what is there."""
    assert small_bpe(pre="qwen2").decode(small_bpe(pre="qwen2").encode("e\u0301", parse_special=False)) == "é"
    assert small_bpe(pre="llama-bpe").decode(small_bpe().encode("e\u0301", parse_special=False)) == "e\u0301"


@pytest.mark.parametrize("pre", ["llama-bpe", "tekken"])
def test_a_word_of_the_vocabulary_is_one_token_there(pre: str) -> None:
    """Llama 3 and Tekken look a whole word up before they merge; GPT-2 gets there by merges or not at all."""
    tokens, merges, types = byte_level()
    whole = [*tokens, "Ġwhole"], merges, [*types, 1]
    ids = from_gguf_bpe(*whole, pre=pre, add_bos=False).encode(" whole", parse_special=False)
    assert ids == [len(tokens)]
    assert len(from_gguf_bpe(*whole, pre="gpt-2").encode(" whole", parse_special=False)) > 1


def test_control_tokens_count_only_where_they_may() -> None:
    """With special parsing a control string is one id, without it is text; it has no bytes but a name."""
    tokenizer = small_bpe()
    assert tokenizer.encode("<|im_start|>x", parse_special=True) == [1, *tokenizer.encode("x", parse_special=False)]
    assert not set(tokenizer.encode("".join(CONTROLS), parse_special=False)) & set(range(len(CONTROLS)))
    assert dict(tokenizer.special_tokens) == {text: token for token, text in enumerate(CONTROLS)}
    assert tokenizer.token_bytes(1) == b""
    assert tokenizer.token_text(1) == "<|im_start|>"


def test_user_defined_tokens_are_found_in_any_text() -> None:
    """They are text, spelled as it is, not in the byte alphabet."""
    tokenizer = small_bpe()
    for parse_special in (True, False):
        ids = tokenizer.encode("a<thé> b", parse_special=parse_special)
        assert tokenizer.vocab_size - 1 in ids
        assert tokenizer.decode(ids) == "a<thé> b"
    assert "<thé>" not in tokenizer.special_tokens


@pytest.mark.parametrize(("pre", "expected"), [("gpt-2", ()), ("qwen2", ()), ("llama-bpe", (0,)), ("tekken", (0,))])
def test_a_file_that_does_not_say_follows_its_family(pre: str, expected: tuple[int, ...]) -> None:
    """Llama 3 and Tekken begin a text with BOS, the others do not."""
    assert small_bpe(pre=pre, add_bos=None).bos_ids == expected
    assert small_bpe(pre=pre, add_bos=False).bos_ids == ()
    assert small_bpe(pre=pre, add_bos=True).bos_ids == (0,)


def test_token_bytes_of_a_split_character_are_its_bytes() -> None:
    """The pieces of an emoji are not text on their own; shown, they are replacement characters."""
    tokenizer = small_bpe()
    ids = tokenizer.encode("😀", parse_special=False)
    assert b"".join(map(tokenizer.token_bytes, ids)) == "😀".encode()
    assert [tokenizer.token_text(token) for token in ids] == ["�"] * 4
    assert tokenizer.decode(ids[:-1]) == "�"


@given(st.text(), st.sampled_from(["gpt-2", "smollm", "llama-bpe", "tekken"]))
def test_encoding_is_lossless(text: str, pre: str) -> None:
    """The bytes of the ids join to the text, whatever it is: no clean-up, no lost space."""
    tokenizer = TOKENIZERS[pre]
    ids = tokenizer.encode(text, parse_special=False)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    assert tokenizer.decode(ids) == text


@given(st.text())
def test_qwen_is_lossless_up_to_composition(text: str) -> None:
    """What comes back is the composed form."""
    tokenizer = TOKENIZERS["qwen2"]
    assert tokenizer.decode(tokenizer.encode(text, parse_special=False)) == unicodedata.normalize("NFC", text)


TOKENIZERS: dict[str, VocabTokenizer] = {pre: small_bpe(pre=pre) for pre in FAMILIES}


@pytest.mark.parametrize("pre", FAMILIES)
@pytest.mark.parametrize("text", ["a", "A", "1", " ", "\n", "!", "aA", "あ", " a", "\n "])
def test_long_texts_cost_time_in_proportion(pre: str, text: str) -> None:
    """A hundred thousand characters of any one kind are no attack."""
    began_at = time.process_time()
    assert TOKENIZERS[pre].encode(text * 100_000, parse_special=True)
    assert time.process_time() - began_at < 3


@pytest.mark.parametrize("merge", ["zz y", "th", "t z", "t", ""])
def test_a_merge_that_joins_nothing_is_refused(merge: str) -> None:
    """Both parts and their union are tokens."""
    tokens, merges, types = byte_level()
    with pytest.raises(CheckpointError, match=f"the merge '{merge}' does not join two tokens"):
        from_gguf_bpe(tokens, [*merges, merge], types, pre="gpt-2")


def test_arrays_that_do_not_match_are_refused() -> None:
    """Every token has a type, and there are tokens."""
    tokens, merges, types = byte_level()
    with pytest.raises(CheckpointError, match=r"\d+ tokens but 1 token types"):
        from_gguf_bpe(tokens, merges, types[:1], pre="gpt-2")
    with pytest.raises(CheckpointError, match="empty"):
        from_gguf_bpe([], [], [], pre="gpt-2")


def test_a_token_listed_twice_is_refused() -> None:
    """Two ids for one string cannot be told apart."""
    tokens, merges, types = byte_level()
    with pytest.raises(CheckpointError, match="'the' 2 times"):
        from_gguf_bpe([*tokens, "the"], merges, [*types, 1], pre="gpt-2")


@pytest.mark.parametrize("bos_id", [None, 100_000])
def test_a_bos_token_that_is_not_there_is_refused(bos_id: int | None) -> None:
    """The file asks for BOS and has none."""
    with pytest.raises(CheckpointError, match=f"its id is {bos_id} in a vocabulary of"):
        small_bpe(bos_id=bos_id, add_bos=True)
