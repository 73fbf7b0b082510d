"""A server that is not ours: the counting model again, over http.server, right in everything but what a test asks it to get wrong."""

from __future__ import annotations

import base64
import json
import math
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

StartWrong = Callable[..., "WrongServer"]
MOST_BYTES = 2**20
Trouble = tuple[int, str, str | None, str | None]
PROBES = {"/healthz": "ok", "/readyz": "ready"}
METRICS = """\
# TYPE tl_engine_kv_blocks gauge
tl_engine_kv_blocks{state="used"} 0
# TYPE tl_engine_queue_depth gauge
# TYPE tl_engine_active_sequences gauge
tl_engine_active_sequences 0
# TYPE tl_engine_batch_tokens gauge
# TYPE tl_engine_prefix_cache_hit_ratio gauge
# TYPE tl_engine_preemptions_total counter
# TYPE tl_engine_kv_evictions_total counter
"""


class WrongServer(ThreadingHTTPServer):
    """Answers with the letters that follow the prompt's last; ``wrong`` names what it gets wrong.

    ``released`` ends whatever it does too long; ``is_asked`` is set by the first POST.
    """

    daemon_threads = True
    request_queue_size = 32

    def __init__(self, wrong: str, tier: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.wrong = wrong
        self.tier = tier
        self.num_asked = 0
        self.num_running = 0
        self.turn = threading.Lock()
        self.is_asked = threading.Event()
        self.released = threading.Event()

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    def handle_error(self, *_: object) -> None:
        """Say nothing: clients hang up on wrong servers."""


class Handler(BaseHTTPRequestHandler):
    server: WrongServer
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # One write an answer.

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    # ---- routes --------------------------------------------------------------------------------------------------

    def do_GET(self) -> None:
        if self.is_locked():
            return
        owner = "tlserve" if self.is_wrong("takes any priority") else "somebody"
        model = {"id": "other", "object": "model", "created": 1, "owned_by": owner}
        if self.path == "/v1/models":
            self.reply({"object": "set" if self.is_wrong("lists no list") else "list", "data": [model]})
        elif self.path == "/v1/models/other" or (self.is_wrong("knows every model") and "/models/" in self.path):
            self.reply(model)
        elif self.path == "/v1/chat/completions" and not self.is_wrong("405 is 404"):
            self.refuse(405, "POST only", allow="POST")
        elif self.path in PROBES:
            self.reply(PROBES[self.path], status=503 if self.is_wrong("is never ready") else 200)
        elif self.path == "/metrics":
            text = METRICS.replace("tl_engine", "engine") if self.is_wrong("measures something else") else METRICS
            self.reply(text, kind="text/plain", raw=True)
        else:
            self.refuse(404, "no such thing")

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.is_asked.set()
        if self.is_locked():
            return
        if self.misbehave(text):
            self.close_connection = True
            return
        if "xml" in self.headers.get("Content-Type", ""):
            self.refuse(500 if self.is_wrong("500 for XML") else 415, "JSON only")
            return
        try:
            body = json.loads(text)
            assert isinstance(body, dict)
        except (ValueError, AssertionError):
            self.refuse(500 if self.is_wrong("500 for bad JSON") else 400, "not a JSON object")
            return
        trouble = self.trouble(body)
        if trouble and body.get("stream") is True and self.is_wrong("refuses in the stream"):
            self.reply('data: {"error": {}}\n\n', kind="text/event-stream", raw=True)
        elif trouble and not (self.is_wrong("accepts everything") and trouble[0] in (400, 422)):
            self.refuse(*trouble)
        elif self.path == "/v1/embeddings":
            self.embed(body)
        elif self.path in ("/v1/completions", "/v1/chat/completions"):
            with self.running(body):
                self.generate(body)
        elif self.path == "/v1/tokenize" and self.is_wrong("miscounts tokens"):
            self.reply({"tokens": [1, 2], "count": 2})
        else:
            self.refuse(404, "no such thing")

    def misbehave(self, text: str) -> bool:
        """Do what no server should, where this one is asked to; says whether it did."""
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
        match self.server.wrong:
            case "closes":
                pass
            case "hangs":
                self.server.released.wait(30)
            case "garbage":
                self.reply("<html>", raw=True)
            case "no HTTP":
                self.wfile.write(b"\x00\x01\x02\r\n\r\n")
            case "half an answer":
                self.wfile.write(head + b"Content-Length: 1000\r\n\r\n{")
            case "nests":
                self.reply("[" * 200_000, raw=True)
            case "drips":
                self.drip(head + b"\r\n", b" ", every=0.02)
            case "floods":
                self.drip(head + b"\r\n", b" " * 2**20, every=0)
            case "never ends its headers" if '"stream": true' in text:
                self.drip(head + b"X-Long: ", b"x", every=0.1)
            case _:
                return False
        return True

    def drip(self, head: bytes, piece: bytes, *, every: float) -> None:
        self.wfile.write(head)
        while not self.server.released.wait(every):
            self.wfile.write(piece)
            self.wfile.flush()

    @contextmanager
    def running(self, body: dict[str, Any]) -> Iterator[None]:
        """One after the other, if wrong in this way; otherwise at once, and counted."""
        if self.is_wrong("keeps running"):
            with self.server.turn:
                yield
                self.wfile.flush()
                self.server.released.wait(3 if "ignore_eos" in body else 0)
            return
        with self.server.turn:
            self.server.num_running += 1
        self.server.released.wait(0.02 if self.is_wrong("mixes up") else 0)
        yield
        with self.server.turn:
            self.server.num_running -= 1

    def trouble(self, body: dict[str, Any]) -> Trouble | None:
        served = None if self.server.tier == "full" else self.unserved(body)
        return self.unknown(body) or self.out_of_range(body) or served

    def unknown(self, body: dict[str, Any]) -> Trouble | None:
        if body.get("model") != "other" and not self.is_wrong("is any model"):
            return 404, "no such model", "model", "model_not_found"
        if int(self.headers["Content-Length"]) > MOST_BYTES:
            return 500 if self.is_wrong("500 for too much") else 413, "too much", None, "request_too_large"
        if self.is_wrong("hears no system") and body.get("messages", [{}])[0].get("role") == "system":
            return 400, "no system messages", "messages", None
        return None

    def out_of_range(self, body: dict[str, Any]) -> Trouble | None:
        for name, is_wrong in (
            ("temperature", not 0 <= body.get("temperature", 1) <= 2),
            ("top_p", not 0 < body.get("top_p", 1) <= 1),
            ("max_tokens", body.get("max_tokens", 1) < 1),
            ("stop", len(body.get("stop", [])) > 4),
            ("stream", not isinstance(body.get("stream", False), bool)),
            ("seed", not isinstance(body.get("seed", 1), int)),
            ("frequency_penalty", abs(body.get("frequency_penalty", 0)) > 2),
            ("messages", "chat" in self.path and not body.get("messages")),
        ):
            if is_wrong:
                return 400, f"{name} is wrong", None if self.is_wrong("unnamed errors") else name, None
        if body.get("max_tokens", 1) > 10**6 and not self.is_wrong("is of any length"):
            return 400, "too long", "max_tokens", "context_length_exceeded"
        return None

    def unserved(self, body: dict[str, Any]) -> Trouble | None:
        wanted = [name for name in ("tools", "response_format", "echo") if body.get(name)]
        if body.get("n", 1) > 1 and not self.is_wrong("ignores n"):
            wanted.append("n")
        if any(not isinstance(message["content"], str) for message in body.get("messages", [])):
            wanted.append("messages[0].content")
        code = None if self.is_wrong("422 for no reason") else "unsupported_parameter"
        return (422, "not served", wanted[0], code) if wanted else None

    # ---- answers -------------------------------------------------------------------------------------------------

    def generate(self, body: dict[str, Any]) -> None:
        is_chat = "chat" in self.path
        prompts = [body["messages"][-1]["content"]] if is_chat else body["prompt"]
        prompts = prompts if isinstance(prompts, list) else [prompts]
        if isinstance(prompts[0], list):
            prompts = ["?" if self.is_wrong("loses parts") else "".join(part["text"] for part in prompts[0])]
        prompts = prompts[:1] if self.is_wrong("hears one prompt") else prompts
        if not self.is_wrong("chooses once"):
            prompts *= body.get("n", 1)
        default = 24 if self.is_wrong("talks long") else 16
        limit = body.get("max_completion_tokens", body.get("max_tokens", default))
        results = [self.letters(prompt, limit, body) for prompt in prompts]
        if body.get("echo") and not self.is_wrong("echoes nothing"):
            results = [(prompt + text, *rest) for prompt, (text, *rest) in zip(prompts, results, strict=True)]
        if body.get("stream"):
            self.stream(body, results[0], is_chat=is_chat, prompt=len(prompts[0]))
            return
        choices = [
            self.choice(index, text, finish, body, is_chat=is_chat) for index, (text, finish, _) in enumerate(results)
        ]
        usage = self.usage(sum(map(len, prompts)), sum(count for _, _, count in results))
        kind = "chat.completion" if is_chat else "text_completion"
        self.reply({"id": "x", "object": kind, "created": 1, "model": "other", "choices": choices, "usage": usage})

    def letters(self, prompt: str, limit: int, body: dict[str, Any]) -> tuple[str, str, int]:
        self.server.num_asked += 1
        start = ord(prompt[-1])
        if (self.is_wrong("ignores the seed") and "seed" in body) or (
            self.is_wrong("is moody") and body.get("temperature") == 0
        ):
            start += self.server.num_asked
        if self.is_wrong("mixes up") and self.server.num_running > 1:
            start += 1
        if body.get("response_format") and not self.is_wrong("ignores formats"):
            return '{"a": 1}', "stop", limit
        text = "".join(chr(97 + (start + step) % 26) for step in range(1, limit + 1))
        for stop in [] if self.is_wrong("never stops") else body.get("stop", []):
            if stop in text:
                shown = len(stop) if self.is_wrong("shows the stop string") else 0
                return text[: text.index(stop) + shown], "stop", limit
        return text, "stop" if self.is_wrong("calls a cut a stop") else "length", limit

    def choice(self, index: int, text: str, finish: str, body: dict[str, Any], *, is_chat: bool) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "finish_reason": finish}
        if is_chat:
            content = f"\ud800\x1b[2J{text}" if self.is_wrong("speaks no Unicode") else text
            choice["message"] = {"role": "assistant", "content": content}
            if body.get("tools") and not self.is_wrong("ignores tools"):
                choice["message"]["tool_calls"] = [{"function": {"name": "now", "arguments": "{}"}}]
            if body.get("logprobs"):
                best = -2.0 if self.is_wrong("never samples") else -0.1
                top = [{"token": c, "logprob": lp, "bytes": None} for c, lp in ((text[0], best), ("?", -3.0))]
                if self.is_wrong("has its worst first"):
                    top.reverse()
                choice["logprobs"] = {"content": [{**top[0], "token": c, "top_logprobs": top} for c in text]}
        else:
            choice["text"] = text
            lists = [
                list(text),
                [-0.1] * (len(text) - self.is_wrong("loses logprobs")),
                [{}] * len(text),
                list(range(len(text))),
            ]
            choice["logprobs"] = dict(
                zip(("tokens", "token_logprobs", "top_logprobs", "text_offset"), lists, strict=True)
            )
        return choice

    def usage(self, prompt: int, completion: int) -> dict[str, int]:
        total = prompt + completion + self.is_wrong("cannot add")
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}

    def stream(self, body: dict[str, Any], result: tuple[str, str, int], *, is_chat: bool, prompt: int) -> None:
        text, finish, count = result
        if self.is_wrong("streams something else"):
            text = text[::-1]
        head = {"id": "x", "object": "chat.completion.chunk" if is_chat else "text_completion", "created": 1}
        role = {} if self.is_wrong("no role") else {"role": "assistant"}
        pieces: list[dict[str, Any]] = [{"delta": {**role, "content": ""}}] if is_chat else []
        pieces += [{"delta": {"content": letter}} if is_chat else {"text": letter} for letter in text]
        for piece in pieces:
            piece.update(index=0, finish_reason=finish if self.is_wrong("ends all the time") and not is_chat else None)
        if not self.is_wrong("never finishes"):
            pieces[-1]["finish_reason"] = finish
        chunks: list[dict[str, Any]] = [{**head, "choices": [piece]} for piece in pieces]
        if self.is_wrong("reckons unasked") or (body.get("stream_options") and not self.is_wrong("does not reckon")):
            chunks.append({**head, "choices": [], "usage": self.usage(prompt, count)})
        end = "\n" if self.is_wrong("one newline") else "\n\n"
        events = "".join(f"data: {json.dumps(chunk)}{end}" for chunk in chunks)
        done = "" if self.is_wrong("no [DONE]") else "data: [DONE]\n\n"
        self.reply(events + done, kind="text/event-stream", raw=True)

    def embed(self, body: dict[str, Any]) -> None:
        texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        data = []
        for index, text in enumerate(texts):
            vector = [float(ord(text[0])), float(len(text))]
            norm = 1.0 if self.is_wrong("unnormalised") else math.hypot(*vector)
            vector = [number / norm for number in vector]
            packed: Any = vector
            if body.get("encoding_format") == "base64" and not self.is_wrong("no base64"):
                packed = base64.b64encode(struct.pack("<2f", *vector)).decode()
            data.append({"index": index, "object": "embedding", "embedding": packed})
        usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
        self.reply({"object": "list", "data": data, "model": "other", "usage": usage})

    # ---- the wire ------------------------------------------------------------------------------------------------

    def is_locked(self) -> bool:
        locked = self.is_wrong("wants a key") and self.headers.get("Authorization") != "Bearer sesame"
        if locked:
            self.refuse(401, "who are you")
        return locked

    def is_wrong(self, what: str) -> bool:
        return self.server.wrong == what

    def refuse(
        self, status: int, message: str, param: str | None = None, code: str | None = None, *, allow: str = ""
    ) -> None:
        error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
        document = {"detail": message} if self.is_wrong("errors of another shape") else {"error": error}
        kind = "text/plain" if self.is_wrong("errors of another kind") else "application/json"
        self.reply(document, status=status, kind=kind, allow=allow)

    def reply(
        self, document: Any, *, status: int = 200, kind: str = "application/json", raw: bool = False, allow: str = ""
    ) -> None:
        data = (document if raw else json.dumps(document)).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if not self.is_wrong("no request id"):
            self.send_header("X-Request-Id", self.headers.get("X-Request-Id", "made"))
        if allow:
            self.send_header("Allow", allow)
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def start_wrong() -> Iterator[StartWrong]:
    """Start a server with one wrongness, or none."""
    servers: list[WrongServer] = []

    def start(wrong: str = "", tier: str = "engine") -> WrongServer:
        server = WrongServer(wrong, tier)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server

    yield start
    for server in servers:
        server.released.set()
        server.shutdown()
        server.server_close()
