"""The simulated engines: of every kind of stage one, with the troubles that a schedule wishes on a request.

Their outputs are those of :mod:`tests.simulation.outputs`. What an engine is free to choose (how much it does in a
step, how it cuts its output, whether it copies its input or keeps it) is up to chance, as the run's seed determines.
"""

from __future__ import annotations

import random
import struct
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.errors import ErrorInfo, invalid_request, stage_failed
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.request import MediaChunk, StepProgress, TextDelta, Usage
from omni_actors.worker.engine import Engine, Outbox, Work

from .outputs import (
    TAIL,
    code_of,
    denoised,
    file_of,
    latents_of,
    mix,
    picture_of,
    pixels_of,
    samples_of,
    skipped,
    text_of,
    token_of,
)
from .world import WORLD, Crash

_BIG = 5_000
"""Numbers in a payload that travels in shared memory."""

RATE = 24_000


@dataclass(slots=True)
class Held:
    """A request in an engine. ``inputs`` has what is not taken yet, by port, each as (payload, its metadata, whether it
    is owed)."""

    work: Work
    sim: dict[str, Any]
    open: set[str]
    inputs: dict[str, deque[tuple[Payload | int, dict[str, Any], bool]]]
    steps: int = 0
    state: dict[str, Any] = field(default_factory=dict)
    pieces: deque[MediaChunk] = field(default_factory=deque)
    """Of pictures, that are yet to be sent."""

    @property
    def whole(self) -> bool:
        """Whether all input has come and is taken."""
        return not self.open and not any(self.inputs.values())


