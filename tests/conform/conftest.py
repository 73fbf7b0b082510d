"""A server that is not ours: the counting model again, over http.server, right in everything but what a test asks it to get wrong."""

from __future__ import annotations

import base64
import json
import math
import struct
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

StartWrong = Callable[..., str]


class WrongServer(ThreadingHTTPServer):
    """Answers with the letters that follow the prompt's last; ``wrong`` names what it gets wrong."""

    daemon_threads = True

    def __init__(self, wrong: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.wrong = wrong
        self.num_asked = 0
        self.released = threading.Event()


class Handler(BaseHTTPRequestHandler):
    server: WrongServer
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # One write an answer.

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    # ---- routes --------------------------------------------------------------------------------------------------

    def do_GET(self) -> None:
        model = {"id": "other", "object": "model", "created": 1, "owned_by": "somebody"}
        if self.path == "/v1/models":
            self.reply({"object": "list", "data": [model]})
        elif self.path == "/v1/models/other" or (self.is_wrong("knows every model") and "/models/" in self.path):
            self.reply(model)
        elif self.path == "/v1/chat/completions" and not self.is_wrong("405 is 404"):
            self.refuse(405, "POST only", allow="POST")
        else:
            self.refuse(404, "no such thing")

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if self.is_wrong("hangs") and "chat" in self.path:
            self.server.released.wait(30)
            return
        if self.is_wrong("garbage"):
            self.reply("<html>", raw=True)
            return
        try:
            body = json.loads(text)
            assert isinstance(body, dict)
        except (ValueError, AssertionError):
            self.refuse(500 if self.is_wrong("500 for bad JSON") else 400, "not a JSON object")
            return
        trouble = self.trouble(body)
        if trouble and not (self.is_wrong("accepts everything") and trouble[0] in (400, 422)):
            self.refuse(*trouble)
        elif self.path == "/v1/embeddings":
            self.embed(body)
        elif self.path in ("/v1/completions", "/v1/chat/completions"):
            self.generate(body)
        else:
            self.refuse(404, "no such thing")

    def trouble(self, body: dict[str, Any]) -> tuple[int, str, str | None, str | None] | None:
        if "xml" in self.headers.get("Content-Type", ""):
            return 415, "JSON only", None, None
        if body.get("model") != "other":
            return 404, "no such model", "model", "model_not_found"
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
        if body.get("max_tokens", 1) > 10**6:
            return 400, "too long", "max_tokens", "context_length_exceeded"
        parts = any(not isinstance(message["content"], str) for message in body.get("messages", []))
        if parts or any(body.get(name) for name in ("tools", "response_format", "echo")) or body.get("n", 1) > 1:
            return 422, "not served", "n", None
        return None

    # ---- answers -------------------------------------------------------------------------------------------------

    def generate(self, body: dict[str, Any]) -> None:
        is_chat = "chat" in self.path
        prompts = [body["messages"][-1]["content"]] if is_chat else body["prompt"]
        prompts = prompts if isinstance(prompts, list) else [prompts]
        limit = body.get("max_completion_tokens", body.get("max_tokens", 16))
        results = [self.letters(prompt, limit, body) for prompt in prompts]
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
        text = "".join(chr(97 + (start + step) % 26) for step in range(1, limit + 1))
        for stop in body.get("stop", []):
            if stop in text:
                shown = len(stop) if self.is_wrong("shows the stop string") else 0
                return text[: text.index(stop) + shown], "stop", limit
        return text, "stop" if self.is_wrong("calls a cut a stop") else "length", limit

    def choice(self, index: int, text: str, finish: str, body: dict[str, Any], *, is_chat: bool) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "finish_reason": finish}
        if is_chat:
            choice["message"] = {"role": "assistant", "content": text}
            if body.get("logprobs"):
                top = [{"token": c, "logprob": lp, "bytes": None} for c, lp in ((text[0], -0.1), ("?", -3.0))]
                choice["logprobs"] = {"content": [{**top[0], "token": c, "top_logprobs": top} for c in text]}
        else:
            choice["text"] = text
            lists = [list(text), [-0.1] * len(text), [{}] * len(text), list(range(len(text)))]
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
            piece.update(index=0, finish_reason=None)
        if not self.is_wrong("never finishes"):
            pieces[-1]["finish_reason"] = finish
        chunks: list[dict[str, Any]] = [{**head, "choices": [piece]} for piece in pieces]
        if body.get("stream_options"):
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

    def is_wrong(self, what: str) -> bool:
        return self.server.wrong == what

    def refuse(
        self, status: int, message: str, param: str | None = None, code: str | None = None, *, allow: str = ""
    ) -> None:
        error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
        document = {"detail": message} if self.is_wrong("errors of another shape") else {"error": error}
        self.reply(document, status=status, allow=allow)

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
    """Start a server with one wrongness, or none; gives its address."""
    servers: list[WrongServer] = []

    def start(wrong: str = "") -> str:
        server = WrongServer(wrong)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}/v1"

    yield start
    for server in servers:
        server.released.set()
        server.shutdown()
        server.server_close()
