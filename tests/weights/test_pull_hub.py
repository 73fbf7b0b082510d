"""Models come from a hub over HTTP, here one on this machine, through broken lines, redirects and refusals."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tlserve.errors import LoadCancelled, PullError
from tlserve.weights.progress import Progress
from tlserve.weights.pull import pull
from tlserve.weights.pull_staging import RECORD

COMMIT = "0123abcd" * 5
GGUF = bytes(range(256)) * 12_000
CONFIG = b'{"model_type": "llama"}'


class Hub(ThreadingHTTPServer):
    """Answers as the hub does: a listing, and files by a redirect to storage. Tests change its attributes."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {"m.gguf": GGUF}
        self.claims: dict[str, dict[str, Any]] = {}  # parts of the listing that are to be untrue
        self.listing: bytes | None = None
        self.requests: list[tuple[str, str | None, str | None]] = []  # path, Range, Authorization
        self.statuses: list[int] = []  # to answer with first, one request each
        self.ranges = True
        self.cuts: list[int] = []  # bytes after which to break off, one download each
        self.stalls = False  # instead of breaking off, say nothing more
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def listed(self) -> bytes:
        siblings = [self.entry(name, content) for name, content in self.files.items()]
        return json.dumps({"sha": COMMIT, "siblings": siblings}).encode()

    def entry(self, name: str, content: bytes) -> dict[str, Any]:
        entry: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": "x"}
        if name.endswith((".gguf", ".safetensors")):
            entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        return entry | self.claims.get(name, {})

    def fetched(self) -> list[str | None]:
        """The ranges asked of the storage."""
        return [asked for path, asked, _ in self.requests if path.startswith("/storage/")]


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        hub, path = self.server, self.path
        hub.requests.append((path, self.headers["Range"], self.headers["Authorization"]))
        if hub.statuses:
            self.answer(hub.statuses.pop(0), b"")
        elif path == "/api/models/org/repo/revision/main?blobs=true":
            self.answer(200, hub.listing or hub.listed())
        elif path.startswith(f"/org/repo/resolve/{COMMIT}/"):
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{hub.server_port}/storage/{path.rpartition('/')[2]}")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif path.startswith("/storage/"):
            self.answer_file(hub.files[path.removeprefix("/storage/")])
        else:
            self.answer(404, b"")

    def answer_file(self, content: bytes) -> None:
        asked = self.headers["Range"]
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.server.ranges else 0
        headers = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
        self.answer(206 if start else 200, content[start:], headers)

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        cut = self.server.cuts.pop(0) if self.server.cuts and self.path.startswith("/storage/") else len(body)
        self.wfile.write(body[:cut])
        if cut < len(body) and self.server.stalls:
            self.wfile.flush()
            self.server.released.wait(30)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("HF_ENDPOINT", server.url + "/")
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr("tlserve.weights.pull_http.RETRY_WAITS", (0.0, 0.0))
        yield server
        server.released.set()
        server.shutdown()
        thread.join()


def ignore(_progress: Progress) -> None:
    pass


def get(directory: Path, source: str = "hf:org/repo") -> Path:
    return pull(source, directory, report=ignore, cancelled=lambda: False)


def test_the_one_gguf(hub: Hub, tmp_path: Path) -> None:
    """A repository's only GGUF file is fetched, at the commit that the revision stands for, and progress is told."""
    hub.files["README.md"] = b"about"
    seen: list[Progress] = []
    directory = pull("hf:org/repo", tmp_path / "m", report=seen.append, cancelled=lambda: False)
    assert (directory / "m.gguf").read_bytes() == GGUF
    assert {path.name for path in directory.iterdir()} == {"m.gguf", RECORD}
    assert {path.name for path in tmp_path.iterdir()} == {"m"}
    assert f"/org/repo/resolve/{COMMIT}/m.gguf" in [path for path, *_ in hub.requests]
    assert seen[-1] == Progress("verifying", len(GGUF), len(GGUF))


def test_a_folder(hub: Hub, tmp_path: Path) -> None:
    """Of a repository of safetensors the files that are read are fetched, though there is a GGUF file too."""
    wanted = {"config.json": CONFIG, "model.safetensors": b"weights", "tokenizer.json": b"{}"}
    hub.files = {**wanted, "m.gguf": GGUF, "pytorch_model.bin": b"old", "onnx/model.safetensors": b"other"}
    directory = get(tmp_path / "m")
    assert {path.name: path.read_bytes() for path in directory.iterdir() if path.name != RECORD} == wanted


