"""Clients of all kinds: patient and impatient, of text, sound and pictures. Each knows what its answer has to be."""

from __future__ import annotations

import base64
import io
import json
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import trio
from PIL import Image
from tests.chaos.server import Served

PATIENCE_S = 100.0
"""Longer than any deadline and wait of the deployment: who is not answered by then hangs."""

SEAM = 8
"""Of 32,767: what a sample may differ by where sound goes on in another worker, or in another batch."""

CHAT = "/v1/chat/completions"
SAY = "/v1/audio/speech"
DRAW = "/v1/images/generations"

LEVEL = 1
"""Of 255: what a value of a picture may differ by that was computed again, or in another batch."""

PICTURES = 2
"""In one request."""


@dataclass(frozen=True)
class Answer:
    text: str = ""
    pcm: bytes = b""
    pictures: tuple[bytes, ...] = ()
    """Files, in order."""

    def same(self, other: Answer) -> bool:
        if self.text != other.text or len(self.pcm) != len(other.pcm) or len(self.pictures) != len(other.pictures):
            return False
        for ours, theirs in zip(self.pictures, other.pictures, strict=True):
            first, second = levels(ours), levels(theirs)
            if first.shape != second.shape or np.abs(first - second).max() > LEVEL:
                return False
        one, two = (np.frombuffer(it.pcm, "<i2").astype(np.int32) for it in (self, other))
        return not len(one) or int(np.abs(one - two).max()) <= SEAM


def levels(file: bytes) -> npt.NDArray[np.int16]:
    """The values of a picture, from its file. Raises an error for a file that is cut off."""
    with Image.open(io.BytesIO(file)) as image:
        return np.asarray(image, np.int16)


@dataclass(frozen=True)
class Question:
    """A request, by what makes it up; ``kind``: ``chat``, ``spoken``, ``speech`` or ``picture``. ``words`` are also the
    steps of a picture."""

    kind: str
    text: str
    words: int

    def body(self, model: str, voice: str, *, stream: bool) -> tuple[str, dict[str, Any]]:
        if self.kind == "speech":
            return SAY, {"model": model, "input": self.text, "voice": voice, "response_format": "pcm", "stream": stream}
        if self.kind == "picture":
            return DRAW, self._draw(model, stream=stream)
        body: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": self.text}],
            "max_tokens": self.words,
            "temperature": 0,
            "stream": stream,
        }
        if self.kind == "spoken":
            body |= {"modalities": ["text", "audio"], "audio": {"voice": voice, "format": "pcm16"}}
        return CHAT, body

    def _draw(self, model: str, *, stream: bool) -> dict[str, Any]:
        body = {
            "model": model,
            "prompt": self.text,
            "n": PICTURES,
            "seed": len(self.text),
            "num_inference_steps": self.words,
            "response_format": "b64_json",
            "stream": stream,
        }
        return body | ({"partial_images": 2} if stream else {})


