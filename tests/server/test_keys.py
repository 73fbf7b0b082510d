"""API keys: the file, who gets in, how much at once, and what one tenant can learn of another."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from processes import Launch
from support import Gate, Serve, Server, wait_until
from tlserve.errors import ConfigError
from tlserve.openai.errors import ApiError
from tlserve.server.keys import ApiKeys, KeyRing, Tenant
from tlserve.server.watch import INTERVAL_S

ALICE, BOB = "sk-alice-0001", "sk-bob-0002"
FILE = f"""
# name  key            options
alice   {ALICE}  weight=3 max_concurrent=1
  # an indented comment
bob     {BOB}
"""


def as_(key: str) -> dict[str, str]:
    """The header that carries ``key``."""
    return {"Authorization": f"Bearer {key}"}


def ask(server: Server, key: str, prompt: str = "a", **headers: str) -> httpx.Response:
    """A completion of one token."""
    body = {"model": server.model, "prompt": prompt, "max_tokens": 1}
    return server.api.post("/v1/completions", json=body, headers={**as_(key), **headers})


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    """A file with the keys of alice and bob."""
    path = tmp_path / "keys"
    path.write_text(FILE)
    return path


@pytest.fixture
def server(serve: Serve, succ_dir: Path, keys_file: Path) -> Server:
    """A server that asks for keys."""
    return serve(succ_dir, api_keys_file=keys_file)


def test_a_key_file_gives_each_key_its_tenant() -> None:
    """Comments and blank lines are nothing; options have defaults; a tenant may have several keys."""
    keys = ApiKeys.parse(FILE + "bob sk-bob-new-0003\n")

    assert len(keys) == 3
    assert keys.tenant_of(ALICE) == Tenant(name="alice", weight=3, max_concurrent=1)
    assert keys.tenant_of(BOB) == keys.tenant_of("sk-bob-new-0003") == Tenant(name="bob")
    assert keys.tenant_of("sk-eve-0000") is None
    assert keys.tenant_of("") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["no key", "name key"]),
        ("# only a comment\n", ["no key"]),
        ("alice\n", ["line 1", "name key"]),
        ("\n\nal!ce sk-secret-1\n", ["line 3", "name"]),
        ("alice short\n", ["line 1", "alice", "8 to 256"]),
        ("alice sk-secret-é1\n", ["line 1", "alice", "ASCII"]),
        ("alice sk-secret-1 weight=0\n", ["line 1", "alice", "weight from 1 to 1000"]),
        ("alice sk-secret-1 weight=1 weight=2\n", ["line 1", "twice"]),
        ("alice sk-secret-1 wait=1\n", ["line 1", "weight"]),
        ("alice sk-secret-1 max_concurrent=-1\n", ["line 1", "max_concurrent"]),
        ("alice sk-secret-1\nbob sk-secret-1\n", ["line 2", "already"]),
        ("alice sk-secret-1\nalice sk-secret-2 weight=2\n", ["line 2", "alice", "equal"]),
    ],
)
def test_a_broken_file_is_told_by_line_and_never_by_key(text: str, words: list[str]) -> None:
    """The message says which line and what is allowed, and repeats no word that may be a secret."""
    with pytest.raises(ConfigError) as caught:
        ApiKeys.parse(text)

    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "secret" not in message
    assert "short" not in message


@given(st.text(max_size=200))
def test_any_text_is_keys_or_a_config_error(text: str) -> None:
    """Nothing else can come of a file, whatever is in it."""
    with suppress(ConfigError):
        ApiKeys.parse(text)


def test_keys_do_not_show() -> None:
    """Neither the keys nor their digests are in a representation that could end in a log."""
    keys = ApiKeys.parse(FILE)

    assert ALICE not in repr(keys)
    assert "b'" not in repr(keys)


def test_a_tenant_at_its_limit_waits_for_an_end() -> None:
    """The limit counts what runs, over all keys of the tenant, and lets go when a request ends in an error too."""
    ring = KeyRing(ApiKeys.parse(FILE))
    alice = ring.tenant_of([f"Bearer {ALICE}"])
    with suppress(RuntimeError), ring.hold(alice):
        with pytest.raises(ApiError) as caught:
            ring.hold(alice).__enter__()
        raise RuntimeError("the request fails")

    assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
    assert int(caught.value.headers()["Retry-After"]) >= 1
    with ring.hold(alice):
        pass


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Authorization", "Bearer")],
        [("Authorization", "Bearer sk-wrong-0000")],
        [("Authorization", f"Bearer {ALICE}x")],
        [("Authorization", f"Bearer {ALICE[:-1]}")],
        [("Authorization", f"Basic {ALICE}")],
        [("Authorization", ALICE)],
        [("Authorization", f"Bearer {ALICE}"), ("Authorization", "Bearer sk-wrong-0000")],
        [("X-Api-Key", ALICE)],
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/tokenize"),
        ("GET", "/v1/models"),
        ("GET", "/openapi.json"),
        ("GET", "/nothing/here"),
        ("DELETE", "/v1/models"),
    ],
)
def test_without_a_good_key_nothing_is_served(
    keyed: Server, method: str, path: str, headers: list[tuple[str, str]]
) -> None:
    """401 with the scheme to use, before the path, the method or the body is looked at."""
    response = keyed.api.request(method, path, headers=headers, content=b"{" if method == "POST" else None)

    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.fixture(scope="session")
def keyed(serve_shared: Serve, succ_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """One server with keys for all who only ask it."""
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(FILE)
    return serve_shared(succ_dir, api_keys_file=path)


@pytest.mark.parametrize("authorization", [f"Bearer {ALICE}", f"bearer {ALICE}", f"BEARER  {ALICE}"])
def test_a_good_key_is_served(keyed: Server, authorization: str) -> None:
    """The scheme may be written in any case."""
    assert keyed.api.get("/v1/models", headers={"Authorization": authorization}).status_code == 200


def test_probes_need_no_key(keyed: Server) -> None:
    """Neither on the API's port nor on the other; nor does a browser that asks what it may send."""
    assert keyed.api.get("/healthz").status_code == 200
    assert keyed.health.get("/healthz").status_code == 200
    assert keyed.health.get("/readyz").status_code == 200
    assert httpx.options(f"{keyed.base_url}/models").status_code != 401


