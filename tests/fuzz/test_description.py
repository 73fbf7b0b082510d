"""The API's own description held against the server that gives it, by a fuzzer that knows nothing else of either."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import positive_data_acceptance, response_schema_conformance

from support import Serve, Server
from tlserve.openai.routes import ROUTES, Route

MODERATE = settings(max_examples=50, deadline=None, database=None, suppress_health_check=list(HealthCheck))
UNSAID = {
    "messages",  # The template may make nothing of them, or more than the context holds.
    "prompt",  # The same of its tokens, and of ids that the vocabulary does not have.
    "input",
    "logit_bias",
    "stop_token_ids",
    "stream_options",  # What needs or excludes another member.
    "min_tokens",
    "top_logprobs",
    "n",
    "text",
    "best_of",  # What is legal in the API and answered with 422.
    "dimensions",
}
"""Members that may be refused although they fit the schema, which cannot say why."""


@pytest.fixture(scope="module")
def server(serve_shared: Serve, succ_dir: Path) -> Server:
    """A model whose answers cannot be long."""
    return serve_shared(succ_dir, engine={"max_model_len": 64})


@pytest.fixture(scope="module")
def description(server: Server) -> Any:
    """The description, as a client gets it."""
    return schemathesis.openapi.from_url(f"http://{server.handle.http_addr}/openapi.json")


def name_of(route: Route) -> str:
    """How a test of the route is called."""
    return route.name


def meant_for(server: Server, case: Any) -> Any:
    """The case with the name of the model that is there, where it has any: all others end at a 404."""
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str) and case.body["model"]:
        case.body["model"] = server.model
    return case


def send(server: Server, case: Any) -> httpx.Response:
    """The answer, held against the description: its status, content type, headers and document.

    It is read by the checked client, since the fuzzer has its own idea of event streams.
    """
    prepared: Any = requests.Request(**case.as_transport_kwargs(base_url=server.base_url.removesuffix("/v1"))).prepare()
    response = server.api.request(prepared.method, prepared.url, headers=dict(prepared.headers), content=prepared.body)
    excluded: list[Any] = [not_a_server_error, positive_data_acceptance]
    if response.headers["content-type"].startswith("text/event-stream"):
        excluded.append(response_schema_conformance)
    case.validate_response(response, excluded_checks=excluded)
    assert response.status_code < 500 or response.json()["error"]["code"] == "deadline_exceeded", response.text
    return response


@pytest.mark.parametrize("route", ROUTES, ids=name_of)
def test_what_the_description_allows_is_answered(server: Server, description: Any, route: Route) -> None:
    """As it says; refused is only what no schema can forbid, and some of it is served."""
    seen: Counter[int] = Counter()

    @MODERATE
    @given(description[route.path][route.method].as_strategy(generation_mode=GenerationMode.POSITIVE))
    def ask(case: Any) -> None:
        case.headers.pop("X-TL-KV-Handle", None)
        response = send(server, meant_for(server, case))
        seen[response.status_code] += 1
        if response.status_code in (400, 422) and route.request is not None:
            assert response.json()["error"]["param"] in UNSAID, response.text

    ask()
    assert seen[200] or route.path == "/v1/models/{id}"


@pytest.mark.parametrize("route", [route for route in ROUTES if route.request is not None], ids=name_of)
def test_what_the_description_forbids_is_refused(server: Server, description: Any, route: Route) -> None:
    """With a status that it names, in the v1 error shape."""
    seen: Counter[int] = Counter()

    @MODERATE
    @given(description[route.path][route.method].as_strategy(generation_mode=GenerationMode.NEGATIVE))
    def ask(case: Any) -> None:
        seen[send(server, meant_for(server, case)).status_code] += 1

    ask()
    assert seen[400]
