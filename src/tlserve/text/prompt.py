"""Placeholder until this file is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tlserve.text.rendered import Rendered
from tlserve.text.template import Template


class PromptRenderer:
    def __init__(self, template: Template, control: Iterable[str], *, bos: str, eos: str) -> None:
        self._template = template
        self._bos = bos
        self._eos = eos

    def render(self, messages: Sequence[Mapping[str, object]], *, add_generation_prompt: bool) -> Rendered:
        text = self._template.render_chat(
            messages, add_generation_prompt=add_generation_prompt, bos=self._bos, eos=self._eos
        )
        return Rendered(text)
