"""What a template from an untrusted model file, fed with untrusted messages, can do to the server: little."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from tlserve.errors import TemplateRenderError
from tlserve.text.meter import RenderLimits
from tlserve.text.template import Template

QUICK = RenderLimits(seconds=0.1)
DOUBLING = (
    "{{% set ns = namespace(x={start}) %}}"
    "{{% for i in range(100) %}}{{% set ns.x = {step} %}}{{% endfor %}}{{{{ {end} }}}}"
)


@pytest.mark.parametrize(
    "source",
    [
        "{{ lipsum.__globals__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages | attr('append') }}",
        "{{ ''['__class__'] }}",
        "{{ (messages | map(attribute='__class__') | list)[0] }}",
        "{{ '{0.__class__.__mro__}'.format(1) + 'x' if '{0.__class__}'.format(1) else raise_exception('closed') }}",
        "{{ 'a'.encode() }}",
        "{{ {}.fromkeys([1]) }}",
        "{{ 1 .to_bytes(9) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ self._TemplateReference__context.environment }}",
    ],
)
def test_the_sandbox_is_closed(source: str) -> None:
    """No way to Python's internals, and none to change what the template reads: an error, or nothing at all."""
    messages = ["a"]
    try:
        shown = Template.parse(source).render({"messages": messages})
    except TemplateRenderError:
        shown = ""
    assert shown == ""
    assert messages == ["a"]


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% set x = i * j %}{% endfor %}{% endfor %}",
        "{% macro m() %}{% for i in x %}{% endfor %}{% endmacro %}{% for i in x %}{{ m() }}{% endfor %}",
        "{% set x = range(99999) %}{% for i in x %}{% for j in x %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{{ range(99999) | list | sum }}{% endfor %}",
        "{% for i in range(99999) %}{{ range(99999) | map('abs') | list | length }}{% endfor %}",
        "{% for i in range(99999) %}{% set x = ('x' * 1000) | length %}{% endfor %}",
        "{% block b %}{% for i in range(999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}{% endblock %}",
    ],
)
def test_endless_work_ends(source: str) -> None:
    """Processor time is bounded, wherever the loop hides."""
    template = Template.parse(source, limits=QUICK)
    began_at = time.thread_time()
    with pytest.raises(TemplateRenderError, match=r"runs for more than 0\.1 s"):
        template.render({"x": range(9999)})
    assert time.thread_time() - began_at < 2


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 10**9 }}",
        "{{ 10**9 * 'x' }}",
        "{{ [1] * 10**9 }}",
        "{{ ['x' * 1000000] * 1000 }}",
        "{{ 'x' | center(10**9) }}",
        "{{ 'x' | center(1000000000) }}",
        "{{ 'x'.center(10**9) }}{{ 'x'.ljust(1) }}",
        "{{ 'x'.rjust(10**9) }}",
        "{{ 'x'.zfill(10**9) }}",
        "{{ ['x'] | map('center', 10**9) | list }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (10**9, 1) }}",
        "{{ '%.1000000000f' | format(1) }}",
        "{{ '{:>1000000000}'.format('x') }}",
        "{{ '{:{}}'.format('x', 10**9) }}",
        "{{ 'x' | indent(10**9, true) }}",
        "{{ ('a' * 5000) | replace('a', 'b' * 5000) }}",
        "{{ ('a' * 5000).replace('a', 'b' * 5000) }}",
        "{{ (['x'] * 5000) | join('y' * 5000) }}",
        "{{ ('y' * 5000).join(['x'] * 5000) }}",
        "{{ messages | map(attribute='text') | join }}",
        "{{ ''.join(messages | map(attribute='text')) }}",
        "{{ ('a ' * 50000) | wordwrap(1, wrapstring='b' * 5000) }}",
        "{{ [1, 2] | batch(10**9, 'x') | list }}",
        "{{ [1] | slice(10**9) | list }}",
        "{{ ['x' * 5000000, 'x' * 5000000] | string }}",
        "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
        "{% for i in range(99999) %}" + "y" * 1000 + "{% endfor %}",
        "{% set x %}{% for i in range(99999) %}" + "y" * 5000 + "{% endfor %}{% endset %}",
        "{% macro m() %}{% for i in range(99999) %}{{ 'y' * 5000 }}{% endfor %}{% endmacro %}{{ m() }}",
        "{% set n = namespace(l=[], s='x' * 10**6) %}{% for i in range(999) %}{% set n.l = [n.l, n.s[1:]] %}{% endfor %}",
        DOUBLING.format(start="'xx'", step="ns.x + ns.x", end="0"),
        DOUBLING.format(start="'xx'", step="ns.x ~ ns.x", end="0"),
        DOUBLING.format(start="[1]", step="ns.x + ns.x", end="0"),
        DOUBLING.format(start="[1]", step="[ns.x, ns.x]", end="ns.x"),
        DOUBLING.format(start="[1]", step="[ns.x, ns.x]", end="ns.x ~ ''"),
        DOUBLING.format(start="[1]", step="[ns.x, ns.x]", end="ns.x | tojson"),
        DOUBLING.format(start="[1]", step="[ns.x, ns.x]", end="'%s' % [ns.x]"),
        DOUBLING.format(start="[1]", step="[ns.x, ns.x]", end="'{}'.format(ns.x)"),
        DOUBLING.format(start="{}", step="{'a': ns.x, 'b': ns.x}", end="ns.x | string | length"),
    ],
)
def test_nothing_grows_without_bound(source: str) -> None:
    """Every value, the prompt, and all that is built on the way have a largest size, asked for before it is built."""
    template = Template.parse(source, limits=RenderLimits(seconds=30))
    messages = [{"text": "x" * 100_000}] * 100
    with pytest.raises(TemplateRenderError, match=r"builds (a value|a prompt|values) of more than \d+ characters"):
        template.render({"messages": messages})


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages | map(attribute='text') | join }}",
        "{{ ''.join(messages | map(attribute='text')) }}",
        "{{ (messages | map(attribute='text') | list) | string }}",
        "{{ 'x' * 200000000 }}",
        "{{ 'x' | center(200000000) }}",
        "{{ 'x'.center(200000000) }}",
        "{{ '%200000000d' % 1 }}",
    ],
)
def test_large_results_are_refused_before_they_exist(source: str) -> None:
    """Two hundred megabytes never come into being."""
    template = Template.parse(source)
    messages = [{"text": "x" * 1_000_000}] * 200
    tracemalloc.start()
    try:
        with pytest.raises(TemplateRenderError, match="builds a value of more"):
            template.render({"messages": messages})
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "source",
    [
        "{% set a = range(1000) | list %}{% set b = range(1000) | list %}",
        "{% for i in range(100) %}{% block b scoped %}{% set x = 'y' * 100 %}{% endblock %}{% endfor %}",
    ],
)
def test_all_that_is_built_counts(source: str) -> None:
    """Lists that filters make, and values in the blocks of a template, whose variables are their own."""
    with pytest.raises(TemplateRenderError, match="more than 2500 characters in all"):
        Template.parse(source, limits=RenderLimits(total_size=2500)).render({})


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for i in range(10**9) %}x{% endfor %}", "Range too big"),
        ("{{ 10**10**10**10 }}{{ 2 ** 1000000000 }}", "more than 4096 bits"),
        (DOUBLING.format(start="3", step="ns.x * ns.x", end="ns.x"), "more than 4096 bits"),
        ("{{ 1.5 | round(10**9, 'ceil') }}", "rounded to 1000000000 digits"),
        ("{{ [[1]] | tojson(indent=10**9) }}", "not by 1000000000"),
        ("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", "writes out a namespace"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
        ("{% for x in [1] recursive %}{{ loop([x]) }}{% endfor %}", "recursion"),
        ("{% block b %}{{ self.b() }}{% endblock %}", "recursion"),
    ],
)
def test_other_excesses_are_refused(source: str, reason: str) -> None:
    """Numbers, ranges and recursion end before they hurt."""
    with pytest.raises(TemplateRenderError, match=reason):
        Template.parse(source).render({})


