"""Requests that the engine fails: told in time, told once, and nobody else's business."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from faults.poison import BAD_LOGITS, BAD_STEP, circle_logits, expected_text, load_poisonable
from support import Serve, Server, events_of, text_of, write_bigram

from .asking import STREAMS, WAYS, Way


@pytest.fixture
def fragile(serve: Serve, tmp_path: Path) -> Server:
    """A model that counts in a circle, and gives no logits after BEL, no step with ACK in it."""
    directory = write_bigram(tmp_path / "circle", circle_logits())
    return serve(directory, load=load_poisonable, step_delay=0.005)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("poison", [BAD_LOGITS, BAD_STEP], ids=["logits", "step"])
def test_str_15_trio_01_a_failure_before_the_first_token(fragile: Server, way: Way, poison: str) -> None:
    """500, or where the stream had begun an error event: never an empty success, never a traceback, and the next is served."""
    response = way.post(fragile, f"a{poison}", max_tokens=5)
    if response.status_code == 200:
        assert way.stream
        events = events_of(response.text)
        (error,) = [json.loads(event)["error"] for event in events if event.startswith('{"error"')]
        assert '"finish_reason":"' not in response.text
    else:
        assert response.status_code == 500
        error = response.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "internal_error")
    assert way.ask(fragile, "a", max_tokens=2, temperature=0).only.text == "bc"


@pytest.mark.parametrize("way", STREAMS, ids=str)
def test_str_16_a_failure_after_some_tokens(fragile: Server, way: Way) -> None:
    """One error event and the end, no finish; the streams beside it go on, unchanged to the token."""
    with ThreadPoolExecutor(3) as pool:
        others = [
            pool.submit(fragile.chat, last, stream=True, max_tokens=150, temperature=0) for last in ("a", "k", "0")
        ]
        # BEL is forced as its first token; there is no second one.
        response = way.post(fragile, "a", max_tokens=9, temperature=0, logit_bias={str(ord(BAD_LOGITS)): 100})
        texts = [text_of(other.result().text) for other in others]
    assert texts == [expected_text(last, 150) for last in ("a", "k", "0")]
    *begun, failure, done = events_of(response.text)
    assert json.dumps(BAD_LOGITS) in begun[-1]
    assert json.loads(failure)["error"]["code"] == "internal_error"
    assert done == "[DONE]"
    assert '"finish_reason":"' not in response.text
