"""Routes, methods and headers: what a client or a proxy meets before any body is looked at."""

from __future__ import annotations

import string
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from support import Serve, Server, chunks_of, shift_logits, write_bigram

HI = {"model": "succ", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
BODIES: dict[str, dict[str, object]] = {
    "/v1/chat/completions": HI,
    "/v1/completions": {"model": "succ", "prompt": "Hi", "max_tokens": 1},
    "/v1/embeddings": {"model": "succ", "input": "Hi"},
    "/v1/tokenize": {"model": "succ", "text": "Hi"},
}
READS = ("/v1/models", "/v1/models/succ", "/healthz", "/openapi.json")
SANE = set(string.digits + string.ascii_letters + string.punctuation)


# --- ids --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*BODIES, *READS, "/nope"])
def test_rid_02_a_sane_request_id_is_echoed(counting: Server, path: str) -> None:
    """On every answer, refusals included; every other answer has one of its own."""
    method, body = ("POST", BODIES[path]) if path in BODIES else ("GET", None)
    for sane in ("my-id.1", "a" * 128, "~!@#$%"):
        answer = counting.api.request(method, path, json=body, headers={"X-Request-Id": sane})
        assert answer.headers["x-request-id"] == sane
    made = {counting.api.request(method, path, json=body).headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3


@pytest.mark.parametrize(
    "value", [b"a" * 129, b"a" * 8000, b"a b", b"caf\xe9", b"", b"\xff", b"a\tb"], ids=lambda value: repr(value[:9])
)
@pytest.mark.parametrize("stream", [False, True])
def test_rid_02_spc_04_other_ids_are_replaced(counting: Server, value: bytes, *, stream: bool) -> None:
    """By a short new one, and nothing in the body comes from the client's."""
    headers = {b"X-Request-Id": value}
    answer = counting.api.post("/v1/chat/completions", json={**HI, "stream": stream}, headers=headers)
    made = answer.headers["x-request-id"]
    assert len(made) == 32
    assert set(made) <= SANE
    assert len(answer.content) < 2000
    document = chunks_of(answer.text)[0] if stream else answer.json()
    assert document["id"].startswith("chatcmpl-")


# --- models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_id", ["org/model-x", "a b", "été", "x:latest", "a/b/c", "%2F", "?x"])
def test_api_01_api_02_any_model_id_can_be_retrieved(serve: Serve, succ_dir: Path, model_id: str) -> None:
    """As it is and percent-encoded, with the object of the list; answers name it as it was asked for."""
    server = serve(succ_dir, model_id=model_id)
    (listed,) = server.api.get("/v1/models").json()["data"]
    assert listed["id"] == model_id
    quoted = httpx.URL("http://x/").copy_with(raw_path=b"/v1/models/" + _quoted(model_id, safe="")).raw_path
    plain = httpx.URL("http://x/").copy_with(raw_path=b"/v1/models/" + _quoted(model_id, safe="/:")).raw_path
    for raw_path in (quoted, plain):
        url = httpx.URL(f"http://{server.handle.http_addr}").copy_with(raw_path=raw_path)
        assert server.api.get(url).json() == listed
    assert server.chat("a", max_tokens=1).json()["model"] == model_id
    for wrong in ("nope", model_id.upper() + "x", str(succ_dir), model_id + "/", " " + model_id):
        refused = server.api.post("/v1/completions", json={"model": wrong, "prompt": "a"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")


def _quoted(text: str, *, safe: str) -> bytes:
    keep = string.ascii_letters + string.digits + safe
    return b"".join(bytes([byte]) if chr(byte) in keep else b"%%%02X" % byte for byte in text.encode())


@pytest.mark.parametrize("path", BODIES)
def test_api_03_an_unknown_or_missing_model(counting: Server, path: str) -> None:
    """404 names it and what is served instead; missing, null or of another type is a 400."""
    unknown = counting.api.post(path, json={**BODIES[path], "model": "nope"})
    error = unknown.json()["error"]
    assert (unknown.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "succ" in error["message"]
    without = {name: value for name, value in BODIES[path].items() if name != "model"}
    for body in (without, {**without, "model": None}, {**without, "model": 5}, {**without, "model": ""}):
        refused = counting.api.post(path, json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")


# --- paths and methods ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1//models"),
        ("GET", "/v1/models/"),
        ("POST", "/v1/chat/completions/"),
        ("POST", "/v1//chat/completions"),
        ("GET", "/nope"),
        ("POST", "/nope"),
        ("GET", "/"),
        ("GET", "/v1"),
        ("GET", "/v2/models"),
        ("GET", "/V1/models"),
        ("GET", "/v1/models/nope"),
        ("DELETE", "/v1/chat"),
    ],
)
def test_api_04_spc_10_unknown_paths(counting: Server, method: str, path: str) -> None:
    """404 as a JSON error, never a page and never a redirect that would turn a POST into a GET."""
    answer = counting.api.request(
        method, f"http://{counting.handle.http_addr}{path}", json=HI if method == "POST" else None
    )
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] in ("unknown_url", "model_not_found")


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", [*BODIES, *READS])
def test_spc_10_hlt_04_methods(counting: Server, method: str, path: str) -> None:
    """405 with ``Allow`` for the wrong ones; HEAD as GET without a body; OPTIONS tells the same list."""
    allowed = {"POST", "OPTIONS"} if path in BODIES else {"GET", "HEAD", "OPTIONS"}
    answer = counting.api.request(method, path, json=BODIES.get(path) if method == "POST" else None)
    if method not in allowed:
        assert answer.status_code == 405
        assert set(answer.headers["allow"].split(", ")) == allowed
    elif method == "OPTIONS":
        assert answer.status_code == 200
        assert set(answer.headers["allow"].split(", ")) == allowed
    else:
        assert answer.status_code == 200
    assert method != "HEAD" or answer.content == b""


@pytest.mark.parametrize("path", READS[:3])
def test_hlt_04_head_has_the_headers_of_get(counting: Server, path: str) -> None:
    """The length of what GET would send included; the connection goes on."""
    for client in (counting.api, *([counting.health] if path == "/healthz" else [])):
        got, head = client.get(path), client.head(path)
        assert head.status_code == got.status_code == 200
        assert head.headers["content-length"] == str(len(got.content))
        assert head.headers["content-type"] == got.headers["content-type"]


@pytest.mark.parametrize("path", ["/readyz", "/metrics", "/healthz"])
def test_hlt_04_probes_of_the_health_port(counting: Server, path: str) -> None:
    """They take GET and HEAD, and nothing else."""
    assert counting.health.head(path).status_code == 200
    assert counting.health.post(path).status_code == 405
    assert counting.health.get(path + "x").json()["error"]["code"] == "unknown_url"


@pytest.mark.parametrize("path", BODIES)
def test_api_05_there_is_no_cors(counting: Server, path: str) -> None:
    """A preflight is answered, not refused for want of a key, and no answer allows another origin."""
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    origin = {"Origin": "https://app.example"}
    preflight = counting.api.options(path, headers=origin | asked)
    posted = counting.api.post(path, json=BODIES[path], headers=origin)
    assert (preflight.status_code, posted.status_code) == (200, 200)
    for answer in (preflight, posted):
        assert not [name for name in answer.headers if name.startswith("access-control")]


# --- headers of ours --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("value", ["101", "-101", "abc", "", "1.5", "1e2", "0x5", "1,2", "٣", "9" * 99])
def test_priorities_out_of_range_are_refused(counting: Server, path: str, value: str) -> None:
    """400 that names the header and its range; -100 and 100 belong to it."""
    headers = {b"X-TL-Priority": value.encode()}
    error = (answer := counting.api.post(path, json=BODIES[path], headers=headers)).json()["error"]
    assert (answer.status_code, error["param"]) == (400, "X-TL-Priority")
    for fine in ("-100", "100", "0", "+7"):
        assert counting.api.post(path, json=BODIES[path], headers={"X-TL-Priority": fine}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_handed_over_kv_is_not_found(counting: Server, path: str, *, stream: bool) -> None:
    """404 with its own code, streamed or not."""
    headers = {"X-TL-KV-Handle": "0123abcd"}
    answer = counting.api.post(path, json={**BODIES[path], "stream": stream}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "kv_handle_not_found")


# --- metrics ----------------------------------------------------------------------------------------------------------


def series(server: Server) -> set[str]:
    """The name and labels of every series."""
    lines = server.health.get("/metrics").text.splitlines()
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}


def test_met_03_scanners_make_no_series(serve: Serve, succ_dir: Path) -> None:
    """Paths, models, ids and methods of any name add a small constant."""
    server = serve(succ_dir)
    server.chat("a", max_tokens=1)
    before = series(server)
    for number in range(60):
        server.api.get(f"/x/{number}", headers={"X-Request-Id": f"id-{number}"})
        server.api.get(f"/v1/models/{number}")
        server.api.request(f"METHOD{number}", "/v1/models")
        server.complete("a", model=f"model-{number}")
        server.chat("a", max_tokens=1, user=f"user-{number}", **{f"field{number}": 1})
    assert len(series(server) - before) < 12 + 0.3 * len(before)
    assert not [
        name for name in series(server) if any(word in name for word in ("/x/", "model-", "METHOD", "id-5", "user-"))
    ]


@pytest.mark.parametrize(
    "accept", [None, "*/*", "application/json", "text/html", "application/openmetrics-text; version=1.0.0"], ids=str
)
def test_met_04_metrics_are_text_whatever_is_accepted(counting: Server, accept: str | None) -> None:
    """In a format that Prometheus knows, which a strict parser reads, with counters that are named so."""
    answer = counting.health.get("/metrics", headers={} if accept is None else {"Accept": accept})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(("text/plain; version=0.0.4", "application/openmetrics-text"))
    families = list(text_string_to_metric_families(answer.text))
    assert "tl_engine_kv_blocks" in {family.name for family in families}
    for family in families:
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples)


def test_met_04_counters_never_decrease(serve: Serve, tmp_path: Path) -> None:
    """From scrape to scrape, whatever happened in between."""
    server = serve(write_bigram(tmp_path / "m", shift_logits(1)))
    seen: dict[str, float] = {}
    for prompt in ("a", "b", "", "a" * 100):
        server.complete(prompt, max_tokens=3)
        for family in text_string_to_metric_families(server.health.get("/metrics").text):
            for sample in family.samples if family.type == "counter" else []:
                key = f"{sample.name}{sorted(sample.labels.items())}"
                assert sample.value >= seen.get(key, 0)
                seen[key] = sample.value
