"""Chat templates: what they render, and what is refused when they are parsed."""

from __future__ import annotations

import datetime as dt
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tlserve.errors import TemplateRenderError, TemplateSyntaxError
from tlserve.text.template import DEFAULT_TEMPLATE, Template, local_time

DATA = Path(__file__).resolve().parents[1] / "data"
SMOLLM2 = (DATA / "text" / "templates" / "smollm2.jinja").read_text().removesuffix("\n")
GREEDY = json.loads((DATA / "golden" / "smollm2-greedy.json").read_text())["greedy"]


def rendered(source: str, **variables: object) -> str:
    return Template.parse(source).render(variables)


def chat(source: str, *messages: tuple[str, str], add_generation_prompt: bool = True) -> str:
    template = Template.parse(source)
    return template.render_messages(messages, add_generation_prompt=add_generation_prompt, bos="<s>", eos="</s>")


def test_chat_template_hand_example() -> None:
    """SmolLM2's template by hand: its default system turn unless there is one, the turns, the assistant's opening."""
    opening = "<|im_start|>assistant\n"
    default = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    user = "<|im_start|>user\nHi<|im_end|>\n"
    assert chat(SMOLLM2, ("user", "Hi")) == default + user + opening
    assert chat(SMOLLM2, ("user", "Hi"), add_generation_prompt=False) == default + user
    system = "<|im_start|>system\nBe brief.<|im_end|>\n"
    assert chat(SMOLLM2, ("system", "Be brief."), ("user", "Hi")) == system + user + opening
    # Filters, elif, loop.last, whitespace control, the default template.
    assert rendered("{{ '  a ' | trim | upper }}{{ none | default('-') }}{{ missing | default('x') }}") == "ANonex"
    branches = "{% if n == 1 %}one{% elif n == 2 %}two{% elif n is defined %}many{% else %}none{% endif %}"
    assert [rendered(branches, n=n) for n in (1, 2, 3)] == ["one", "two", "many"]
    assert rendered(branches) == "none"
    assert (
        rendered("{% for x in xs %}{{ x }}{% if not loop.last %}, {% endif %}{% endfor %}", xs=[1, 2, 3]) == "1, 2, 3"
    )
    assert rendered("a  {%- if true -%}  b  {%- endif -%}  c {{- 'd' -}}  e") == "abcde"
    assert chat(DEFAULT_TEMPLATE, ("system", "S"), ("user", "Hi")) == "<|system|>\nS\n<|user|>\nHi\n<|assistant|>\n"
    assert chat(DEFAULT_TEMPLATE, ("user", "Hi"), add_generation_prompt=False) == "<|user|>\nHi\n"


def test_template_errors_are_caught_at_parse() -> None:
    """Unclosed blocks, unknown statements, filters and tests are refused when the model loads, with the line."""
    for source, message in [
        ("{% for m in messages %}{{ m }}", "line 1: Unexpected end of template"),
        ("a\n{% if x %}b", "line 2: Unexpected end of template"),
        ("a\n\n{{ x", "line 3: unexpected end of template"),
        ("{% endfor %}", "line 1: Encountered unknown tag 'endfor'"),
        ("\n{% frobnicate x %}", "line 2: Encountered unknown tag 'frobnicate'"),
        ("{{ x | frobnicate }}", "line 1: there is no filter named 'frobnicate'"),
        ("{% if false %}\n{{ x | frobnicate }}{% endif %}", "line 2: there is no filter named 'frobnicate'"),
        ("{{ 'a' if x is frobnicated else 'b' }}", "line 1: there is no test named 'frobnicated'"),
        ("{{ 1 + }}", "line 1: unexpected 'end of print statement'"),
        ("{% include 'other' %}", "line 1: a chat template is one file: 'include'"),
        ("{% extends 'other' %}", "line 1: a chat template is one file: 'extends'"),
        ("{% import 'other' as o %}", "line 1: a chat template is one file: 'import'"),
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "it nests too deeply"),
        ("{{ x }}" * 200_000, "more than 1000000"),
    ]:
        with pytest.raises(TemplateSyntaxError) as refusal:
            Template.parse(source)
        assert message in str(refusal.value)