class SimEngine(Engine):
    """What the simulated engines share."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self.world = WORLD.get()
        self.chance = random.Random(f"{self.world.seed} {hello.stage} {hello.replica} {hello.incarnation}")
        self.held: dict[int, Held] = {}
        self.blamed = False
        """Whether a request has ended this worker."""

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        progress("loading nothing", 0.5)
        return {"stage": self.hello.stage}

    def admit(self, work: Work) -> None:
        sim = work.params["sim"]
        trouble = self._trouble(sim)
        if trouble == "refuse":
            raise invalid_request("asked to refuse", param="sim")
        if trouble == "admit":
            raise RuntimeError("asked to fail in admit")
        if work.priority != sim["priority"] or work.deadline_s is None or work.deadline_s > sim["deadline_s"] + 1e-6:
            self.world.violate(f"{work.request_id} has priority {work.priority} and {work.deadline_s} s in its worker")
        held = Held(work, sim, set(work.ports), {port: deque() for port in work.ports})
        self.begin(held)
        self.held[work.key] = held

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        held = self.held[key]
        if self._trouble(held.sim) == "feed":
            raise RuntimeError("asked to fail in feed")
        if end:
            held.open.discard(port)
        if payload is None:
            return True
        if self.chance.random() < 0.5:
            held.inputs[port].append((_value(payload), dict(payload.meta), False))
            return True
        held.inputs[port].append((payload, payload.meta, True))
        return False

    def abort(self, key: int) -> None:
        self.held.pop(key, None)

    @property
    def runnable(self) -> bool:
        return bool(self.held)

    def step(self, out: Outbox) -> bool:
        ran = False
        for held in list(self.held.values()):
            if self.chance.random() < 0.2:
                ran = True  # its turn comes in a later step
                continue
            if self._befall(held, out):
                ran = True
                continue
            if self.advance(held, out):
                ran = True
                held.steps += 1
        return ran

    def counters(self) -> dict[str, float]:
        return {"running": len(self.held)}

    # ---- for the engines

    def begin(self, held: Held) -> None:
        """Prepare a request's state."""

    @abstractmethod
    def advance(self, held: Held, out: Outbox) -> bool:
        """Do some work on a request; whether there was any to do."""

    def take(self, held: Held, port: str, out: Outbox) -> int | None:
        """The next input of a port."""
        taken = self.take_with_meta(held, port, out)
        return None if taken is None else taken[0]

    def take_with_meta(self, held: Held, port: str, out: Outbox) -> tuple[int, dict[str, Any]] | None:
        """The next input of a port, with its metadata."""
        queue = held.inputs.get(port)
        if not queue:
            return None
        payload, meta, owed = queue.popleft()
        value = payload if isinstance(payload, int) else _value(payload)
        meta = dict(meta)
        if owed:
            out.consumed(held.work.key, port)
        return value, meta

    def give(self, held: Held, value: int, out: Outbox, **meta: Any) -> None:
        """A payload of one number, which may be a large one, written where its readers will see it or not."""
        key = held.work.key
        if not held.work.routed:
            return
        if not held.sim["big"]:
            out.emit(key, Payload("n", {"value": value, **meta}))
        elif self.chance.random() < 0.5:
            payload = out.allocate(key, "n", meta, {"n": ((_BIG,), "int64")})
            payload.tensors["n"][:] = value
            out.emit(key, payload)
        else:
            out.emit(key, Payload("n", meta, {"n": np.full(_BIG, value)}))

    def show(self, held: Held, content: bytes, out: Outbox, **meta: Any) -> None:
        """A picture or a preview, as a file that is another one each time. A picture may come in pieces, in later
        steps."""
        file = file_of(content, self.chance.randbytes(self.chance.randint(0, 60)))
        begins = [0]
        if "preview" not in meta and self.chance.random() < 0.6:
            begins += sorted(self.chance.sample(range(1, len(file)), self.chance.randint(0, 3)))
        ends = [*begins[1:], len(file)]
        for piece, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            part = {"piece": piece, "pieces": len(begins)} if len(begins) > 1 else {}
            held.pieces.append(MediaChunk(held.work.key, "image", {**meta, **part}, file[begin:end]))

    def send_pieces(self, held: Held, out: Outbox) -> bool:
        """Send some of what :meth:`show` has left; whether there was any."""
        sent = bool(held.pieces)
        while held.pieces:
            out.media(held.pieces.popleft())
            if self.chance.random() < 0.4:
                break
        return sent

    def finish(self, held: Held, out: Outbox, usage: Usage | None = None) -> None:
        self.held.pop(held.work.key, None)
        out.finish(held.work.key, usage or Usage())

    def _forced_wrongly(self, held: Held) -> None:
        """An attempt has got what no earlier one made. (Stages that end early do so at another place each time.)"""
        if held.sim["trouble"] != "early":
            self.world.violate(f"{held.work.request_id} is resumed with what it never made")

    def _trouble(self, sim: dict[str, Any]) -> str:
        return str(sim["trouble"]) if sim["where"] == self.hello.stage else ""

    def _befall(self, held: Held, out: Outbox) -> bool:
        """Let the trouble that the schedule wishes on this request come over it; whether its step is over by that."""
        trouble = self._trouble(held.sim)
        if not trouble or held.steps < held.sim["after"]:
            return False
        if trouble in ("crash", "poison", "bug") and held.work.request_id not in self.world.crashed:
            self.world.hit(f"request:{trouble}")
        key, name = held.work.key, self.hello.stage
        match trouble:
            case "fail":
                del self.held[key]
                out.fail(key, stage_failed(name, "asked to fail").info)
            case "memory":
                del self.held[key]
                out.fail(key, ErrorInfo(message="out of memory", code="out_of_memory", stage=name))
            case "unsendable":
                if held.work.visible:
                    out.media(MediaChunk(key, "image", {"what": object()}, b""))
                else:
                    if not out.ready(key):
                        return False
                    out.emit(key, Payload("n", {"what": object()}))
                held.sim["trouble"] = ""
            case "early":
                self.finish(held, out)
            case "crash" if held.work.request_id not in self.world.crashed:
                self.world.crashed.add(held.work.request_id)
                self.blamed = True
                raise Crash
            case "poison":
                self.world.crashed.add(held.work.request_id)
                self.blamed = True
                raise Crash
            case "bug":
                self.world.crashed.add(held.work.request_id)
                self.blamed = True
                raise RuntimeError("asked to fail in step")
            case _:
                return False
        self.world.hit(f"request:{trouble}")
        return True


class Reader(SimEngine):
    """The first stage: all of its output goes on at its end."""

    def advance(self, held: Held, out: Outbox) -> bool:
        if not out.ready(held.work.key):
            return False
        if held.steps < held.sim["tokens"]:
            self.give(held, mix(held.sim["seed"], 11, held.steps), out)
        else:
            self.finish(held, out)
        return True