def test_the_prompt_itself_is_bounded() -> None:
    """A message longer than the limit is refused, one of exactly that length is not."""
    template = Template.parse("{{ text }}", limits=RenderLimits(value_size=1000))
    assert template.render({"text": "x" * 1000}) == "x" * 1000
    with pytest.raises(TemplateRenderError, match="more than 1000 characters"):
        template.render({"text": "x" * 1001})
    twice = Template.parse("{{ text }}{{ text }}", limits=RenderLimits(value_size=1000))
    assert len(twice.render({"text": "x" * 500})) == 1000
    with pytest.raises(TemplateRenderError, match="more than 1000 characters"):
        twice.render({"text": "x" * 501})


def test_a_long_conversation_stays_well_within_the_limits() -> None:
    """Two thousand turns through a template that collects them in a list and in a text."""
    source = (
        "{% set ns = namespace(turns=[], text='') %}{% for m in messages %}{% set ns.turns = ns.turns + [m] %}"
        "{% set ns.text = ns.text + m.content ~ '\n' %}{% endfor %}{{ ns.turns | length }}{{ ns.text | length }}"
    )
    messages = [{"role": "user", "content": "x" * 100}] * 2000
    assert Template.parse(source).render({"messages": messages}) == "2000202000"


def test_limits_count_for_each_rendering_anew() -> None:
    """What one rendering used is not held against the next."""
    template = Template.parse(
        "{% for i in range(1000) %}x{% endfor %}", limits=RenderLimits(value_size=1500, total_size=2500)
    )
    for _ in range(3):
        assert len(template.render({})) == 1000


def test_digits_in_a_format_that_are_no_width_do_not_count() -> None:
    """A date or a JSON object around a field is text."""
    assert Template.parse("{{ '20240726123059 %s 99999999999' % 'a' }}").render({}) == "20240726123059 a 99999999999"
    assert Template.parse("{{ '{{\"n\": 99999999999}} {}'.format('a') }}").render({}) == '{"n": 99999999999} a'