def test_a_named_file(hub: Hub, tmp_path: Path) -> None:
    """One file of several, in a folder and with a name that must be quoted."""
    hub.files = {"a.gguf": b"no", "q4/a b.gguf": GGUF}
    hub.files["a%20b.gguf"] = GGUF
    assert (get(tmp_path / "m", "hf:org/repo/q4/a b.gguf") / "a b.gguf").read_bytes() == GGUF


@pytest.mark.parametrize(
    ("files", "source", "problem"),
    [
        ({"a.gguf": b"a", "b.gguf": b"b"}, "hf:org/repo", "holds 2 models, name the one you want: a.gguf, b.gguf"),
        ({"README.md": b""}, "hf:org/repo", "holds no model"),
        ({"a.gguf": b"a"}, "hf:org/repo/c.gguf", r"there is no such file; .gguf files are a.gguf"),
    ],
)
def test_unclear_choice(hub: Hub, tmp_path: Path, files: dict[str, bytes], source: str, problem: str) -> None:
    """The message lists what there is."""
    hub.files = files
    with pytest.raises(PullError, match=problem):
        get(tmp_path / "m", source)


def test_broken_line_goes_on(hub: Hub, tmp_path: Path) -> None:
    """Every interruption is resumed from the byte that it came to; progress between them costs no patience."""
    hub.cuts = [1_000_000, 500_000, 1, 1, 1]
    assert (get(tmp_path / "m") / "m.gguf").read_bytes() == GGUF
    assert hub.fetched() == [None] + [f"bytes={n}-" for n in (1_000_000, 1_500_000, 1_500_001, 1_500_002, 1_500_003)]


def test_server_without_ranges(hub: Hub, tmp_path: Path) -> None:
    """Where resuming is not possible the file is fetched from its start."""
    hub.ranges, hub.cuts = False, [1_000_000]
    assert (get(tmp_path / "m") / "m.gguf").read_bytes() == GGUF


def test_stop_and_resume(hub: Hub, tmp_path: Path) -> None:
    """A stop takes effect while the line is silent; what has arrived is used by the next pull."""
    hub.cuts, hub.stalls = [1_000_000], True
    seen: list[Progress] = []
    with pytest.raises(LoadCancelled):
        pull(
            "hf:org/repo",
            tmp_path / "m",
            report=seen.append,
            cancelled=lambda: bool(seen) and seen[-1].bytes_done == 1_000_000,
        )
    assert not (tmp_path / "m").exists()
    assert (get(tmp_path / "m") / "m.gguf").read_bytes() == GGUF
    assert hub.fetched() == [None, "bytes=1000000-"]


PROGRAM = """
import sys
from pathlib import Path
from tlserve.weights.pull import pull
pull("hf:org/repo", Path(sys.argv[1]), report=lambda p: print(p.bytes_done, flush=True), cancelled=lambda: False)
"""


def test_killed_process(hub: Hub, tmp_path: Path) -> None:
    """A process killed in the middle leaves no model, no lock, and bytes to go on from."""
    hub.cuts, hub.stalls = [1_000_000], True
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, tmp_path / "m"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert any(line == "1000000\n" for line in process.stdout)
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "m").exists()
    assert (get(tmp_path / "m") / "m.gguf").read_bytes() == GGUF
    assert hub.fetched() == [None, "bytes=1000000-"]


def test_remains_of_another_commit_are_not_used(hub: Hub, tmp_path: Path) -> None:
    """Partial files are only gone on with for the same repository and commit."""
    staging = tmp_path / ".m.pull"
    staging.mkdir()
    (staging / "owner").write_text("org/repo another commit")
    (staging / "m.gguf.part").write_bytes(b"of another commit")
    assert (get(tmp_path / "m") / "m.gguf").read_bytes() == GGUF
    assert hub.fetched() == [None]


