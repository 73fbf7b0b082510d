"""Keeps a fetch answerable: however long something blocks, a stop is noticed within a tenth of a second."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final, TypeVar

from attrs import frozen

from tlserve.errors import LoadCancelled
from tlserve.weights.progress import Phase, Progress

POLL_SECONDS: Final = 0.1

T = TypeVar("T")


@frozen
class Attendant:
    """Tells the caller how far things are and asks whether to go on; both happen on the caller's own thread."""

    report: Callable[[Progress], None]
    cancelled: Callable[[], bool]

    def tell(self, phase: Phase, bytes_done: int, bytes_total: int | None) -> None:
        """Report, unless a stop was asked for.

        Raises:
            LoadCancelled: it was.
        """
        if self.cancelled():
            raise LoadCancelled("a stop was asked for while the model was being fetched")
        self.report(Progress(phase, bytes_done, bytes_total))

    def attend(self, work: Callable[[threading.Event], T], beat: Callable[[], None]) -> T:
        """Run ``work``, which may block on the network, in a thread of its own and call ``beat`` meanwhile.

        When ``beat`` raises, the event given to ``work`` is set and the thread is left to end by itself: it must touch
        nothing shared once it sees the event.
        """
        stop = threading.Event()
        outcome: Future[T] = Future()

        def run() -> None:
            try:
                outcome.set_result(work(stop))
            except BaseException as error:  # noqa: BLE001  raised again below, on the caller's thread
                outcome.set_exception(error)

        threading.Thread(target=run, name="tlserve-pull", daemon=True).start()
        try:
            while not wait([outcome], timeout=POLL_SECONDS).done:
                beat()
        finally:
            stop.set()
        return outcome.result()
