"""The engine thread's loop: take commands, step, post what happened.

Runs in one thread for the life of the process and ends by a message, never by cancellation. It alone touches the engine. Knows
nothing of channels or tasks: what it has to say goes through one call per turn, ``post``.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator

from tlserve.bridge.messages import Abort, Command, Delivery, Embed, Embedded, Event, Refused, Stop, Submit
from tlserve.bridge.pulse import Pulse
from tlserve.engine.engine import Engine
from tlserve.engine.messages import Failed, Started
from tlserve.errors import AdmitError, EngineDead, EngineError
from tlserve.names import RequestId


class EngineLoop:
    """Joins an inbox of commands to an engine.

    Args:
        engine: touched by the thread that calls ``run`` and by no other.
        inbox: filled from the loop thread; any number of commands between two steps.
        post: called at most once per turn, from the engine thread; must not block.
        step_delay: seconds slept after a step, to rehearse a slow model.
        pulse: told when a turn begins and ends, for whoever watches.
    """

    def __init__(
        self,
        engine: Engine,
        inbox: queue.SimpleQueue[Command],
        post: Callable[[Delivery], None],
        *,
        step_delay: float = 0.0,
        pulse: Pulse | None = None,
    ) -> None:
        self._engine = engine
        self._inbox = inbox
        self._post = post
        self._step_delay = step_delay
        self._pulse = pulse or Pulse()
        self._events: list[Event] = []
        self._embeddings: dict[RequestId, Iterator[list[float] | None]] = {}

    def run(self) -> None:
        """Serve until a Stop arrives.

        Raises:
            EngineDead: the engine has given up.
        """
        self._post_turn()
        while self._take_commands():
            self._pulse.begin()
            if self._embeddings:
                self._embed_a_piece()
            if self._engine.has_work():
                self._step()
            self._pulse.end()
            self._post_turn()

    def _step(self) -> None:
        try:
            tokens = self._engine.step()
        except EngineDead:
            self._events += self._engine.take_notices()  # Its last step's requests learn what happened to them.
            self._post_turn()
            raise
        notices = self._engine.take_notices()
        self._events += [notice for notice in notices if isinstance(notice, Started)]
        self._events += tokens
        self._events += [notice for notice in notices if isinstance(notice, Failed)]
        if self._step_delay:
            time.sleep(self._step_delay)

    def _post_turn(self) -> None:
        events, self._events = self._events, []
        self._post(Delivery(events, self._engine.stats()))

    def _take_commands(self) -> bool:
        """Obey all commands that are there, waiting for one when there is nothing else to do; False after a Stop."""
        if not self._engine.has_work() and not self._embeddings:
            self._engine.check_integrity()
            if not self._obey(self._inbox.get()):
                return False
        while True:
            try:
                command = self._inbox.get_nowait()
            except queue.Empty:
                return True
            if not self._obey(command):
                return False

    def _obey(self, command: Command) -> bool:
        match command:
            case Submit(request):
                try:
                    self._engine.add_request(request)
                except AdmitError as error:
                    if request.id is not None:
                        self._events.append(Refused(request.id, error))
            case Abort(request_id):
                self._engine.abort(request_id)
                self._embeddings.pop(request_id, None)
            case Embed(request_id, tokens):
                self._embeddings[request_id] = self._engine.embed_in_pieces(tokens)
            case Stop():
                self._engine.abort_all()
                return False
        return True

    def _embed_a_piece(self) -> None:
        """Go on with the oldest input: a piece a turn, so that neither a long text nor a long list stalls a stream."""
        request_id, work = next(iter(self._embeddings.items()))
        try:
            vector = next(work)
        except EngineError as error:
            self._events.append(Failed(request_id, error))
        else:
            if vector is None:
                return
            self._events.append(Embedded(request_id, tuple(vector)))
        del self._embeddings[request_id]