class Failed(Exception):
    """An answer that was not: a typed error, before it or in its midst."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Untyped(Exception):
    """An answer that ended without a word of why."""


async def ask(served: Served, path: str, body: dict[str, Any]) -> Answer:
    """The whole answer. Raises :class:`Failed`, or :class:`Untyped` for what a client could not make anything of."""
    try:
        if not body.get("stream"):
            reply = await served.client.post(path, json=body)
            if reply.status_code != 200:
                raise Failed(error_code(reply.content))
            if path == SAY:
                return Answer(pcm=reply.content)
            if path == DRAW:
                return Answer(pictures=tuple(base64.b64decode(it["b64_json"]) for it in reply.json()["data"]))
            message = reply.json()["choices"][0]["message"]
            if audio := message.get("audio"):
                return Answer(audio["transcript"], base64.b64decode(audio["data"]))
            return Answer(message["content"])
        async with served.client.stream("POST", path, json=body) as reply:
            if reply.status_code != 200:
                raise Failed(error_code(await reply.aread()))
            if path == SAY:
                return Answer(pcm=b"".join([piece async for piece in reply.aiter_bytes()]))
            return await (_drawn(reply) if path == DRAW else _events(reply))
    except httpx.HTTPError as error:
        # Raw sound has no place for an error: it breaks off.
        raise (
            Failed("broken off")
            if path == SAY and isinstance(error, httpx.RemoteProtocolError)
            else Untyped(f"{type(error).__name__}: {error}")
        ) from error


async def _events(reply: httpx.Response) -> Answer:
    text, pcm, ended = "", b"", False
    try:
        async for line in reply.aiter_lines():
            if line == "data: [DONE]":
                ended = True
            elif line.startswith("data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    raise Failed(event["error"]["code"] or event["error"]["type"])
                for choice in event["choices"]:
                    delta = choice["delta"]
                    audio = delta.get("audio") or {}
                    text += delta.get("content") or audio.get("transcript") or ""
                    pcm += base64.b64decode(audio.get("data", ""))
    except httpx.HTTPError as error:
        raise Untyped(f"{type(error).__name__}: {error}") from error
    if not ended:
        raise Untyped("a stream without an end")
    return Answer(text, pcm)


async def _drawn(reply: httpx.Response) -> Answer:
    """Read the events of streamed pictures: previews before their picture, each of them whole."""
    pictures: dict[int, bytes] = {}
    try:
        async for line in reply.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise Failed(event["error"]["code"] or event["error"]["type"])
            index, file = event["index"], base64.b64decode(event["b64_json"])
            if index in pictures:
                raise Untyped(f"a picture twice, or a preview behind it: {event['type']}")
            levels(file)
            if event["type"].endswith(".completed"):
                pictures[index] = file
    except (httpx.HTTPError, OSError, KeyError) as error:
        raise Untyped(f"{type(error).__name__}: {error}") from error
    if sorted(pictures) != list(range(PICTURES)):
        raise Untyped(f"a stream that ended behind {len(pictures)} pictures")
    return Answer(pictures=tuple(pictures[index] for index in sorted(pictures)))


def error_code(body: bytes) -> str:
    try:
        error = json.loads(body)["error"]
        return str(error["code"] or error["type"])
    except (ValueError, KeyError, TypeError):
        raise Untyped(f"no error that one can read: {body[:100]!r}") from None


@dataclass
class Outcomes:
    """What became of all requests."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    untyped: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)


class Load:
    """Clients that ask until they are told to stop."""

    def __init__(self, served: Served, model: str, voice: str, expected: Mapping[Question, Answer], seed: int) -> None:
        self._served = served
        self._model = model
        self._voice = voice
        self._expected = expected
        self._random = random.Random(seed)
        self._stopping = False
        self.outcomes = Outcomes()

    def stop(self) -> None:
        self._stopping = True

    async def run(self, clients: int) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(clients):
                nursery.start_soon(self._client)

    async def _client(self) -> None:
        while not self._stopping:
            way = self._random.choices(("patient", "leaves", "resets", "reads slowly"), (8, 1, 1, 1))[0]
            question = self._random.choice(list(self._expected))
            if way == "patient":
                await self._patient(question)
            elif way == "leaves":
                with trio.move_on_after(self._random.random()):
                    await self._patient(question, counted=False)
                self.outcomes.counts["left"] += 1
            else:
                await self._rude(question, slowly=way == "reads slowly")
                self.outcomes.counts[way] += 1

    async def _patient(self, question: Question, *, counted: bool = True) -> None:
        path, body = question.body(self._model, self._voice, stream=self._random.random() < 0.6)
        outcomes = self.outcomes
        said = f"{question} stream={body['stream']}"
        with trio.move_on_after(PATIENCE_S) as scope:
            try:
                answer = await ask(self._served, path, body)
            except Failed as failed:
                outcomes.counts[f"error {failed.code}"] += counted
                await trio.sleep(0.05)
                return
            except Untyped as untyped:
                outcomes.untyped.append(f"{said}: {untyped}")
                return
            if not answer.same(self._expected[question]):
                got = f"{answer.text[:80]!r}, {len(answer.pcm)} bytes, {len(answer.pictures)} pictures"
                outcomes.wrong.append(f"{said}: {got}")
            outcomes.counts["whole"] += counted
        if scope.cancelled_caught:
            outcomes.hung.append(said)

    async def _rude(self, question: Question, *, slowly: bool) -> None:
        """Ask for a stream by hand, read a little of it (or for a while nothing), and reset the connection."""
        path, body = question.body(self._model, self._voice, stream=True)
        data = json.dumps(body).encode()
        try:
            stream = await trio.open_tcp_stream("127.0.0.1", self._served.port)
        except OSError:
            return
        async with stream:
            stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            with trio.move_on_after(5):
                try:
                    await stream.send_all(
                        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
                    )
                    await trio.sleep(self._random.random() * (2 if slowly else 0.2))
                    await stream.receive_some(100)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return
