"""Renders the conversations of one model, with no way from a message to a control token.

Puts together the template, its special tokens and the marks; tokenizers take the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from tlserve.text.marks import Marker
from tlserve.text.rendered import Rendered
from tlserve.text.template import Template


class PromptRenderer:
    """The chat template of a model, guarded. May render in several threads at once.

    Args:
        template: The chat template.
        control: The control strings of the vocabulary: the keys of ``Tokenizer.special_tokens``.
        bos: The text of the BOS token, or ``""``.
        eos: The text of the EOS token, or ``""``.
    """

    def __init__(self, template: Template, control: Iterable[str], *, bos: str, eos: str) -> None:
        self._template = template
        self._marker = Marker(control, template.literals)
        self._bos = bos
        self._eos = eos

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool,
        tools: Sequence[object] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> Rendered:
        """The prompt of a conversation; arguments as `Template.render_chat` has them.

        Raises:
            TemplateRenderError: The template refuses the messages or reaches a limit.
        """
        mark = self._marker.choose(messages, tools, variables)
        guarded = [self._marker.marked(value, mark) for value in (list(messages), tools, variables)]
        text = self._template.render_chat(
            cast("Sequence[Mapping[str, object]]", guarded[0]),
            add_generation_prompt=add_generation_prompt,
            bos=self._bos,
            eos=self._eos,
            tools=cast("Sequence[object] | None", guarded[1]),
            variables=cast("Mapping[str, object] | None", guarded[2]),
        )
        return Rendered(text, mark)
