"""A short check of an accelerator, for a machine that is lent for minutes and has no network.

Each question has its own deadline, and the whole takes less than eight minutes: is the platform detected, and what does
its runtime report about the device; do the demo (if its weights are on this machine) and tiny Qwen3-Omni serve on the
device with the torch engine; are greedy float32 answers those of the processor, and how many tokens differ in the
device's usual dtype; does the capture of steps (graphs) change a token, and how much time does it save; how fast does a
tensor reach another process by the platform's transport; and does ``kill -9`` of the server leave device memory
allocated.

    python benchmarks/gpu_check.py --json gpu.json

``--platform`` checks another platform; ``cpu`` is a rehearsal. A check that cannot be made is a row with the reason,
never a missing row.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import trio

from omni_actors import AsyncOmni, OmniError, Request, open_omni
from omni_actors.platforms import OmniPlatform, select
from omni_actors.platforms.platform import default_options
from omni_actors.protocol.params import Prompt, Sampling, Speech
from omni_actors.protocol.request import MediaChunk, TextDelta
from omni_load import FAMILIES, MODEL_STAGES, folder_of, prompts, request
from report import Aim, Report, arguments

FAMILY = FAMILIES["qwen3-omni"]

SOUND = 1e-4
"""Of full scale: what float32 sound may differ by."""

TRANSFER = 256 << 20
"""Bytes of the tensor that goes to another process."""


class NotHere(Exception):
    """A check that is not possible on this machine or platform."""


@dataclass
class Answers:
    tokens: list[list[int]] = field(default_factory=list)
    sound: list[np.ndarray] = field(default_factory=list)
    seconds: float = 0.0

    def flips(self, other: Answers) -> tuple[int, int]:
        """Return the number of answers that differ from ``other``'s, and the number of tokens before the
        differences."""
        different = same = 0
        for ours, theirs in zip(self.tokens, other.tokens, strict=True):
            agree = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(theirs))
            same += agree
            different += ours != theirs
        return different, same


async def collect(omni: AsyncOmni, requests: Sequence[Request]) -> Answers:
    """Run all clients at once."""
    made = Answers([[] for _ in requests], [np.zeros(0, np.float32) for _ in requests])

    async def one(index: int, asked: Request) -> None:
        pcm = bytearray()
        async with omni.open(asked) as stream:
            async for event in stream:
                if isinstance(event, TextDelta):
                    made.tokens[index] += event.token_ids
                elif isinstance(event, MediaChunk):
                    pcm += event.data
        made.sound[index] = np.frombuffer(bytes(pcm), "<i2").astype(np.float32) / 32768

    begun = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for index, asked in enumerate(requests):
            nursery.start_soon(one, index, asked)
    made.seconds = time.perf_counter() - begun
    return made


def serve_tiny(
    patience_s: float, platform: str, dtype: str, outputs: tuple[str, ...], count: int, *settings: str
) -> Answers:
    """Return tiny Qwen3-Omni's answers to the second run of the same requests."""
    stages = (*MODEL_STAGES, FAMILY.vocoder)
    overrides = [f"stages.{stage}.dtype={dtype}" for stage in stages] + list(settings)
    asked = [request(FAMILY, text, outputs) for text in prompts(count)]

    async def run() -> Answers:
        with trio.fail_after(patience_s):
            async with open_omni(str(folder_of(FAMILY.name)), overrides=overrides, platform=platform) as omni:
                await collect(omni, asked)
                return await collect(omni, asked)

    return trio.run(run)


