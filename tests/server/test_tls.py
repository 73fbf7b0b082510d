"""TLS on the API port: served, renewed, refused when it is wrong, and not a way to hold connections."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import httpx
import openai
import pytest

from support import Serve, Server, text_of, wait_until
from tlserve.server import listen
from tlserve.server.watch import INTERVAL_S
from wire import connect

DATA = Path(__file__).parents[1] / "data" / "tls"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def pair(tmp_path: Path) -> dict[str, Path]:
    """A certificate and its key, made for localhost by itself, at a place where a test may renew them."""
    for name in ("server.crt", "server.key"):
        shutil.copy(DATA / name, tmp_path)
    return {"tls_certfile": tmp_path / "server.crt", "tls_keyfile": tmp_path / "server.key"}


def trusting(*names: str) -> ssl.SSLContext:
    """A client's context that trusts only these certificates."""
    context = ssl.create_default_context(cafile=DATA / names[0])
    for name in names[1:]:
        context.load_verify_locations(DATA / name)
    return context


def secure_client(server: Server, context: ssl.SSLContext) -> httpx.Client:
    """A client that speaks TLS; to be closed."""
    return httpx.Client(base_url=f"https://{server.handle.http_addr}", verify=context, timeout=30)


def is_served(server: Server, context: ssl.SSLContext) -> bool:
    """Whether a client with ``context`` gets an answer."""
    with secure_client(server, context) as client:
        try:
            return client.get("/v1/models").status_code == 200
        except httpx.ConnectError:
            return False


def test_answers_and_streams_come_through_tls(
    serve: Serve, succ_dir: Path, pair: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificate holds for the address, the official client works, and the probes' port stays plain."""
    server = serve(succ_dir, **pair)
    with secure_client(server, trusting("server.crt")) as client:
        secure = attrs.evolve(server, api=client)
        assert secure.chat("a", max_tokens=3, temperature=0).json()["choices"][0]["message"]["content"] == "bcd"
        assert text_of(secure.chat("a", max_tokens=20, temperature=0, stream=True).text).startswith("bcd")
        assert server.health.get("/healthz").status_code == 200
    monkeypatch.setenv("SSL_CERT_FILE", str(DATA / "server.crt"))
    with openai.OpenAI(base_url=f"https://{server.handle.http_addr}/v1", api_key="-") as api:
        assert [model.id for model in api.models.list()] == ["succ"]


def test_who_trusts_nobody_is_not_served(serve: Serve, succ_dir: Path, pair: dict[str, Path]) -> None:
    """A client that does not know the certificate ends the handshake, one that speaks plain HTTP gets no answer; others do."""
    server = serve(succ_dir, **pair)
    assert not is_served(server, trusting("renewed.crt"))
    with connect(server) as plain:
        plain.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not plain.recv(65536).startswith(b"HTTP/")

    assert is_served(server, trusting("server.crt"))


def test_old_versions_are_refused(serve: Serve, succ_dir: Path, pair: dict[str, Path]) -> None:
    """TLS 1.1 is no longer safe."""
    server = serve(succ_dir, **pair)
    context = trusting("server.crt")
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1

    assert not is_served(server, context)


def test_a_handshake_that_does_not_come_is_not_waited_for(
    serve: Serve, succ_dir: Path, pair: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that says nothing, or half a greeting, is closed when the time for the handshake is over."""
    monkeypatch.setattr(listen, "HANDSHAKE_TIMEOUT_S", 0.5)
    server = serve(succ_dir, **pair)
    started = time.monotonic()
    with connect(server) as silent, connect(server) as slow:
        slow.sendall(b"\x16\x03\x01\x02\x00\x01")
        assert silent.recv(10) == slow.recv(10) == b""

    assert 0.3 < time.monotonic() - started < 8


def test_who_stops_reading_over_tls_is_cut_off(serve: Serve, succ_dir: Path, pair: dict[str, Path]) -> None:
    """The limits on slow readers hold through TLS as well."""
    server = serve(succ_dir, **pair, send_timeout_s=1.0)
    body = b'{"model":"succ","messages":[{"role":"user","content":"a"}],"stream":true,"max_tokens":8000}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    with connect(server) as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with trusting("server.crt").wrap_socket(plain, server_hostname="localhost") as connection:
            connection.sendall(head + body)

            aborted = 'tlserve_requests_total{outcome="aborted",reason="disconnect",route="/v1/chat/completions"} 1.0'
            wait_until(lambda: aborted in server.health.get("/metrics").text, seconds=15)


def test_a_renewed_certificate_counts_without_a_restart(serve: Serve, succ_dir: Path, pair: dict[str, Path]) -> None:
    """New connections get the new one; a pair that does not fit together is not taken, and the old one stays."""
    server = serve(succ_dir, **pair)

    assert is_served(server, trusting("server.crt"))
    shutil.copy(DATA / "renewed.crt", pair["tls_certfile"])
    time_to_notice = time.monotonic() + 2.5 * INTERVAL_S
    wait_until(lambda: time.monotonic() > time_to_notice or not is_served(server, trusting("server.crt")), seconds=10)
    assert is_served(server, trusting("server.crt")), "half a pair was taken"
    shutil.copy(DATA / "renewed.key", pair["tls_keyfile"])

    wait_until(lambda: is_served(server, trusting("renewed.crt")), seconds=5 * INTERVAL_S + 5)
    assert not is_served(server, trusting("server.crt"))


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (("nothing.crt", "server.key"), ["engine.tls_certfile", "nothing.crt", "No such file"]),
        (("server.crt", "nothing.key"), ["engine.tls_keyfile", "nothing.key", "No such file"]),
        (("server.crt", "renewed.key"), ["server.crt", "renewed.key", "KEY_VALUES_MISMATCH"]),
        (("server.crt", "protected.key"), ["protected.key", "unprotected"]),
        (("server.key", "server.crt"), ["server.crt", "PEM"]),
        (("server.crt", None), ["engine.tls_keyfile", "not set"]),
        ((None, "server.key"), ["engine.tls_certfile", "not set"]),
    ],
)
def test_a_bad_pair_is_a_configuration_error(
    run: Run, succ_dir: Path, tmp_path: Path, pair: tuple[str | None, str | None], words: list[str]
) -> None:
    """One line that names the keys and the files, exit code 2; nobody is asked for a passphrase."""
    lines = [f'tls_{kind} = "{DATA / name}"' for kind, name in zip(("certfile", "keyfile"), pair, strict=True) if name]
    config = tmp_path / "runtime.toml"
    config.write_text("\n".join(["[engine]", f'model_dir = "{succ_dir}"', 'http_listen = "127.0.0.1:0"', *lines]))

    result = run("--config", config)

    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert all(word in line for word in words), line