@pytest.mark.parametrize("claim", [{"lfs": {"sha256": "0" * 64}}, {"size": len(GGUF) - 1}])
def test_file_unlike_its_listing(hub: Hub, tmp_path: Path, claim: dict[str, Any]) -> None:
    """Another digest or size: refused, thrown away, and fetched from the start the next time."""
    hub.claims["m.gguf"] = claim
    with pytest.raises(PullError, match=r"m.gguf has \d+ bytes, sha256 .*; it was damaged on its way, try again"):
        get(tmp_path / "m")
    assert not (tmp_path / "m").exists()
    hub.claims.clear()
    assert (get(tmp_path / "m") / "m.gguf").read_bytes() == GGUF
    assert hub.fetched() == [None, None]


def test_file_longer_than_its_listing(hub: Hub, tmp_path: Path) -> None:
    """A server cannot fill the disk with more than it announced."""
    hub.claims["m.gguf"] = {"size": 1000}
    with pytest.raises(PullError) as caught:
        get(tmp_path / "m")
    found = re.search(r"m.gguf has (\d+) bytes", str(caught.value))
    assert found is not None
    assert int(found[1]) < len(GGUF) // 4


def test_digest_of_the_operator(hub: Hub, tmp_path: Path) -> None:
    """The operator's digest is compared besides the hub's; it cannot mean several files."""
    with pytest.raises(PullError, match="expected 1111"):
        get(tmp_path / "m", f"hf:org/repo#sha256={'1' * 64}")
    hub.files = {
        "config.json": CONFIG,
        "model.safetensors.index.json": b"{}",
        "model-00001-of-00002.safetensors": b"a",
        "model-00002-of-00002.safetensors": b"b",
    }
    with pytest.raises(PullError, match="there are 2 weights files; leave it out"):
        get(tmp_path / "n", f"hf:org/repo#sha256={'1' * 64}")


def test_token_goes_to_the_hub_alone(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The storage that the hub redirects to does not see the token, and neither does a message."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret\n")
    get(tmp_path / "m")
    sent = {path.split("/")[1]: authorization for path, _, authorization in hub.requests}
    assert sent == {"api": "Bearer hf_secret", "org": "Bearer hf_secret", "storage": None}
    hub.statuses = [403]
    with pytest.raises(PullError) as caught:
        get(tmp_path / "n")
    assert "hf_secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "advice"),
    [(401, "set HF_TOKEN"), (403, "access was not granted"), (404, "check the repository, revision and file names")],
)
def test_refusal(hub: Hub, tmp_path: Path, status: int, advice: str) -> None:
    """A refusal is final and says what may help."""
    hub.statuses = [status]
    with pytest.raises(PullError, match=f"/api/models/org/repo.*: HTTP {status} .*{advice}"):
        get(tmp_path / "m")
    assert len(hub.requests) == 1


def test_busy_hub(hub: Hub, tmp_path: Path) -> None:
    """A hub that is busy twice is asked a third time; one that stays busy is not asked for ever."""
    hub.statuses = [503, 429]
    get(tmp_path / "m")
    hub.statuses = [503] * 9
    with pytest.raises(PullError, match="HTTP 503"):
        get(tmp_path / "n")
    assert len(hub.statuses) == 6


def test_no_network(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreachable hub is an error with its address and the reason."""
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused_port()}")
    with pytest.raises(PullError, match=r"http://127.0.0.1:\d+/api/.*: cannot be reached: .*refused"):
        get(tmp_path / "m")
    assert hub.requests == []


def unused_port() -> int:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        return server.server_port


@pytest.mark.parametrize(
    "listing",
    [
        b"<html>",
        b"[]",
        b'{"sha": "../x", "siblings": []}',
        b'{"siblings": []}',
        b'{"sha": "a", "siblings": ["x"]}',
        b'{"sha": "a", "siblings": [{"size": 1}]}',
    ],
)
def test_listing_that_is_none(hub: Hub, tmp_path: Path, listing: bytes) -> None:
    """A proxy's page, or a hub of another kind, is not taken for a listing."""
    hub.listing = listing
    with pytest.raises(PullError, match=r"not JSON|not a listing of files as the hub gives it"):
        get(tmp_path / "m")


def test_endpoint_must_be_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other scheme is followed."""
    monkeypatch.setenv("HF_ENDPOINT", "file:///etc")
    with pytest.raises(PullError, match="HF_ENDPOINT is 'file:///etc'; it must begin with https:// or http://"):
        get(tmp_path / "m")
