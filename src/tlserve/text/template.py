"""Chat templates: conversations become the text that the model was trained on.

A template is Jinja as Hugging Face's ``apply_chat_template`` runs it. What it may do (the sandbox) and how much (the
meter) is settled beside; telling a message's text from control tokens is the prompt renderer's.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence

import jinja2
from jinja2 import nodes

from tlserve.errors import TemplateRenderError, TemplateSyntaxError
from tlserve.text.meter import RenderLimits
from tlserve.text.sandbox import ChatEnvironment, Clock

DEFAULT_TEMPLATE = (
    r"{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + '\n' }}{% endfor %}"
    r"{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)

_MAX_SOURCE = 1_000_000  # characters; the largest templates in use have some 20,000
_OTHER_FILES = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)

# What a template can raise when its messages are not as it expects.
_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)


def local_time() -> dt.datetime:
    """Now, in the time zone of the machine."""
    return dt.datetime.now().astimezone()


class Template:
    """A compiled chat template; may render in several threads at once.

    Attributes:
        literals: What it may look for in a message: its string constants, the names of attributes.
    """

    def __init__(self, program: jinja2.Template, literals: frozenset[str], *, max_size: int) -> None:
        self._program = program
        self._max_size = max_size
        self.literals = literals

    @classmethod
    def parse(cls, source: str, *, limits: RenderLimits | None = None, clock: Clock = local_time) -> Template:
        """Compiles a template.

        Args:
            source: The text of ``chat_template``.
            limits: What one rendering may cost.
            clock: The time that ``strftime_now`` tells.

        Raises:
            TemplateSyntaxError: An error of syntax, or a tag, filter or test that does not exist; with the line.
        """
        if len(source) > _MAX_SOURCE:
            raise TemplateSyntaxError(f"the chat template has {len(source)} characters, more than {_MAX_SOURCE}")
        limits = RenderLimits() if limits is None else limits
        environment = ChatEnvironment(limits, clock)
        try:
            tree = environment.parse(source)
            _check_names(tree, environment)
            literals = _literals(tree)
            return cls(environment.program(tree), literals, max_size=limits.value_size)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateSyntaxError(
                f"the chat template does not compile: line {error.lineno}: {error.message}"
            ) from error
        except (RecursionError, MemoryError, SyntaxError) as error:
            raise TemplateSyntaxError(f"the chat template does not compile: it nests too deeply ({error})") from error

    def render(self, variables: Mapping[str, object]) -> str:
        """Renders with these variables, which are JSON values.

        Raises:
            TemplateRenderError: The template refused the messages (with its own words), could not make sense of
                them, or reached a limit.
        """
        try:
            return self._joined(self._program.generate(variables))
        except _FAULTS as error:
            reason = str(error) or type(error).__name__
            raise TemplateRenderError(f"the chat template cannot render these messages: {reason}") from error

    def _joined(self, pieces: Iterable[str]) -> str:
        kept, size = [], 0
        for piece in pieces:
            kept.append(piece)
            size += len(piece)
            if size > self._max_size:
                raise TemplateRenderError(f"the chat template builds a prompt of more than {self._max_size} characters")
        return "".join(kept)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool,
        bos: str,
        eos: str,
        tools: Sequence[object] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Renders a conversation.

        Args:
            messages: JSON objects with ``role``, ``content`` and whatever else the template reads.
            add_generation_prompt: Whether to open the assistant's turn at the end.
            bos: The text of the BOS token, ``bos_token`` in the template.
            eos: The text of the EOS token, ``eos_token`` in the template.
            tools: JSON schemas of the functions that the model may call.
            variables: More variables, such as ``enable_thinking``; they do not replace those above.

        Raises:
            TemplateRenderError: As `render` does.
        """
        return self.render({
            "documents": None,
            **(variables or {}),
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
            "bos_token": bos,
            "eos_token": eos,
        })  # fmt: skip

    def render_messages(
        self, messages: Sequence[tuple[str, str]], *, add_generation_prompt: bool, bos: str, eos: str
    ) -> str:
        """Renders a conversation given as pairs of role and content."""
        objects = [{"role": role, "content": content} for role, content in messages]
        return self.render_chat(objects, add_generation_prompt=add_generation_prompt, bos=bos, eos=eos)


def _literals(tree: nodes.Template) -> frozenset[str]:
    constants = (node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str))
    attributes = (node.attr for node in tree.find_all(nodes.Getattr))
    return frozenset(constants) | frozenset(attributes)


def _check_names(tree: nodes.Template, environment: ChatEnvironment) -> None:
    """Refuses what Jinja would refuse only on the branch that meets it."""
    for node in tree.find_all((nodes.Filter, nodes.Test)):
        kind, known = ("filter", environment.filters) if isinstance(node, nodes.Filter) else ("test", environment.tests)
        if node.name not in known:
            raise jinja2.TemplateSyntaxError(f"there is no {kind} named {node.name!r}", node.lineno)
    for other in tree.find_all(_OTHER_FILES):
        tag = type(other).__name__.lower()
        raise jinja2.TemplateSyntaxError(f"a chat template is one file: {tag!r} cannot be used", other.lineno)
