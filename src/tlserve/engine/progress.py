"""How far the engine is on its way to serving."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from attrs import frozen


class LoadPhase(Enum):
    """The phases in their order, as ``/readyz`` words them."""

    STARTING = "starting"
    FETCHING = "fetching the model"
    LOADING = "loading the weights"
    WARMING = "compiling and warming up"
    READY = "ready"
    FAILED = "failed"

    @property
    def is_loading(self) -> bool:
        """Whether something is being done that brings the model nearer."""
        return self in (LoadPhase.FETCHING, LoadPhase.LOADING, LoadPhase.WARMING)


@frozen
class LoadProgress:
    """A phase, the part of it that is done (0 to 1) where that is known, and a word on what is done right now."""

    phase: LoadPhase
    fraction: float | None = None
    detail: str = ""

    def facts(self) -> dict[str, object]:
        """For the log and for ``/readyz``: the phase, and what else is known."""
        known: dict[str, object] = {"phase": self.phase.value}
        if self.fraction is not None:
            known["fraction"] = round(self.fraction, 3)
        if self.detail:
            known["detail"] = self.detail
        return known


Report = Callable[[LoadProgress], None]
"""Called by the loading thread, often; it may raise LoadCancelled to end the loading."""