class Writer(SimEngine):
    """An autoregressive stage: tokens of one or several choices. Text is released by twos, as if a stop string might
    begin with each. Choice 0 goes to the next stages. Of a prefix it tells nothing again, but hands all of it on."""

    def begin(self, held: Held) -> None:
        prefix = held.work.prefix
        told = [] if prefix is None else list(map(len, prefix.tokens))
        choices = held.sim["choices"]
        held.state.update(fold=held.sim["seed"], given=0, told=told + [0] * (choices - len(told)), made=[0] * choices)
        held.state["prefix"] = [] if prefix is None else prefix.tokens

    def advance(self, held: Held, out: Outbox) -> bool:
        state, total = held.state, held.sim["tokens"]
        if held.open:
            return False
        while (value := self.take(held, "context", out)) is not None:
            state["fold"] = mix(state["fold"], value)
        ran = False
        if not state.get("resumed"):
            state["resumed"] = ran = True
            for choice, tokens in enumerate(state["prefix"]):
                for position, token in enumerate(tokens):
                    if token != token_of(state["fold"], choice, position):
                        self._forced_wrongly(held)
                state["made"][choice] = len(tokens)
        for choice, made in enumerate(state["made"]):
            if made < total and self.chance.random() < 0.8:
                if choice == 0 and made == state["given"] and not out.ready(held.work.key):
                    continue
                ran = True
                self._token(held, choice, made, out)
            elif made < total:
                ran = True
        if state["given"] < state["made"][0] and out.ready(held.work.key):
            ran = True
            self.give(held, token_of(state["fold"], 0, state["given"]), out)
            state["given"] += 1
        if state["given"] == total and all(made == total for made in state["made"]):
            ran = True
            self.finish(held, out, Usage(completion_tokens=total * held.sim["choices"]))
        return ran

    def _token(self, held: Held, choice: int, position: int, out: Outbox) -> None:
        state, key, last = held.state, held.work.key, position + 1 == held.sim["tokens"]
        token = token_of(state["fold"], choice, position)
        state["made"][choice] = position + 1
        if not held.work.visible:
            out.ledger(key, choice, [token])
            return
        text = ""
        if position % 2:
            text = text_of(token_of(state["fold"], choice, position - 1)) + text_of(token)
        elif last:
            text = text_of(token)
        out.text(TextDelta(key, choice, text, [token], "stop" if last else None))


class Speaker(SimEngine):
    """An autoregressive stage that the client does not see: one frame of codes for each piece of text and some more.
    What it chose before is forced upon it."""

    def begin(self, held: Held) -> None:
        prefix = held.work.prefix
        data = b"" if prefix is None else prefix.data
        held.state.update(fold=1, made=0, tail=0, forced=list(struct.unpack(f"<{len(data) // 4}i", data)))

    def advance(self, held: Held, out: Outbox) -> bool:
        state = held.state
        if not out.ready(held.work.key):
            return False
        value = self.take(held, "text", out)
        if value is None and not held.whole:
            return False
        if value is None:
            if state["tail"] == TAIL:
                self.finish(held, out)
                return True
            value = state["tail"]
            state["tail"] += 1
        state["fold"] = mix(state["fold"], value)
        code = code_of(state["fold"])
        if state["made"] < len(state["forced"]):
            if state["forced"][state["made"]] != code:
                self._forced_wrongly(held)
        else:
            out.ledger(held.work.key, 0, [code], struct.pack("<i", code))
        state["made"] += 1
        self.give(held, code, out)
        return True


