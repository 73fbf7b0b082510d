"""The OpenAPI 3.1 description of the server, written from the classes and rules that validate its requests.

There is no second list of fields: a range that changes in an annotation changes here.
"""

from __future__ import annotations

from http import HTTPStatus
from inspect import getdoc
from typing import Any

import attrs

from tlserve.openai.fields import Rule, Schema, Several
from tlserve.openai.headers import CACHE_SALT, IGNORED, KV_HANDLE, LONGEST_TIMEOUT_MS, PRIORITY, REQUEST_ID, TIMEOUT
from tlserve.openai.messages import Content
from tlserve.openai.routes import ROUTES, Route
from tlserve.openai.schemas import ref, response_schemas
from tlserve.openai.structure import member_class, rule_of
from tlserve.openai.tiers import TIERS, Tier, TierName, Unserved


def openapi_document(*, version: str, tier: TierName = "engine") -> dict[str, object]:
    """The whole description; ``version`` is the server's own, ``tier`` decides which values are offered."""
    paths: dict[str, dict[str, object]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tlserve",
            "version": version,
            "description": f"An OpenAI-compatible inference server; API tier {tier!r}.",
        },
        "paths": paths,
        "components": {
            "schemas": {**request_schemas(TIERS[tier]), **response_schemas()},
            "headers": {
                REQUEST_ID: {"description": "The request's id: echoed, or a new one.", "schema": {"type": "string"}}
            },
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


# --- requests ---------------------------------------------------------------------------------------------------------


def request_schemas(tier: Tier) -> dict[str, Schema]:
    """The schemas of all request classes and of the classes inside them, by class name."""
    schemas: dict[str, Schema] = {}
    for route in ROUTES:
        if route.request is not None:
            _add_class(schemas, route.request, tier)
    return schemas


def _add_class(schemas: dict[str, Schema], cls: Any, tier: Tier) -> None:
    members = attrs.fields(attrs.resolve_types(cls))
    schemas[cls.__name__] = {
        "type": "object",
        "description": getdoc(cls),
        "properties": {member.name: _member_schema(member, tier) for member in members},
        "required": [member.name for member in members if _is_required(member)],
    }
    for member in members:
        inner = member_class(member.type)
        if inner is not None and inner.__name__ not in schemas:
            _add_class(schemas, inner, tier)


def _is_required(member: attrs.Attribute[Any]) -> bool:
    return member.default is attrs.NOTHING or bool(member.metadata.get("required"))


def _member_schema(member: attrs.Attribute[Any], tier: Tier) -> Schema:
    """The rule's schema with its description and default; optional members may be null as well."""
    rule = rule_of(member.type)
    schema = ref(member_class(member.type).__name__) if rule is None else _rule_schema(rule, member, tier)
    if not _is_required(member):
        schema = {"anyOf": [schema, {"type": "null"}]}
    described = {} if rule is None else {"description": rule.doc}
    return {**schema, **described, **_default(member)}


def _rule_schema(rule: Rule[Any], member: attrs.Attribute[Any], tier: Tier) -> Schema:
    """What the rule takes, narrowed to what the tier serves."""
    if isinstance(rule, Unserved):
        return {"enum": [None, *tier.neutral.get(member.name, ())]}
    if isinstance(rule, Several):
        return {**rule.schema(), "items": ref(member_class(member.type).__name__)}
    if isinstance(rule, Content):
        return rule.schema(parts=tier.content_parts)
    if member.name == "n":
        return {**rule.schema(), "maximum": tier.max_n}
    if member.name == "echo" and not tier.echo:
        return {"const": False}
    return rule.schema()


def _default(member: attrs.Attribute[Any]) -> Schema:
    """The default, where it is a plain value worth telling."""
    return {"default": member.default} if isinstance(member.default, bool | int | float | str) else {}


# --- operations -------------------------------------------------------------------------------------------------------


def _operation(route: Route) -> dict[str, object]:
    operation: dict[str, object] = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": _parameters(route),
        "responses": {"200": _success(route)} | {str(status): _failure(status) for status in (*route.errors, 500)},
    }
    if route.request is not None:
        content = {"application/json": {"schema": ref(route.request.__name__)}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _parameters(route: Route) -> list[dict[str, object]]:
    named = "Names the request in logs; replaced where it is not 1 to 128 visible ASCII characters."
    parameters = [_header(REQUEST_ID, named, {"type": "string"})]
    if "{id}" in route.path:
        parameters.append({"name": "id", "in": "path", "required": True, "schema": {"type": "string"}})
    if route.request is not None:
        timeout = {"type": "integer", "minimum": 1, "maximum": LONGEST_TIMEOUT_MS}
        parameters.append(_header(TIMEOUT, "Milliseconds until the request is given up with 504.", timeout))
    if route.chunk is not None:
        priority = {"type": "integer", "minimum": -100, "maximum": 100, "default": 0}
        parameters.append(_header(PRIORITY, "Higher runs first.", priority))
        salt: Schema = {"type": "string", "pattern": r"^[!-~]{1,128}$"}
        parameters.append(_header(CACHE_SALT, "Cached KV is shared under the same one only.", salt))
        parameters.append(_header(KV_HANDLE, "Not served: answers 404.", {"type": "string"}))
    return parameters


def _header(name: str, description: str, schema: Schema) -> dict[str, object]:
    return {"name": name, "in": "header", "description": description, "schema": schema}


def _success(route: Route) -> dict[str, object]:
    content: dict[str, object] = {"application/json": {"schema": ref(route.response)}}
    if route.chunk is not None:
        content["text/event-stream"] = {"schema": ref(route.chunk)}
    headers: dict[str, object] = {REQUEST_ID: {"$ref": f"#/components/headers/{REQUEST_ID}"}}
    if route.request is not None:
        told = "Names of request members that had no effect."
        headers[IGNORED] = {"description": told, "schema": {"type": "string"}}
    return {"description": "Success", "headers": headers, "content": content}


def _failure(status: int) -> dict[str, object]:
    failure: dict[str, object] = {
        "description": HTTPStatus(status).phrase,
        "content": {"application/json": {"schema": ref("Error")}},
    }
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        failure["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
    return failure