@pytest.mark.parametrize("case", GREEDY, ids=range(len(GREEDY)))
def test_prompts_are_those_of_the_reference(case: dict[str, Any]) -> None:
    """SmolLM2's template gives exactly the prompts that the reference answers were made with."""
    prompt = Template.parse(SMOLLM2).render_chat(case["messages"], add_generation_prompt=True, bos="", eos="")
    assert prompt == case["prompt"]


def test_a_template_reads_a_message_by_key_and_by_attribute() -> None:
    """Both ways are in use, also for keys that are methods of a dict."""
    assert rendered("{{ m['content'] }}{{ m.content }}{{ m.call.items }}", m={"content": "a", "call": {}}).startswith(
        "aa"
    )


def test_special_tokens_tools_and_further_variables_are_at_hand() -> None:
    """As the arguments name them; what a request adds does not replace what the server sets."""
    template = Template.parse(
        "{{ bos_token }}|{{ eos_token }}|{{ tools }}|{{ documents }}|{{ extra }}|{{ add_generation_prompt }}"
    )
    variables = {"extra": 1, "bos_token": "forged"}
    assert (
        template.render_chat([], add_generation_prompt=False, bos="<s>", eos="</s>", variables=variables)
        == "<s>|</s>|None|None|1|False"
    )
    with_tools = template.render_chat([], add_generation_prompt=True, bos="", eos="", tools=[{"name": "f"}])
    assert with_tools == "||[{'name': 'f'}]|None||True"


def test_a_refusal_has_the_templates_own_words() -> None:
    """Nothing before them, nothing behind: the client sees what the model's author wrote."""
    with pytest.raises(TemplateRenderError, match=r"^roles must alternate$"):
        rendered("{% if true %}{{ raise_exception('roles must alternate') }}{% endif %}")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ 'a' + missing }}", "'missing' is undefined"),
        ("{{ missing.field }}", "'missing' is undefined"),
        ("{{ 'a' + 1 }}", "can only concatenate str"),
        ("{% for x in none %}{% endfor %}", "'NoneType' object is not iterable"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ [1][5] + 1 }}", "has no element 5"),
        ("{{ frobnicate() }}", "'frobnicate' is undefined"),
        ("{{ '{'.format(1) }}", "Single '{'"),
    ],
)
def test_messages_a_template_cannot_read_are_refused_with_the_reason(source: str, reason: str) -> None:
    """Whatever goes wrong inside is one kind of error, and the client's."""
    with pytest.raises(TemplateRenderError, match="the chat template cannot render these messages") as refusal:
        rendered(source)
    assert reason in str(refusal.value)


def test_the_clock_of_a_template_can_be_set() -> None:
    """Templates write the date by strftime."""
    noon = dt.datetime(2024, 7, 26, 12, 30, 5, tzinfo=dt.UTC)
    source = "{{ strftime_now('%Y-%m-%d') }} {{ strftime_now('%d %b %Y') }} {{ strftime_now('%H:%M:%S') }}"
    assert Template.parse(source, clock=lambda: noon).render({}) == "2024-07-26 26 Jul 2024 12:30:05"


def test_the_clock_is_that_of_the_machine() -> None:
    """Local time, now."""
    before = local_time()
    shown = dt.datetime.fromisoformat(rendered("{{ strftime_now('%Y-%m-%dT%H:%M:%S.%f%z') }}"))
    assert before <= shown <= local_time()


def test_one_template_renders_in_many_threads() -> None:
    """Renderings share nothing but the compiled template."""
    source = "{% set ns = namespace(s='') %}{% for i in range(200) %}{% set ns.s = ns.s ~ name %}{% endfor %}{{ ns.s }}"
    template = Template.parse(source)
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda name: template.render({"name": name}), "abcdefgh" * 4))
    assert texts == [name * 200 for name in "abcdefgh" * 4]


def test_rendering_changes_no_message() -> None:
    """A template may not write into what it reads."""
    messages = [{"role": "user", "content": "a"}]
    for source in (
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{% set messages[0].role = 'x' %}",
    ):
        with pytest.raises((TemplateRenderError, TemplateSyntaxError)):
            Template.parse(source).render({"messages": messages})
    assert messages == [{"role": "user", "content": "a"}]
