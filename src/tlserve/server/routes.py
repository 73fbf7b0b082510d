"""The routes that requests are counted and traced under: few and fixed, whatever paths clients think of."""

from __future__ import annotations

_MODELS = "/v1/models"

_ROUTES = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/tokenize",
        _MODELS,
    }
)

PROBES = frozenset({"/healthz", "/metrics"})
"""What is asked every few seconds: it would water down what is told of requests."""


def route_of(path: str) -> str | None:
    """The route of the API that serves ``path``; None for probes, descriptions and paths that nobody serves."""
    if path.startswith(f"{_MODELS}/"):
        return _MODELS
    return path if path in _ROUTES else None
