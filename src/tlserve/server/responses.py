"""Quart responses of v1 documents and errors, and the handlers that turn every failure into one."""

from __future__ import annotations

from collections.abc import Iterable

from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound, RequestEntityTooLarge, RequestTimeout

from tlserve.errors import TlserveError
from tlserve.openai.errors import (
    ApiError,
    body_timeout,
    body_too_large,
    from_error,
    internal,
    invalid,
    method_not_allowed,
    unknown_path,
)
from tlserve.openai.headers import IGNORED, ignored_header
from tlserve.openai.jsontext import to_json
from tlserve.server.api import current_room
from tlserve.server.log import log_failure


def json_response(document: object, *, status: int = 200) -> Response:
    """A document as compact UTF-8 JSON."""
    return Response(to_json(document).encode(), status, content_type="application/json")


def error_response(error: ApiError) -> Response:
    """The v1 error document, with the headers that belong to it; the request's room hears the reason."""
    current_room().reason = error.reason
    response = json_response(error.document(), status=error.status)
    response.headers.update(error.headers())
    return response


def tell_ignored(response: Response, names: Iterable[str]) -> Response:
    """Tell the client which members of its body had no effect."""
    value = ignored_header(names)
    if value is not None:
        response.headers[IGNORED] = value
    return response


def no_route(app: QuartTrio) -> None:
    """Answer unknown paths and wrong methods of ``app``, and whatever goes wrong in it, in the v1 error shape."""

    @app.errorhandler(TlserveError)
    async def refused(error: TlserveError) -> Response:
        return error_response(from_error(error))

    @app.errorhandler(HTTPException)
    async def http_error(error: HTTPException) -> Response:
        return error_response(_of_http_exception(error, app))

    @app.errorhandler(Exception)
    async def unexpected(error: Exception) -> Response:
        log_failure("unexpected_error", error, path=request.path[:200])
        return error_response(internal())


def _of_http_exception(error: HTTPException, app: QuartTrio) -> ApiError:
    match error:
        case NotFound():
            return unknown_path(request.method, request.path)
        case MethodNotAllowed():
            return method_not_allowed(request.method, request.path, allowed=error.valid_methods or ())
        case RequestEntityTooLarge():
            return body_too_large(limit=app.config["MAX_CONTENT_LENGTH"])
        case RequestTimeout():
            return body_timeout(seconds=app.config["BODY_TIMEOUT"])
        case _:
            return invalid(error.description or error.name, code=None)
