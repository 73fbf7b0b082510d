"""SentencePiece vocabularies from GGUF metadata."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from text.vocabularies import NORMAL, sentencepiece, small_spm, spelled
from tlserve.errors import CheckpointError
from tlserve.text.gguf_spm import from_gguf_spm

SPM = small_spm()
TOKENS, SCORES, TYPES = sentencepiece()
SCORE_OF = {token: score for token, score, kind in zip(TOKENS, SCORES, TYPES, strict=True) if kind == NORMAL}


def joined_greedily(text: str) -> list[str]:
    """The definition: join the neighbours whose union scores best, the first of equals, until none is a piece."""
    parts = list(text.replace(" ", "▁"))
    while True:
        unions = [left + right for left, right in pairwise(parts)]
        known = [index for index, union in enumerate(unions) if union in SCORE_OF]
        if not known:
            return parts
        best = max(known, key=lambda index: (SCORE_OF[unions[index]], -index))
        parts[best : best + 2] = [unions[best]]


def test_the_best_scores_are_joined_first() -> None:
    """Score decides, not place: " t" is joined before "he", and then there is no way to " the"."""
    assert spelled(SPM, "the thing  ing") == ["t", "he", " t", "h", "ing", "  ", "ing"]


@given(st.text(alphabet="the aingHlo.<|>_mds", max_size=30))
def test_pieces_are_those_of_the_definition(text: str) -> None:
    """The list of merges joins what joining by score joins."""
    assume("<b> " not in text)  # a token of its own
    expected = [part.replace("▁", " ") for part in joined_greedily(text)]
    ids = SPM.encode(text, parse_special=False)
    assert [SPM.token_bytes(token).decode() for token in ids] == expected


@given(st.text())
def test_encoding_is_lossless(text: str) -> None:
    """The bytes join to the text, whatever script it is in; U+2581 alone comes back as a space."""
    ids = SPM.encode(text, parse_special=False)
    assert b"".join(map(SPM.token_bytes, ids)) == text.replace("▁", " ").encode()


@given(st.text(min_size=1))
def test_the_space_in_front_is_the_only_addition(text: str) -> None:
    """Llama 2's tokenizer reads every stretch of text as if a space came first."""
    assume("<b> " not in text)  # what follows it is another stretch
    tokenizer = small_spm(add_space_prefix=True)
    assert tokenizer.decode(tokenizer.encode(text, parse_special=False)) == " " + text.replace("▁", " ")


def test_an_empty_text_has_no_tokens() -> None:
    """Not even the space."""
    assert small_spm(add_space_prefix=True).encode("", parse_special=True) == []


def test_characters_without_a_piece_become_bytes() -> None:
    """A byte token is one byte; a text that spells its name is not."""
    ids = SPM.encode("ж\n", parse_special=False)
    assert [SPM.token_bytes(token) for token in ids] == [b"\xd0", b"\xb6", b"\n"]
    assert SPM.decode(SPM.encode("<0x0A>", parse_special=True)) == "<0x0A>"


def test_control_strings_are_never_joined_from_letters() -> None:
    """Without special parsing "<s>" is text, although "<s" and ">" are pieces that would join to it."""
    ids = SPM.encode("<s><|im_end|></s><unk>", parse_special=False)
    assert min(ids) >= 4
    assert SPM.decode(ids) == "<s><|im_end|></s><unk>"
    assert SPM.encode("<|im_end|></s>", parse_special=True) == [3, 2]


def test_control_tokens_have_no_bytes() -> None:
    """The unknown token is one of them."""
    assert list(SPM.special_tokens) == ["<unk>", "<s>", "</s>", "<|im_end|>"]
    assert [SPM.token_bytes(token) for token in SPM.special_tokens.values()] == [b""] * 4


def test_user_defined_tokens_are_found_in_any_text() -> None:
    """They are text as it is, spaces included."""
    ids = SPM.encode("a<b> a", parse_special=False)
    assert len(TOKENS) - 1 in ids
    assert SPM.decode(ids) == "a<b> a"


def test_bos_comes_first_in_a_raw_text_only() -> None:
    """The file says so; a text that begins with it gets no second one."""
    tokenizer = small_spm(add_bos=True)
    assert tokenizer.bos_ids == (1,)
    assert tokenizer.encode("a", parse_special=True) == [1, *tokenizer.encode("a", parse_special=False)]
    assert tokenizer.encode("<s>a", parse_special=True) == tokenizer.encode("a", parse_special=True)
    assert tokenizer.encode("", parse_special=True) == [1]


@pytest.mark.parametrize("text", ["t", " ", "the ", "ж", "\n"])
def test_long_texts_cost_time_in_proportion(text: str) -> None:
    """A hundred thousand characters of any one kind are no attack."""
    began_at = time.process_time()
    assert SPM.encode(text * 100_000, parse_special=True)
    assert time.process_time() - began_at < 5


def test_scores_that_do_not_match_are_refused() -> None:
    """Every token has a score."""
    with pytest.raises(CheckpointError, match="tokens but 1 scores"):
        from_gguf_spm(TOKENS, [0.0], TYPES, bos_id=1)