class Check:
    """The shared state of the checks: the platform, its child processes, and the rows of results."""

    def __init__(self, platform: OmniPlatform, report: Report, count: int) -> None:
        self.platform = platform
        self.report = report
        self.count = count
        self.device = platform.devices()[0].name
        self.options = default_options(platform)
        self.deadline = time.monotonic()

    @property
    def left_s(self) -> float:
        """Return the seconds until the deadline of the present check."""
        return max(1.0, self.deadline - time.monotonic())

    def row(self, check: str, result: str, figure: float | None = None, unit: str = "") -> None:
        self.report.rows.append({"check": check, "result": result, "figure": figure, "unit": unit})
        print(f"  {check}: {result}" + ("" if figure is None else f" ({figure:.4g} {unit})"), flush=True)

    def child(self, role: str, *words: str) -> subprocess.Popen[str]:
        """Run this file again, in a process that has the device's environment and may open the device."""
        environment = self.platform.worker_environment(self.device, 1, self.options)
        return subprocess.Popen(
            [sys.executable, __file__, "--role", role, "--platform", self.platform.name, *words],
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def told(self, role: str, *words: str) -> Any:
        with self.child(role, *words) as process:
            try:
                output, _ = process.communicate(timeout=self.left_s)
            finally:
                process.kill()
        if process.returncode:
            raise RuntimeError(f"the child '{role}' ended with {process.returncode}")
        return json.loads(output.splitlines()[-1])

    # The checks, in order.

    def detected(self) -> None:
        found = self.platform.detect()
        self.row("detected", found.reason if found else f"NOT USABLE: {found.reason}")
        for device in self.platform.devices():
            memory = None if device.memory is None else device.memory / 2**30
            self.row(f"device {device.name}", f"{device.description} {device.trouble}".strip(), memory, "GiB")
        said = self.told("runtime")
        self.row("runtime", f"{said['capability']} {' '.join(said['features'])}", said["open_s"], "s to open")
        self.report.aims.append(Aim("the platform is detected (1 = yes)", float(bool(found)), 1, ">="))

    def parity(self) -> None:
        outputs = ("text", "audio")
        ours = serve_tiny(self.left_s, self.platform.name, "float32", outputs, self.count)
        reference = serve_tiny(self.left_s, "cpu", "float32", outputs, self.count)
        different, _ = ours.flips(reference)
        same = [i for i in range(self.count) if ours.tokens[i] == reference.tokens[i]]
        lengths = [i for i in same if len(ours.sound[i]) == len(reference.sound[i])]
        worst = max((float(np.abs(ours.sound[i] - reference.sound[i]).max(initial=0)) for i in lengths), default=0.0)
        self.row(
            "tiny Qwen3-Omni, float32, spoken", f"{self.count} answers, {different} with other tokens than the cpu's"
        )
        self.row("  its sound", f"{len(same) - len(lengths)} of {len(same)} of another length", worst, "of full scale")
        self.report.aims.append(Aim("float32 answers whose tokens differ from the CPU's", different, 0, "<="))
        self.report.aims.append(Aim("float32 sound, largest difference of full scale", worst, SOUND, "<="))
        usual = self.platform.default_dtype
        if usual != "float32":
            ours = serve_tiny(self.left_s, self.platform.name, usual, ("text",), self.count)
            different, agreed = ours.flips(Answers(reference.tokens))
            total = sum(map(len, reference.tokens))
            self.row(
                f"tiny Qwen3-Omni, {usual}", f"{different} of {self.count} flip", agreed / total, "agree up to there"
            )

    def graphs(self) -> None:
        if "graphs" not in self.platform.options:
            raise NotHere(f"platform '{self.platform.name}' has no graphs")
        runs = {}
        for on in ("true", "false"):
            setting = f"platforms.{self.platform.name}.graphs={on}"
            runs[on] = serve_tiny(
                self.left_s, self.platform.name, self.platform.default_dtype, ("text",), self.count, setting
            )
        different, _ = runs["true"].flips(runs["false"])
        speeds = {on: sum(map(len, run.tokens)) / run.seconds for on, run in runs.items()}
        self.row("graphs on", f"{different} answers with other tokens than off", speeds["true"], "tokens/s")
        self.row("graphs off", "", speeds["false"], "tokens/s")
        self.report.aims.append(Aim("answers that graphs change", different, 0, "<="))

    def demo(self) -> None:
        from omni_actors.models.weights import demo_folder

        if not (demo_folder() / "llm").is_dir():
            raise NotHere("the demo's weights are not on this machine")

        async def run() -> tuple[str, Answers]:
            with trio.fail_after(self.left_s):
                return await ask()

        async def ask() -> tuple[str, Answers]:
            async with open_omni("omni-demo", platform=self.platform.name) as omni:
                asked = Request(
                    task="chat",
                    outputs=("text", "audio"),
                    params={
                        "prompt": Prompt(messages=[{"role": "user", "content": "What is the capital of France?"}]),
                        "sampling": Sampling(temperature=0.0, max_tokens=64),
                        "speech": Speech(voice="heart"),
                    },
                )
                said = []
                async with omni.open(asked) as stream:
                    async for event in stream:
                        if isinstance(event, TextDelta):
                            said.append(event.text)
                return "".join(said), await collect(omni, [asked] * 4)

        text, answers = trio.run(run)
        self.row("demo", repr(text), answers.seconds, "s for four spoken answers")
        self.report.aims.append(Aim("the demo knows France's capital (1 = yes)", float("Paris" in text), 1, ">="))

    def transport(self) -> None:
        if not self.platform.transports:
            raise NotHere(f"platform '{self.platform.name}' has no transport of its own")
        with self.child("export") as source:
            try:
                assert source.stdout is not None
                handle = source.stdout.readline().strip()
                if not handle:
                    raise RuntimeError("the exporting child gave no output")
                said = self.told("open", "--handle", handle)
            finally:
                source.kill()  # its memory ends with it
        self.row(f"{self.platform.transports[0]}, {TRANSFER >> 20} MiB", "opened", said["open_ms"], "ms")
        self.row("  read by the other process", "equal" if said["equal"] else "DIFFERENT", said["gib_per_s"], "GiB/s")
        self.report.aims.append(
            Aim("a tensor reads the same in the other process (1 = yes)", float(said["equal"]), 1, ">=")
        )

    def killed(self) -> None:
        before = self.told("memory")["free"]
        if before is None:
            raise NotHere("the runtime does not know the device's free memory")
        with serving(str(folder_of(FAMILY.name)), self.platform.name) as server:
            during = self.told("memory")["free"]
            os.kill(server.pid, signal.SIGKILL)
            begun = time.monotonic()
        held = before
        while time.monotonic() - begun < 20:
            held = before - self.told("memory")["free"]
            if held < 64 << 20:
                break
        self.row("kill -9 of the server", f"held {(before - during) >> 20} MiB before", held / 2**20, "MiB held after")
        self.report.aims.append(Aim("MiB of the device held after kill -9", held / 2**20, 64, "<="))


@contextmanager
def serving(model: str, platform: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a real server with all its workers up."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with log.open("wb") as sink:
            server = subprocess.Popen(
                [sys.executable, "-m", "omni_actors", "serve", model, "--platform", platform, "--port", "0"],
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                deadline = time.monotonic() + 120
                while b"ready in" not in log.read_bytes():
                    if server.poll() is not None or time.monotonic() > deadline:
                        raise RuntimeError(f"the server did not come up: {log.read_text()[-2000:]}")
                    time.sleep(0.2)
                yield server
            finally:
                server.kill()
                server.wait()


# What the children do: they may open the device.


def as_child(asked: Any) -> None:
    from pkgutil import resolve_name

    import torch

    platform = select(asked.platform)
    begun = time.perf_counter()
    runtime = resolve_name(platform.runtime)(
        platform.worker_device(platform.devices()[0].name), default_options(platform)
    )
    runtime.open()
    place = runtime.torch_device
    if asked.role == "runtime":
        can = runtime.capability()
        torch.zeros(1, device=place).sum().item()
        said = {"capability": can.name, "features": sorted(can.features), "open_s": time.perf_counter() - begun}
        print(json.dumps(said))
    elif asked.role == "memory":
        torch.zeros(1, device=place)
        print(json.dumps({"free": runtime.memory().free}))
    elif asked.role == "export":
        tensor = torch.arange(TRANSFER // 4, dtype=torch.int32, device=place)
        runtime.synchronize()
        print(runtime.transport().export(tensor).hex(), flush=True)
        sys.stdin.read()
    else:
        transport, handle = runtime.transport(), bytes.fromhex(asked.handle)
        begun = time.perf_counter()
        theirs = transport.open(handle)
        opened = time.perf_counter() - begun
        copies = []
        for _ in range(10):
            begun = time.perf_counter()
            copy = theirs.clone()
            runtime.synchronize()
            copies.append(time.perf_counter() - begun)
        equal = bool(torch.equal(copy, torch.arange(TRANSFER // 4, dtype=torch.int32, device=place)))
        transport.close(handle)
        rate = TRANSFER / 2**30 / statistics.median(copies)
        print(json.dumps({"open_ms": opened * 1e3, "gib_per_s": rate, "equal": equal}))


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--platform", default="cuda", help="the platform to check")
    parser.add_argument("--role", help="internal: the task of a child process")
    parser.add_argument("--handle", help="internal")
    asked = parser.parse_args()
    if asked.role:
        as_child(asked)
        return
    report = Report(f"Platform '{asked.platform}' on this machine")
    try:
        check = Check(select(asked.platform), report, 4 if asked.quick else 16)
    except OmniError as error:
        sys.exit(f"platform '{asked.platform}': {error}")
    checks: list[tuple[Callable[[], None], float]] = [
        (check.detected, 60),
        (check.parity, 120),
        (check.graphs, 90),
        (check.transport, 60),
        (check.killed, 90),
        (check.demo, 60),
    ]
    if asked.quick:
        checks = checks[:2]

    for run, seconds in checks:
        print(f"{run.__name__} …", flush=True)
        check.deadline = time.monotonic() + seconds
        try:
            run()
        except NotHere as reason:
            check.row(run.__name__, f"not made: {reason}")
        except Exception as error:
            check.row(run.__name__, f"FAILED: {type(error).__name__}: {error}"[:300])
            report.aims.append(Aim(f"{run.__name__} comes to an end (1 = yes)", 0, 1, ">="))
        if asked.json:
            report.write(asked.json)
    report.show(["check", "result", "figure", "unit"])
    if asked.json:
        report.write(asked.json)


if __name__ == "__main__":
    main()
