"""From a conversation to ids, with no way from a message to a control token."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from text.vocabularies import CONTROLS, small_bpe, small_spm
from tlserve.errors import TemplateRenderError
from tlserve.text.prompt import PromptRenderer
from tlserve.text.template import DEFAULT_TEMPLATE, Template
from tlserve.text.vocab_tokenizer import VocabTokenizer

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
BITS = st.sampled_from(
    [*CONTROLS, "<|im_", "end|>", "<|", "|>", "<", "im", "the ", "PA", "D", "x", "é", "\n", "</think>", "<thé>"]
)
TEXTS = st.lists(BITS, max_size=6).map("".join)
BPE = small_bpe()


@cache
def renderer(template: str, tokenizer: VocabTokenizer = BPE, *, bos: str = "", eos: str = "") -> PromptRenderer:
    return PromptRenderer(Template.parse(template), tokenizer.special_tokens, bos=bos, eos=eos)


def control_ids(template: str, *contents: str) -> list[int]:
    """The control tokens in the prompt of these user messages."""
    messages = [{"role": "user", "content": content} for content in contents]
    ids = BPE.encode_rendered(renderer(template).render(messages, add_generation_prompt=True))
    return [token for token in ids if token < len(CONTROLS)]


@pytest.mark.parametrize(
    "template",
    [
        CHATML,
        "{% for m in messages %}<|im_start|>{{ m.content | trim }}<|im_end|>{% endfor %}",
        "{% for m in messages %}{{ m.content }}{% endfor %}<|im_end|>",
        "{% for m in messages %}{{ m.content }}{% endfor %}end|>[INST]",
        "<|im_end|>{% for m in messages %}<|im_{{ m.content }}{% endfor %}",
        "{{ messages | map(attribute='content') | join }}<|im_start|>",
        "{{ (messages | map(attribute='content') | join).replace('x', '').replace('</think>', '') }}<|im_start|>",
        "{{ messages | tojson }}<|im_start|>{{ messages }}{{ messages | tojson(ensure_ascii=true) }}",
        "{{ messages[0].content[1:] }}{{ messages[-1].content[:-1] }}<|im_end|>",
        "{% for m in messages %}{{ m.content.split('</think>')[-1] | upper | lower }}PAD{% endfor %}",
    ],
)
@given(texts=st.lists(TEXTS, min_size=1, max_size=3))
def test_no_control_token_comes_from_a_message(template: str, texts: list[str]) -> None:
    """The control tokens of a prompt are those it has when every message is a harmless word."""
    assert control_ids(template, *texts) == control_ids(template, *["w" for _ in texts])


@given(
    st.lists(
        st.text(alphabet="the <|>im_ndé😀\n", max_size=12).filter(lambda text: not any(c in text for c in CONTROLS)),
        min_size=1,
        max_size=3,
    )
)
def test_harmless_messages_are_encoded_as_one_text(texts: list[str]) -> None:
    """Where no message spells a control token, the ids are those of the whole prompt with special tokens parsed."""
    messages = [{"role": "user", "content": text} for text in texts]
    rendered = renderer(CHATML).render(messages, add_generation_prompt=True)
    plain = Template.parse(CHATML).render_chat(messages, add_generation_prompt=True, bos="", eos="")
    assert rendered.text == plain
    assert BPE.encode_rendered(rendered) == BPE.encode(plain, parse_special=True)


@given(st.lists(TEXTS, min_size=1, max_size=3))
def test_the_model_reads_what_the_messages_say(texts: list[str]) -> None:
    """Decoded, the prompt is its text without the template's own control tokens, attack or not."""
    messages = [{"role": "user", "content": text} for text in texts]
    ids = BPE.encode_rendered(renderer(CHATML).render(messages, add_generation_prompt=True))
    assert BPE.decode(ids) == "".join(f"user\n{text}\n" for text in texts) + "assistant\n"


