"""Every error that tlserve raises on purpose, as one tree.

::

    TlserveError
    ├── ConfigError                 a bad runtime.toml, variable or argument        exit code 2
    ├── ConformError                a server cannot be put to the test at all       exit code 2
    ├── StartupError                the process cannot begin to serve               exit code 1
    │   ├── ModelError              the model directory is missing, broken or unsupported
    │   │   ├── CheckpointError     a file of it is missing, damaged or contradicts itself
    │   │   ├── UnsupportedModelError   an architecture, tensor type or tokenizer that is not served
    │   │   └── TemplateSyntaxError     the chat template does not compile
    │   ├── PullError               the model could not be fetched
    │   ├── ListenError             an address could not be bound
    │   └── LoadCancelled           a stop was asked for while the model loaded     exit code 0
    ├── TemplateRenderError         the template refused these messages             HTTP 400
    ├── AdmitError                  the engine does not take this request
    │   ├── QueueFull               as many requests wait as may                    HTTP 429
    │   ├── NeverFits               prompt and max_tokens exceed the context or the pool   HTTP 400
    │   └── DuplicateRequest        the id belongs to a live request
    ├── EngineError                 a request that was admitted cannot be finished  HTTP 500
    │   ├── BadLogits               the model gave NaN for this row
    │   ├── SamplingFailed          choosing this request's token raised
    │   ├── StepFailed              the forward pass of a step raised
    │   ├── DeadlineExceeded        the client's own time limit has passed          HTTP 504
    │   └── EngineDead              the engine thread has ended
    └── ApiError                    (tlserve.openai.errors) an answer in the v1 error shape

Every message says what is wrong, which value, which limit, and what to do.
"""

from __future__ import annotations


class TlserveError(Exception):
    """The root: anything that tlserve raises on purpose."""


class ConfigError(TlserveError):
    """A configuration value cannot be used. The message names the key, the value and what is allowed."""


class ConformError(TlserveError):
    """The server that is to be put to the test cannot be reached, or has nothing to ask."""


class StartupError(TlserveError):
    """The process cannot begin to serve; one line on stderr, exit code 1."""


class ModelError(StartupError):
    """The model directory is missing, broken or unsupported."""


class CheckpointError(ModelError):
    """A file of the model is missing, damaged, or contradicts itself."""


class UnsupportedModelError(ModelError):
    """An architecture, tensor type or tokenizer that tlserve does not serve; the message lists what it does."""


class TemplateSyntaxError(ModelError):
    """The chat template does not compile; the message carries the line."""


class PullError(StartupError):
    """The model could not be fetched."""


class ListenError(StartupError):
    """An address could not be bound."""


class LoadCancelled(StartupError):
    """A stop was asked for while the model was still loading."""


class TemplateRenderError(TlserveError):
    """The chat template refused the messages, or ran out of its limits."""


class AdmitError(TlserveError):
    """The engine does not take this request."""


class QueueFull(AdmitError):
    """As many requests wait as ``queue_capacity`` allows."""


class NeverFits(AdmitError):
    """The request needs more tokens or KV blocks than there are in all."""


class DuplicateRequest(AdmitError):
    """The given request id belongs to a request that is still alive."""


class EngineError(TlserveError):
    """An admitted request cannot be finished."""


class BadLogits(EngineError):
    """The model produced NaN for a row of this request."""


class SamplingFailed(EngineError):
    """Choosing a token raised something unforeseen; only that request fails."""


class StepFailed(EngineError):
    """The forward pass of a step raised; every request of that step fails."""


class DeadlineExceeded(EngineError):
    """The time that the client gave this request is over."""


class EngineDead(EngineError):
    """The engine thread has ended; nothing can be generated any more."""