def test_one_tenant_cannot_time_anothers_prompts(keyed: Server) -> None:
    """A prompt of alice's is cached for alice and not for bob, whatever salt bob claims; a salt of her own parts it again."""

    def cached(key: str, **headers: str) -> int:
        usage = ask(keyed, key, "the quick brown fox jumps over the lazy dog again and again", **headers).json()[
            "usage"
        ]
        tokens: int = usage["prompt_tokens_details"]["cached_tokens"]
        return tokens

    assert cached(ALICE) == 0
    assert cached(ALICE) > 0
    assert cached(BOB) == 0
    assert cached(BOB, **{"X-TL-Cache-Salt": "alice"}) == 0
    assert cached(BOB) > 0
    assert cached(ALICE, **{"X-TL-Cache-Salt": "project-1"}) == 0
    assert cached(ALICE, **{"X-TL-Cache-Salt": "project-1"}) > 0
    assert ask(keyed, ALICE, **{"X-TL-Cache-Salt": "a b"}).json()["error"]["param"] == "X-TL-Cache-Salt"


def test_max_concurrent_holds_for_one_tenant_alone(serve: Serve, succ_dir: Path, keys_file: Path) -> None:
    """Alice's second request at once is answered 429 with a time to come back; bob's is served; her next one is too."""
    gate = Gate()
    server = serve(succ_dir, api_keys_file=keys_file, load=gate)
    gate.is_open.clear()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(ask, server, ALICE)
        wait_until(lambda: server.metric("tl_engine_queue_depth") + server.metric("tl_engine_active_sequences") > 0)
        second = ask(server, ALICE)
        other = pool.submit(ask, server, BOB)
        gate.is_open.set()

        assert second.status_code == 429
        assert second.json()["error"]["code"] == "rate_limit_exceeded"
        assert int(second.headers["retry-after"]) >= 1
        assert first.result().status_code == other.result().status_code == 200
    assert ask(server, ALICE).status_code == 200


def is_served(server: Server, key: str) -> bool:
    """Whether ``key`` is let in."""
    return server.api.get("/v1/models", headers=as_(key)).status_code == 200


def test_a_changed_file_counts_without_a_restart(server: Server, keys_file: Path) -> None:
    """New keys are let in and removed ones are not; the swap of a whole file, as for a mounted secret, counts too."""
    keys_file.write_text(FILE + "carol sk-carol-0003\n")
    wait_until(lambda: is_served(server, "sk-carol-0003"), seconds=5 * INTERVAL_S + 5)

    fresh = keys_file.with_name("fresh")
    fresh.write_text(f"bob {BOB}\n")
    fresh.replace(keys_file)
    wait_until(lambda: not is_served(server, ALICE), seconds=5 * INTERVAL_S + 5)
    assert is_served(server, BOB)


def test_a_file_broken_later_keeps_the_old_keys(launch: Launch, succ_dir: Path, keys_file: Path) -> None:
    """It is logged by line, the old keys stay in force, and a mended file counts again; no key is in any log line."""
    launched = launch(succ_dir, api_keys_file=str(keys_file))
    launched.wait_ready()

    keys_file.write_text(f"alice {ALICE} weight=many\n")
    refused = launched.process.wait_for("reload_refused")
    assert "line 1" in refused["error"]
    assert httpx.get(f"{launched.api}/v1/models", headers=as_(BOB)).status_code == 200
    assert launched.process.wait_for("request")["key"] == "bob"

    keys_file.write_text(f"alice {ALICE}\n")
    launched.process.wait_for("reloaded")
    assert httpx.get(f"{launched.api}/v1/models", headers=as_(BOB)).status_code == 401
    assert "key" not in launched.process.wait_for("request")
    assert not any(key in json.dumps(launched.process.seen) for key in (ALICE, BOB))


@pytest.mark.parametrize("text", [None, "alice\n", ""])
def test_a_file_broken_at_the_start_is_a_configuration_error(
    run: Callable[..., subprocess.CompletedProcess[str]], succ_dir: Path, tmp_path: Path, text: str | None
) -> None:
    """One line that names the key of the configuration and the file; exit code 2; ``--check-config`` finds it too."""
    path = tmp_path / "keys"
    if text is not None:
        path.write_text(text)
    config = tmp_path / "runtime.toml"
    config.write_text(f'[engine]\nmodel_dir = "{succ_dir}"\napi_keys_file = "{path}"\nhttp_listen = "127.0.0.1:0"\n')

    for result in (run("--config", config), run("--config", config, "--check-config")):
        assert result.returncode == 2
        (line,) = result.stderr.splitlines()
        assert "engine.api_keys_file" in line
        assert str(path) in line