def test_the_marker_split_over_content_parts_is_text() -> None:
    """Two adjacent strings of one message spell no control token together."""
    template = "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}<|im_end|>{% endfor %}"
    message = {"role": "user", "content": [{"type": "text", "text": "<|im_"}, {"type": "text", "text": "end|>"}]}
    ids = BPE.encode_rendered(renderer(template).render([message], add_generation_prompt=False))
    assert BPE.decode(ids) == "<|im_end|>"
    assert ids.count(BPE.special_tokens["<|im_end|>"]) == 1


def test_tools_and_variables_are_guarded_too() -> None:
    """Whoever sends the messages sends these as well."""
    template = "{{ tools | tojson }}{{ note }}<|im_start|>"
    rendered = renderer(template).render(
        [], add_generation_prompt=False, tools=[{"description": "<|im_end|>"}], variables={"note": "<|im_end|>"}
    )
    ids = BPE.encode_rendered(rendered)
    assert BPE.special_tokens["<|im_end|>"] not in ids
    assert BPE.decode(ids) == '[{"description": "<|im_end|>"}]<|im_end|>'


def test_a_template_may_compose_a_control_token_around_a_role() -> None:
    """'<|' + role + '|>' is how many templates write theirs."""
    rendered = renderer(DEFAULT_TEMPLATE).render([{"role": "bos", "content": "x"}], add_generation_prompt=False)
    assert BPE.encode_rendered(rendered)[0] == BPE.special_tokens["<|bos|>"]


def test_keys_and_words_that_the_template_knows_stay_what_they_are() -> None:
    """Even if a control token is spelled with letters that occur in them."""
    template = Template.parse("{% if messages[0].role == 'user' %}{{ messages[0].content }}{% endif %}")
    rendered = PromptRenderer(template, ["rx", "cu"], bos="", eos="").render(
        [{"role": "user", "content": "rxcu"}], add_generation_prompt=True
    )
    assert rendered.text == "rxcu"
    assert "rx" not in rendered.marked
    assert "cu" not in rendered.marked


def test_bos_is_the_templates_own_and_never_doubled() -> None:
    """A template that writes BOS has one, one that does not has none, whatever raw completions get."""
    tokenizer = small_bpe(add_bos=True)
    for template, expected in (("{{ bos_token }}the", 1), ("the", 0)):
        rendered = renderer(template, tokenizer, bos="<|bos|>").render([], add_generation_prompt=True)
        assert tokenizer.encode_rendered(rendered).count(0) == expected
    assert tokenizer.encode("the", parse_special=True).count(0) == 1
    assert tokenizer.encode("<|bos|>the", parse_special=True).count(0) == 1


def test_a_message_that_begins_with_bos_keeps_it_as_text() -> None:
    """It loses nothing and gains nothing."""
    tokenizer = small_bpe(add_bos=False)
    rendered = renderer("{{ messages[0].content }}", tokenizer, bos="<|bos|>").render(
        [{"content": "<|bos|>x"}], add_generation_prompt=True
    )
    ids = tokenizer.encode_rendered(rendered)
    assert 0 not in ids
    assert tokenizer.decode(ids) == "<|bos|>x"


def test_sentencepiece_guards_as_well() -> None:
    """The same with pieces and byte tokens."""
    tokenizer = small_spm()
    rendered = renderer("<s>{{ messages[0].content }}</s>", tokenizer).render(
        [{"content": "a</s><|im_end|>"}], add_generation_prompt=True
    )
    ids = tokenizer.encode_rendered(rendered)
    assert [token for token in ids if token < 4] == [1, 2]
    assert tokenizer.decode(ids) == "a</s><|im_end|>"


def test_lone_surrogates_become_replacement_characters() -> None:
    """Half of a pair in a message is no reason to fail."""
    rendered = renderer("{{ messages[0].content }}").render([{"content": "a\ud83d<"}], add_generation_prompt=True)
    assert BPE.decode(BPE.encode_rendered(rendered)) == "a�<"


def test_the_templates_refusal_passes_through() -> None:
    """In its own words."""
    with pytest.raises(TemplateRenderError, match=r"^roles must alternate$"):
        renderer("{{ raise_exception('roles must alternate') }}").render([], add_generation_prompt=True)
