"""The words that cross between the loop thread and the engine thread, as frozen values.

Commands go in through a ``queue.SimpleQueue``, deliveries come out through ``TrioToken.run_sync_soon``, one per step.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from attrs import frozen

from tlserve.engine.messages import EngineStats, Failed, GenRequest, Started, TokenOut
from tlserve.errors import AdmitError
from tlserve.names import RequestId


@frozen
class Submit:
    """Take this request; its id is set."""

    request: GenRequest


@frozen
class Abort:
    """Forget this request and free its blocks; an id that is already over is no error."""

    id: RequestId


@frozen
class Embed:
    """Run these tokens once, between steps, and deliver the pooled vector under this id."""

    id: RequestId
    tokens: tuple[int, ...]


@frozen
class Stop:
    """Abort everything and leave the thread."""


Command = Submit | Abort | Embed | Stop


@frozen
class Embedded:
    """The pooled, normalised vector that an Embed asked for."""

    id: RequestId
    vector: tuple[float, ...]


@frozen
class Refused:
    """The engine did not admit the request."""

    id: RequestId
    error: AdmitError


Event = Started | TokenOut | Embedded | Failed | Refused
"""What can happen to one request. It is over after a token with a finish, and after anything but a token and its start."""


def is_last(event: Event) -> bool:
    """Whether nothing more can follow for this request."""
    return event.finish is not None if isinstance(event, TokenOut) else not isinstance(event, Started)


@frozen
class Delivery:
    """All that one turn of the engine thread did: events in order, and the counters after it."""

    events: Sequence[Event]
    stats: EngineStats


NO_STATS = EngineStats(**dict.fromkeys((field.name for field in attrs.fields(EngineStats)), 0))
"""The counters before there is an engine."""
