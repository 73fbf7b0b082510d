"""Every answer that is not a success: status, v1 error document, headers.

Who notices the mistake raises or builds an :class:`ApiError`; who speaks HTTP writes it down. Nothing here knows
the framework, and no constructor echoes more than a short, cleaned excerpt of what the client sent.

``type`` and ``code`` follow OpenAI: the type says whose turn it is (``invalid_request_error``: change the request;
``rate_limit_error`` and ``server_error``: try again later), the code names the one reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from attrs import field, frozen

from tlserve.errors import (
    AdmitError,
    DeadlineExceeded,
    EngineError,
    NeverFits,
    QueueFull,
    TemplateRenderError,
    TlserveError,
)
from tlserve.openai.excerpt import excerpt

DEADLINE_EXCEEDED = "deadline_exceeded"
"""The code of a request that its client gave too little time."""

ErrorKind = Literal["invalid_request_error", "rate_limit_error", "server_error"]


@frozen
class ApiError(TlserveError):
    """An answer in the v1 error shape. ``kind`` is the document's ``type``; ``retry_after`` is in seconds."""

    status: int
    kind: ErrorKind
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: int | None = field(default=None, kw_only=True)
    extra_headers: Mapping[str, str] = field(factory=dict, kw_only=True)

    def __str__(self) -> str:
        return self.message

    @property
    def reason(self) -> str:
        """One word for logs and metrics, out of a fixed set: its code, or its type where it has none."""
        return self.code or self.kind

    def document(self) -> dict[str, object]:
        """The response body: ``{"error": {"message", "type", "param", "code"}}``."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """The headers this answer needs beyond the content type: ``Retry-After``, ``Allow``, ..."""
        if self.retry_after is None:
            return dict(self.extra_headers)
        return {**self.extra_headers, "Retry-After": str(self.retry_after)}


# --- the request is wrong ---------------------------------------------------------------------------------------------


def invalid(message: str, *, param: str | None = None, code: str | None = "invalid_value") -> ApiError:
    """400: a value is malformed or out of range; ``param`` names the field."""
    return ApiError(400, "invalid_request_error", message, param, code)


def unsupported(message: str, *, param: str) -> ApiError:
    """422: the field is known and the value is legal in the API, but this server does not serve it."""
    return ApiError(422, "invalid_request_error", message, param, "unsupported_parameter")


def model_not_found(model: str, *, served: Iterable[str] = ()) -> ApiError:
    """404: no model of that name is served here."""
    names = ", ".join(served)
    hint = f"; this server serves {names}" if names else ""
    return ApiError(404, "invalid_request_error", f"model {excerpt(model)} not found{hint}", "model", "model_not_found")


def kv_handle_not_found(handle: str) -> ApiError:
    """404: ``X-TL-KV-Handle`` names KV blocks that nobody handed over."""
    message = f"KV handle {excerpt(handle)} not found: this server holds no handed-over KV blocks"
    return ApiError(404, "invalid_request_error", message, "X-TL-KV-Handle", "kv_handle_not_found")


def context_length_exceeded(
    *, prompt_tokens: int, max_tokens: int | None, limit: int, param: str | None = None
) -> ApiError:
    """400: the prompt, or the prompt and ``max_tokens`` together, pass the context of ``limit`` tokens."""
    asked = f"the prompt has {prompt_tokens} tokens"
    if max_tokens is not None:
        asked += f" and up to {max_tokens} more are asked for, {prompt_tokens + max_tokens} in all"
    message = f"the context holds {limit} tokens, but {asked}; shorten the prompt or lower max_tokens"
    return invalid(message, param=param, code="context_length_exceeded")


def prompt_exceeds_context(message: str) -> ApiError:
    """400: the same refusal when the engine found it and tells the numbers in its own words."""
    return invalid(message, code="context_length_exceeded")


def template_refused(message: str) -> ApiError:
    """400: the model's chat template does not accept these messages."""
    return invalid(message, param="messages", code="invalid_messages")


def invalid_api_key() -> ApiError:
    """401: the ``Authorization`` header is missing or does not carry a key of this server."""
    message = "no valid API key: send 'Authorization: Bearer <key>' with a key of this server"
    challenge = {"WWW-Authenticate": "Bearer"}
    return ApiError(401, "invalid_request_error", message, None, "invalid_api_key", extra_headers=challenge)


# --- the HTTP request is wrong ----------------------------------------------------------------------------------------


def unknown_path(method: str, path: str) -> ApiError:
    """404: no route has this path."""
    message = f"no route for {excerpt(method)} {excerpt(path)}; see GET /v1/models for what is served"
    return ApiError(404, "invalid_request_error", message, None, "unknown_url")


