"""Templates of many families against Hugging Face's ``apply_chat_template``.

The templates in ``data/text/templates`` are written for these tests in the style of the families that they are named
after; ``data/text/renderings.json`` holds what transformers 5.24 makes of them.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tlserve.errors import TemplateRenderError
from tlserve.text.prompt import PromptRenderer
from tlserve.text.template import Template

DATA = Path(__file__).resolve().parents[1] / "data" / "text"
CONVERSATIONS: dict[str, dict[str, Any]] = json.loads((DATA / "conversations.json").read_text())
RENDERINGS: dict[str, dict[str, dict[str, str]]] = json.loads((DATA / "renderings.json").read_text())
DATES = {"date_string": "26 Jul 2024", "today": "July 26, 2024"}
CONTROL = (
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "[INST]",
    "[/INST]",
    "<｜User｜>",
)


@cache
def template_of(family: str) -> Template:
    return Template.parse((DATA / "templates" / f"{family}.jinja").read_text())


CASES = [pytest.param(family, name, id=f"{family}-{name}") for family, cases in RENDERINGS.items() for name in cases]


@pytest.mark.parametrize("guarded", [False, True], ids=["plain", "guarded"])
@pytest.mark.parametrize(("family", "name"), CASES)
def test_prompts_are_those_of_transformers(family: str, name: str, guarded: bool) -> None:  # noqa: FBT001
    """Character by character, or refused with the same reason; guarding the messages changes nothing."""
    template = template_of(family)
    conversation, expected = CONVERSATIONS[name], RENDERINGS[family][name]
    arguments = {
        "add_generation_prompt": conversation["add_generation_prompt"],
        "tools": conversation.get("tools"),
        "variables": DATES | conversation.get("variables", {}),
    }

    def render() -> str:
        if guarded:
            renderer = PromptRenderer(template, CONTROL, bos="<s>", eos="</s>")
            return renderer.render(conversation["messages"], **arguments).text
        return template.render_chat(conversation["messages"], bos="<s>", eos="</s>", **arguments)

    if "error" in expected:
        with pytest.raises(TemplateRenderError) as refusal:
            render()
        assert expected["error"] in str(refusal.value)
    else:
        assert render() == expected["text"]


def test_every_family_has_its_rendering() -> None:
    """No template is forgotten, and there are at least twelve."""
    assert {path.stem for path in (DATA / "templates").glob("*.jinja")} == set(RENDERINGS)
    assert len(RENDERINGS) >= 12
    assert all(set(cases) == set(CONVERSATIONS) for cases in RENDERINGS.values())
