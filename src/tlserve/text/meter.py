"""What rendering a chat template may cost, and the meter that holds it to that.

A template comes with the model, from whoever made it, and reads what any client sends: neither may stall or swell
the server.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any, NoReturn, cast

from attrs import field, frozen, validators
from jinja2.runtime import Context
from jinja2.utils import Namespace

from tlserve.errors import TemplateRenderError


@frozen
class RenderLimits:
    """The bounds of one rendering.

    Attributes:
        seconds: Processor time of the rendering thread; waiting for other threads does not count.
        value_size: Characters (or elements) of any one value, the rendered prompt among them.
        total_size: Characters and elements of all values built on the way.
    """

    seconds: float = field(default=2.0, validator=validators.gt(0))
    value_size: int = field(default=8_000_000, validator=validators.ge(1))
    total_size: int = field(default=256_000_000, validator=validators.ge(1))


class Meter:
    """Counts one rendering; belongs to the thread that renders.

    Its methods raise `TemplateRenderError` once a limit is reached.
    """

    __slots__ = ("_ends_at", "_limits", "_spent", "_steps")

    def __init__(self, limits: RenderLimits) -> None:
        self._limits = limits
        self._ends_at = time.thread_time() + limits.seconds
        self._spent = 0
        self._steps = 0

    def tick(self) -> None:
        """Counts a step: a turn of a loop, a call, an operator."""
        self._steps += 1
        if self._steps % 64 == 0:  # reading the clock costs as much as several steps
            self._check_clock()

    def admit(self, size: int) -> None:
        """Asks leave to build a value of this size."""
        self.tick()
        if size > self._limits.value_size:
            self._refuse(f"builds a value of more than {self._limits.value_size} characters")
        self._spent += max(size, 0)
        if self._spent > self._limits.total_size:
            self._refuse(f"builds values of more than {self._limits.total_size} characters in all")
        if size > 10_000:
            self._check_clock()

    def extent(self, value: object) -> int:
        """The length of the value written out, but for escapes in a list's texts; no more than just over the limit.

        What a list holds twice counts twice: written out, it is there twice.
        """
        size, pending = 0, [value]
        while pending and size <= self._limits.value_size:
            item = pending.pop()
            if isinstance(item, str):
                size += len(item)
            elif isinstance(item, Mapping):
                size += 2 + 8 * len(item)
                pending += [*item.keys(), *item.values()]
            elif isinstance(item, Collection):
                size += 2 + 4 * len(item)
                pending += item
            elif isinstance(item, int):
                size += 5 + item.bit_length() // 3
            elif isinstance(item, Namespace):
                self._refuse("writes out a namespace")  # the one thing that can hold itself
            else:
                size += 24  # a float, a date, an object's name
        return size

    def _check_clock(self) -> None:
        if time.thread_time() > self._ends_at:
            self._refuse(f"runs for more than {self._limits.seconds:g} s")

    @staticmethod
    def _refuse(what: str) -> NoReturn:
        raise TemplateRenderError(f"the chat template {what} for these messages: send fewer or shorter ones")


class MeteredContext(Context):
    """The variables of one rendering, and its meter. The environment has an attribute ``limits``."""

    def __init__(self, environment: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(environment, *args, **kwargs)
        self.meter = Meter(environment.limits)

    def derived(self, locals: dict[str, Any] | None = None) -> MeteredContext:  # noqa: A002 - Jinja's name
        """A context of the same rendering, so with the same meter."""
        context = cast("MeteredContext", super().derived(locals))
        context.meter = self.meter
        return context


def meter_of(context: Context) -> Meter:
    """The meter of the rendering that a context belongs to."""
    return cast("MeteredContext", context).meter
