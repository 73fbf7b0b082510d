"""JSON Schemas of what this room writes: responses, chunks and errors, no wider than they are.

The twin of :mod:`tlserve.openai.documents` and :mod:`tlserve.openai.chunks`; the tests hold every document against
its schema here and against OpenAI's own.
"""

from __future__ import annotations

from typing import Any

from tlserve.openai.fields import Schema

_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_NUMBER: Schema = {"type": "number"}
_FINISH: Schema = {"type": "string", "enum": ["stop", "length"]}


def response_schemas() -> dict[str, Schema]:
    """The schemas by name."""
    return {
        "Usage": _usage(),
        "ChatCompletion": _completion("chat.completion", _chat_choice()),
        "ChatCompletionChunk": _chunk("chat.completion.chunk", _chat_delta()),
        "TextCompletion": _completion("text_completion", _text_choice(_FINISH)),
        "TextCompletionChunk": _chunk("text_completion", _text_choice(_nullable(_FINISH))),
        "TokenLogprob": _token_logprob(),
        "ChatLogprobs": _object(content=_list(ref("TokenLogprob")), refusal={"type": "null"}),
        "TextLogprobs": _text_logprobs(),
        "EmbeddingList": _embedding_list(),
        "Tokenization": _tokenization(),
        "Model": _model(),
        "ModelList": _object(object=_const("list"), data=_list(ref("Model"))),
        "Health": _object(status=_TEXT),
        "Description": _object(openapi=_TEXT, info={"type": "object"}, paths={"type": "object"}),
        "Error": _error(),
    }


def ref(name: str) -> Schema:
    """A reference to the schema ``name``."""
    return {"$ref": f"#/components/schemas/{name}"}


def _object(**required: Schema) -> Schema:
    return {"type": "object", "properties": required, "required": list(required)}


def _extended(schema: Schema, **optional: Schema) -> Schema:
    """An object schema with members that may be missing."""
    properties: Any = schema["properties"]
    return {**schema, "properties": {**properties, **optional}}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _const(value: str) -> Schema:
    return {"type": "string", "const": value}


def _nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _usage() -> Schema:
    return _object(
        prompt_tokens=_COUNT,
        completion_tokens=_COUNT,
        total_tokens=_COUNT,
        prompt_tokens_details=_object(cached_tokens=_COUNT),
    )


def _completion(kind: str, choice: Schema) -> Schema:
    """A whole answer."""
    return _extended(_object(**_head(kind, choice), usage=ref("Usage")), system_fingerprint=_TEXT)


def _chunk(kind: str, choice: Schema) -> Schema:
    """An event of a stream; the one with ``usage`` has no choices."""
    return _extended(_object(**_head(kind, choice)), system_fingerprint=_TEXT, usage=ref("Usage"))


def _head(kind: str, choice: Schema) -> dict[str, Schema]:
    return {"id": _TEXT, "object": _const(kind), "created": _COUNT, "model": _TEXT, "choices": _list(choice)}


def _chat_choice() -> Schema:
    message = _object(role=_const("assistant"), content=_TEXT, refusal={"type": "null"})
    return _object(index=_COUNT, message=message, logprobs=_nullable(ref("ChatLogprobs")), finish_reason=_FINISH)


def _chat_delta() -> Schema:
    delta = _extended(_object(content=_TEXT), role=_const("assistant"))
    choice = _object(index=_COUNT, delta=delta, finish_reason=_nullable(_FINISH))
    return _extended(choice, logprobs=ref("ChatLogprobs"))


def _text_choice(finish: Schema) -> Schema:
    return _object(index=_COUNT, text=_TEXT, logprobs=_nullable(ref("TextLogprobs")), finish_reason=finish)


def _token_logprob() -> Schema:
    byte: Schema = {"type": "integer", "minimum": 0, "maximum": 255}
    named: dict[str, Schema] = {"token": _TEXT, "logprob": _NUMBER, "bytes": _list(byte)}
    return _object(**named, top_logprobs=_list(_object(**named)))


def _text_logprobs() -> Schema:
    return _object(
        tokens=_list(_TEXT),
        token_logprobs=_list(_NUMBER),
        top_logprobs=_list({"type": "object", "additionalProperties": _NUMBER}),
        text_offset=_list(_COUNT),
    )


def _embedding_list() -> Schema:
    vector: Schema = {"anyOf": [_list(_NUMBER), {"type": "string", "contentEncoding": "base64"}]}
    entry = _object(object=_const("embedding"), index=_COUNT, embedding=vector)
    usage = _object(prompt_tokens=_COUNT, total_tokens=_COUNT)
    return _object(object=_const("list"), data=_list(entry), model=_TEXT, usage=usage)


def _tokenization() -> Schema:
    counted = _object(
        object=_const("tokenization"), model=_TEXT, tokens=_list(_COUNT), count=_COUNT, max_model_len=_COUNT
    )
    return _extended(counted, token_strs=_list(_TEXT))


def _model() -> Schema:
    model = _object(id=_TEXT, object=_const("model"), created=_COUNT, owned_by=_TEXT)
    return _extended(model, max_model_len=_COUNT)


def _error() -> Schema:
    error = _object(message=_TEXT, type=_TEXT, param=_nullable(_TEXT), code=_nullable(_TEXT))
    return _object(error=error)
