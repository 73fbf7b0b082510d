"""The application of the API port: its routes, and Quart's settings that would otherwise surprise."""

from __future__ import annotations

from importlib.metadata import version

from quart import Response, request
from quart_trio import QuartTrio

from tlserve.bridge.client import EngineClient
from tlserve.config import ServeConfig
from tlserve.openai.documents import model_document, model_list
from tlserve.openai.errors import model_not_found
from tlserve.openai.headers import (
    KV_HANDLE,
    check_content_encoding,
    check_content_type,
    refuse_kv_handle,
)
from tlserve.openai.openapi import openapi_document
from tlserve.openai.requests import parse_chat, parse_completion, parse_embeddings, parse_tokenize
from tlserve.server.api import Api, current_room
from tlserve.server.deadline import Deadlines
from tlserve.server.embed import embed
from tlserve.server.generate import CHAT, COMPLETION, generate
from tlserve.server.keys import KeyRing
from tlserve.server.limits import BODIES_AT_ONCE, BodyBudget
from tlserve.server.request_metrics import RequestMetrics
from tlserve.server.responses import json_response, no_route
from tlserve.server.room import Room
from tlserve.server.shutdown import Shutdown
from tlserve.server.terms import Terms
from tlserve.server.tokenize import tokenize


def create_api_app(
    config: ServeConfig,
    engine: EngineClient,
    shutdown: Shutdown,
    *,
    keys: KeyRing,
    deadlines: Deadlines,
    metrics: RequestMetrics,
) -> QuartTrio:
    """The routes of the API over one engine."""
    app = QuartTrio("tlserve.api")
    app.url_map.merge_slashes = False  # It would redirect, and a redirect turns a POST into a GET.
    app.config["MAX_CONTENT_LENGTH"] = config.max_body_bytes
    app.config["BODY_TIMEOUT"] = config.read_timeout_s
    app.config["RESPONSE_TIMEOUT"] = None  # A plain answer may take as long as a stream.
    bodies = BodyBudget(BODIES_AT_ONCE * config.max_body_bytes)
    api = Api(config, engine, shutdown, keys, deadlines, bodies, metrics)
    _add_keys(app, api)
    _add_generation(app, api)
    _add_texts(app, api)
    _add_models(app, api)
    _add_descriptions(app, config)
    no_route(app)
    return app


def _add_keys(app: QuartTrio, api: Api) -> None:
    @app.before_request
    async def ask_for_key() -> None:
        """Let nobody in without a key but probes, and browsers that ask what they may send."""
        if request.path == "/healthz" or request.method == "OPTIONS":
            return
        tenant = api.keys.tenant_of(request.headers.getlist("Authorization"))
        room = current_room()
        room.tenant = tenant
        if tenant.name:
            room.facts["key"] = tenant.name


def _add_generation(app: QuartTrio, api: Api) -> None:
    @app.post("/v1/chat/completions")
    async def chat() -> Response:
        room, terms = _enter(api)
        with terms.deadline.hold():
            body = await _body(api)
            spec = parse_chat(body, tier=api.config.api_tier)
            return await generate(api, room, spec, CHAT, body_bytes=len(body), terms=terms)

    @app.post("/v1/completions")
    async def completions() -> Response:
        room, terms = _enter(api)
        with terms.deadline.hold():
            body = await _body(api)
            spec = parse_completion(body, tier=api.config.api_tier)
            return await generate(api, room, spec, COMPLETION, body_bytes=len(body), terms=terms)


def _add_texts(app: QuartTrio, api: Api) -> None:
    @app.post("/v1/embeddings")
    async def embeddings() -> Response:
        room, terms = _enter(api)
        with terms.deadline.hold():
            body = await _body(api)
            return await embed(api, room, parse_embeddings(body), body_bytes=len(body), deadline=terms.deadline)

    @app.post("/v1/tokenize")
    async def tokens() -> Response:
        _, terms = _enter(api)
        with terms.deadline.hold():
            body = await _body(api)
            return await tokenize(api, parse_tokenize(body, tier=api.config.api_tier), body_bytes=len(body))


def _add_models(app: QuartTrio, api: Api) -> None:
    def document() -> dict[str, object]:
        model = api.open_model()
        return model_document(model.id, created=model.created, max_model_len=model.max_model_len)

    @app.get("/v1/models")
    async def models() -> Response:
        return json_response(model_list([document()]))

    @app.get("/v1/models/<path:name>")
    async def model(name: str) -> Response:
        if name != api.open_model().id:
            raise model_not_found(name, served=[api.config.model_id])
        return json_response(document())


def _add_descriptions(app: QuartTrio, config: ServeConfig) -> None:
    description = openapi_document(version=version("tlserve"), tier=config.api_tier)

    @app.get("/openapi.json")
    async def openapi() -> Response:
        return json_response(description)

    @app.get("/healthz")
    async def healthz() -> Response:
        return json_response({"status": "ok"})

    @app.route("/*", methods=["OPTIONS"], provide_automatic_options=False)
    async def options_of_all() -> Response:
        """``OPTIONS *`` asks for no route, but whether anybody is there."""
        return Response(b"", 204, {"Allow": "GET, HEAD, OPTIONS, POST"})


def _enter(api: Api) -> tuple[Room, Terms]:
    """Begin a request that will cost something: count it for its tenant and read its terms, before its body comes.

    Raises:
        ApiError: 503, 429 or 400.
    """
    api.open_model()
    room = current_room()
    room.stack.enter_context(api.keys.hold(room.tenant))
    return room, Terms.of(request.headers, room.tenant)


async def _body(api: Api) -> bytes:
    """The request's body, once the headers allow it.

    Raises:
        ApiError: 404, 413, 415 or 429.
    """
    refuse_kv_handle(request.headers.get(KV_HANDLE))
    check_content_type(request.headers.get("Content-Type"))
    check_content_encoding(request.headers.get("Content-Encoding"))
    length, limit = request.content_length, api.config.max_body_bytes
    with api.bodies.hold(limit if length is None else min(length, limit)):
        return await request.get_data(cache=False, as_text=False, parse_form_data=False)
