"""Everything that a client can do wrong, one coroutine for each kind, on bare sockets.

Each takes a ``Wire`` (a fresh connection) and a source of randomness. Statuses that come back are noted there; a connection that the
server ends is an end like any other.
"""

from __future__ import annotations

import json
import random
import re
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable

import attrs
import trio

from .poison import BAD_LOGITS

Kind = Callable[["Wire", random.Random], Awaitable[None]]
MODEL = "circle"
_CODE = re.compile(rb'\{"error":\{.*"code":"(?P<code>\w+)"')


@attrs.define
class Wire:
    """One connection of a hostile client."""

    stream: trio.SocketStream
    answers: Counter[str]

    async def say(self, data: bytes) -> None:
        """Send."""
        await self.stream.send_all(data)

    async def ask(self, body: object, *, path: str = "/v1/completions", headers: str = "") -> None:
        """Send a request that closes the connection after its answer."""
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}Content-Length: {len(payload)}\r\n\r\n"
        )
        await self.say(head.encode() + payload)

    async def note(self) -> None:
        """Read to the end and count each status with its code; that of an error inside of a stream as well."""
        data = b"".join([piece async for piece in self.stream])
        for part in data.split(b"HTTP/1.1 ")[1:]:
            code = _CODE.search(part)
            words = [part[:3].decode(), code["code"].decode() if code else ""]
            self.answers[" ".join(words).strip()] += 1

    def reset(self) -> None:
        """Have the connection end with a reset instead of a goodbye."""
        self.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def prompt(dice: random.Random, length: int) -> str:
    """Printable text."""
    return "".join(chr(dice.randint(0x21, 0x7E)) for _ in range(length))


def completion(dice: random.Random, **fields: object) -> dict[str, object]:
    """A completion body."""
    return {"model": MODEL, "prompt": prompt(dice, dice.randint(1, 200)), "max_tokens": 20, **fields}


async def vanish_in_a_stream(wire: Wire, dice: random.Random) -> None:
    """Read a little of a long stream, then reset the connection."""
    await wire.ask(completion(dice, stream=True, max_tokens=2000))
    for _ in range(dice.randint(0, 4)):
        await wire.stream.receive_some(dice.randint(1, 2000))
    wire.reset()


async def vanish_before_the_answer(wire: Wire, dice: random.Random) -> None:
    """Ask, and be gone."""
    await wire.ask(completion(dice, max_tokens=1000, stream=dice.random() < 0.5))
    wire.reset()


async def stop_reading(wire: Wire, dice: random.Random) -> None:
    """Ask for more than the buffers hold and read nothing for longer than the server waits."""
    wire.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await wire.ask(completion(dice, stream=True, max_tokens=4000, logprobs=5))
    await trio.sleep(dice.uniform(0.5, 2.0))
    wire.reset()


async def close_one_half(wire: Wire, dice: random.Random) -> None:
    """Say that nothing more comes, which counts as hanging up."""
    await wire.ask(completion(dice, max_tokens=500))
    await wire.stream.send_eof()
    await wire.note()


async def fill_the_queue(wire: Wire, dice: random.Random) -> None:
    """Ask for many answers at once."""
    await wire.ask(completion(dice, prompt=[prompt(dice, 5)] * dice.randint(1, 24), max_tokens=30))
    await wire.note()


async def take_all_blocks(wire: Wire, dice: random.Random) -> None:
    """Ask with a prompt that fills a good part of the pool."""
    await wire.ask(completion(dice, prompt=prompt(dice, dice.randint(500, 2500)), max_tokens=200))
    await wire.note()


async def poison_the_model(wire: Wire, dice: random.Random) -> None:
    """Ask with a prompt for which the model gives no numbers."""
    await wire.ask(
        completion(dice, prompt=prompt(dice, 20) + BAD_LOGITS), headers=f"X-TL-Priority: {dice.randint(-9, 9)}\r\n"
    )
    await wire.note()


async def be_impatient(wire: Wire, dice: random.Random) -> None:
    """Set a deadline that passes in the queue, in the prefill or in the stream."""
    headers = f"X-Request-Timeout-Ms: {dice.randint(1, 200)}\r\n"
    await wire.ask(completion(dice, max_tokens=2000, stream=dice.random() < 0.5), headers=headers)
    await wire.note()


async def send_noise(wire: Wire, dice: random.Random) -> None:
    """Random bytes, sometimes after a good beginning."""
    beginnings = (
        b"",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01",
    )
    await wire.say(dice.choice(beginnings) + dice.randbytes(dice.randint(1, 5000)))
    await wire.stream.send_eof()
    async for _ in wire.stream:
        pass


async def send_half_a_request(wire: Wire, dice: random.Random) -> None:
    """Stop in the middle of a head or a body, and wait or go."""
    body = json.dumps(completion(dice)).encode()
    whole = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    await wire.say(whole[: dice.randint(1, len(whole) - 1)])
    if dice.random() < 0.3:
        await wire.note()


async def send_bad_bodies(wire: Wire, dice: random.Random) -> None:
    """What is no JSON, or says what cannot be."""
    bodies: list[object] = [
        b"{",
        b"[" * 5000,
        b'\xff\xfe{"model": 1}',
        completion(dice, temperature=-1),
        completion(dice, max_tokens=10**9),
        completion(dice, model="../../etc/passwd"),
        completion(dice, prompt=[]),
        completion(dice, stop=["x" * 1000] * 5),
        completion(dice, prompt=prompt(dice, 70_000)),
    ]
    await wire.ask(dice.choice(bodies), path=dice.choice(["/v1/completions", "/v1/embeddings", "/v1/tokenize"]))
    await wire.note()


async def send_bad_chunks(wire: Wire, dice: random.Random) -> None:
    """A chunked body that breaks off or lies."""
    await wire.say(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    await wire.say(dice.choice([b"zz\r\n", b"5\r\nab\r\n0\r\n\r\n", b"-1\r\n", b"ffffffff\r\nabc", b"5\r\nab"]))
    if dice.random() < 0.5:
        await wire.note()


async def pipeline(wire: Wire, dice: random.Random) -> None:
    """Many requests in one go; sometimes gone before the answers."""
    request = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    await wire.say(request * dice.randint(1, 20) + request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    if dice.random() < 0.7:
        await wire.note()


KINDS: tuple[Kind, ...] = (
    vanish_in_a_stream,
    vanish_before_the_answer,
    stop_reading,
    close_one_half,
    fill_the_queue,
    take_all_blocks,
    poison_the_model,
    be_impatient,
    send_noise,
    send_half_a_request,
    send_bad_bodies,
    send_bad_chunks,
    pipeline,
)


async def attack(address: str, kind: Kind, dice: random.Random, answers: Counter[str]) -> None:
    """Do one wrong thing on a connection of its own."""
    host, port = address.split(":")
    with trio.move_on_after(15):
        try:
            async with await trio.open_tcp_stream(host, int(port)) as stream:
                await kind(Wire(stream, answers), dice)
        except (OSError, trio.BrokenResourceError):
            answers["cut off"] += 1
        return
    answers[f"hung: {kind.__name__}"] += 1