def method_not_allowed(method: str, path: str, *, allowed: Iterable[str]) -> ApiError:
    """405: the path exists, the method does not; ``Allow`` lists those that do."""
    allow = ", ".join(sorted(allowed))
    message = f"{excerpt(path)} does not take {excerpt(method)}; allowed: {allow}"
    return ApiError(405, "invalid_request_error", message, None, "method_not_allowed", extra_headers={"Allow": allow})


def body_timeout(*, seconds: float) -> ApiError:
    """408: the body did not arrive in time."""
    message = f"the request body did not arrive within {seconds:g} s"
    return ApiError(408, "invalid_request_error", message, None, "request_timeout")


def body_too_large(*, limit: int) -> ApiError:
    """413: the body is longer than ``limit`` bytes."""
    message = f"the request body is larger than {limit} bytes, the most this server reads"
    return ApiError(413, "invalid_request_error", message, None, "request_too_large")


def refused_by_protocol(status: int, *, limit: int) -> ApiError:
    """What ends the conversation before there is a request: 400, 408, 431, 501, 505; ``limit`` is that of the head in bytes."""
    reasons = {
        408: ("the request did not arrive in time", "request_timeout"),
        431: (
            f"the request line and headers are larger than {limit} bytes, the most this server reads",
            "headers_too_large",
        ),
        501: ("Transfer-Encoding is not chunked, the only one that this server reads", "unsupported_transfer_encoding"),
        505: ("this server speaks HTTP/1.1, and HTTP/2 from the first byte on", "unsupported_http_version"),
    }
    message, code = reasons.get(status, ("these bytes are not a well-formed HTTP request", "malformed_request"))
    return ApiError(status, "invalid_request_error", message, None, code)


def unsupported_media_type(message: str) -> ApiError:
    """415: the body is not plain JSON."""
    return ApiError(415, "invalid_request_error", message, None, "unsupported_media_type")


# --- not now ----------------------------------------------------------------------------------------------------------


def rate_limit_exceeded(*, capacity: int | None = None, retry_after: int = 1) -> ApiError:
    """429: as many requests wait as may; come back after ``retry_after`` seconds."""
    how_many = "" if capacity is None else f" ({capacity} requests)"
    message = f"the queue is full{how_many}; try again after {retry_after} s"
    return ApiError(429, "rate_limit_error", message, None, "rate_limit_exceeded", retry_after=retry_after)


def too_many_at_once(*, limit: int, retry_after: int = 1) -> ApiError:
    """429: as many requests of this API key run as it may have at once."""
    message = f"this API key may have {limit} requests at once, and has; wait for one of them to end"
    return ApiError(429, "rate_limit_error", message, None, "rate_limit_exceeded", retry_after=retry_after)


def too_many_bodies(*, limit: int, retry_after: int = 1) -> ApiError:
    """429: the memory for request bodies that are on their way is taken."""
    message = f"the bodies of other requests on their way here fill {limit} bytes; try again after {retry_after} s"
    return ApiError(429, "rate_limit_error", message, None, "rate_limit_exceeded", retry_after=retry_after)


def no_capacity(*, waited_ms: int, retry_after: int = 1) -> ApiError:
    """503: admitted, but no KV blocks became free before the queue deadline."""
    message = f"no capacity: the request waited {waited_ms} ms for KV blocks, the queue deadline; try again later"
    return _unavailable(message, "no_capacity", retry_after)


def deadline_exceeded(message: str) -> ApiError:
    """504: the client's own ``X-Request-Timeout-Ms`` has passed."""
    return ApiError(504, "server_error", message, "X-Request-Timeout-Ms", DEADLINE_EXCEEDED)


def draining(*, retry_after: int = 1) -> ApiError:
    """503: the server finishes what runs and takes nothing new."""
    return _unavailable("the server is shutting down and takes no new requests", "draining", retry_after)


def loading(phase: str | None = None, *, retry_after: int = 1) -> ApiError:
    """503: the model is not ready yet."""
    doing = f" ({phase})" if phase else ""
    return _unavailable(f"the model is still loading{doing}; try again soon", "loading", retry_after)


def _unavailable(message: str, code: str, retry_after: int) -> ApiError:
    return ApiError(503, "server_error", message, None, code, retry_after=retry_after)


# --- our fault --------------------------------------------------------------------------------------------------------


def internal(message: str = "the server could not finish this request; its log says why") -> ApiError:
    """500: nothing the client did; the message never carries a traceback."""
    return ApiError(500, "server_error", message, None, "internal_error")


def from_error(error: TlserveError) -> ApiError:
    """The answer to an error of the rooms below, as the table in :mod:`tlserve.errors` promises it."""
    match error:
        case ApiError():
            return error
        case QueueFull():
            return rate_limit_exceeded()
        case NeverFits():
            return prompt_exceeds_context(str(error))
        case TemplateRenderError():
            return template_refused(str(error))
        case DeadlineExceeded():
            return deadline_exceeded(str(error))
        case _:
            return internal(str(error)) if isinstance(error, EngineError | AdmitError) else internal()