class Voice(SimEngine):
    """A codec: frames of sound as their codes come, cut by chance; it may leave out what the client has."""

    def begin(self, held: Held) -> None:
        skip = 0
        if held.work.delivered and self.chance.random() < 0.5:
            skip = self.chance.randint(0, held.work.delivered)
        held.state.update(heard=2, hint=3, made=0, sound=bytearray(), skip=skip)

    def advance(self, held: Held, out: Outbox) -> bool:
        state = held.state
        ran = False
        while (value := self.take(held, "hint", out)) is not None:
            ran = True
            state["hint"] = mix(state["hint"], value)
        for _ in range(self.chance.randint(1, 3)):
            if (value := self.take(held, "codes", out)) is None:
                break
            ran = True
            state["heard"] = mix(state["heard"], value)
            state["sound"] += samples_of(state["heard"])
        if held.whole:
            ran = True
            state["sound"] += samples_of(mix(state["heard"], state["hint"]))
        if state["sound"] and (held.whole or (ran and self.chance.random() < 0.6)):
            self._speak(held, out)
        if held.whole:
            self.finish(held, out)
        return ran

    def _speak(self, held: Held, out: Outbox) -> None:
        state = held.state
        sound, begin = bytes(state["sound"]), state["made"]
        state["made"] += len(sound) // 2
        state["sound"].clear()
        left_out = min(len(sound) // 2, max(0, state["skip"] - begin))
        meta = {"sample_rate": RATE, "channels": 1}
        if left_out < len(sound) // 2:
            if state["skip"] or self.chance.random() < 0.5:
                meta["start"] = begin + left_out
            out.media(MediaChunk(held.work.key, "audio", meta, sound[2 * left_out :]))


class Painter(SimEngine):
    """A stage that computes once all of its input is there."""

    def begin(self, held: Held) -> None:
        held.state["tokens"] = []

    def advance(self, held: Held, out: Outbox) -> bool:
        tokens = held.state["tokens"]
        if held.open:
            return False
        while (value := self.take(held, "text", out)) is not None:
            tokens.append(value)
        if not held.state.get("shown"):
            held.state["shown"] = True
            self.show(held, picture_of(tokens), out, index=0, seed=0)
        if not self.send_pieces(held, out):
            self.finish(held, out)
        return True


class Denoiser(SimEngine):
    """An engine of cursors: each picture of a request takes its steps, whenever its turn comes. A preview without a
    credit is left out."""

    def begin(self, held: Held) -> None:
        image = held.work.params["image"]
        known = self.world.image_seeds.setdefault(held.work.request_id, image.seed)
        if image.seed is None or image.seed != known:
            self.world.violate(f"{held.work.request_id} is drawn from seed {image.seed}, it was {known}")
        held.state["cursors"] = [[0, latents_of(image.seed + index, 0)] for index in range(image.n)]
        held.state["skipped"] = 0

    def advance(self, held: Held, out: Outbox) -> bool:
        image, cursors = held.work.params["image"], held.state["cursors"]
        ran = False
        for index, cursor in enumerate(cursors):
            if cursor[0] <= image.steps:
                ran |= self.chance.random() < 0.3 or self._step(held, index, cursor, out)
        if all(step > image.steps for step, _ in cursors):
            usage = Usage(images=image.n, steps=image.n * image.steps, skipped_steps=held.state["skipped"])
            self.finish(held, out, usage)
            return True
        return ran

    def _step(self, held: Held, index: int, cursor: list[int], out: Outbox) -> bool:
        image, key = held.work.params["image"], held.work.key
        named = {"index": index, "seed": image.seed + index}
        if cursor[0] == image.steps:
            if not out.ready(key):
                return False
            self.give(held, cursor[1], out, **named)
            cursor[0] += 1
            return True
        cursor[:] = cursor[0] + 1, denoised(cursor[1], cursor[0] + 1)
        held.state["skipped"] += skipped(cursor[0])
        if image.progress:
            out.progress(StepProgress(key, index, cursor[0], image.steps))
        if image.previews and cursor[0] % image.previews == 0 and cursor[0] < image.steps and out.ready(key):
            self.give(held, cursor[1], out, **named, preview=cursor[0])
        return True


class Easel(SimEngine):
    """The stage that writes files of pictures and previews, as they come."""

    def advance(self, held: Held, out: Outbox) -> bool:
        if self.send_pieces(held, out):
            return True
        taken = self.take_with_meta(held, "pixels", out)
        if taken is not None:
            latents, meta = taken
            meta.pop("value", None)
            self.show(held, pixels_of(latents), out, format="png", **meta)
            return True
        if held.whole:
            self.finish(held, out)
            return True
        return False


def _value(payload: Payload) -> int:
    """The one number that a payload is made of. A slot that was used again too early has two."""
    if "n" not in payload.tensors:
        return int(payload.meta["value"])
    array = payload.tensors["n"]
    first = int(array[0])
    if first != int(array[-1]) or first != int(array[_BIG // 2]):
        WORLD.get().violate("a slot was reused while it was read")
    return first
