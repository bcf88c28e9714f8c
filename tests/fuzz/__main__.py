"""``python -m tests.fuzz TARGET --seconds N --seed S`` fuzzes one target; without a target it lists them.

The inputs run in a child process, so that also its death (a decoder's segmentation fault) and its standing still are
findings. It is led by coverage where Atheris is installed (x86-64 Linux); ``--engine blind`` does without, and draws
the same inputs for the same seed. Each finding is printed once per place where it was raised, with its input and the
command that runs that again (``--replay HEX``). The exit status is 1 when there was any.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import mmap
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

STILL_S = 90.0
"""A child that begins no new input for so long stands still."""
LOAD_S = 900.0
"""Until its first input: on a busy machine it takes minutes to load what it looks at, each line made to be counted."""

_ROOM = 1 << 20
_INSTRUMENTED = ["omni_actors", "websockets", "werkzeug.sansio", "werkzeug.http", "yaml", "h11"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", nargs="?")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=("guided", "blind"))
    parser.add_argument("--replay", metavar="HEX", help="one input, or @FILE with its bytes")
    parser.add_argument("--in", dest="folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    engine = given.engine or ("guided" if importlib.util.find_spec("atheris") else "blind")
    if given.folder is not None:
        return _child(given.target, given.seconds, given.seed, engine, given.folder)
    from tests.fuzz.targets import TARGETS

    if given.target is None:
        for target in TARGETS.values():
            print(f"{target.name:12} may raise: {target.may}")
        return 0
    if given.target not in TARGETS:
        parser.error(f"no such target; there are: {', '.join(TARGETS)}")
    if given.replay is not None:
        named = given.replay.startswith("@")
        data = Path(given.replay[1:]).read_bytes() if named else bytes.fromhex(given.replay)
        with TARGETS[given.target].opened() as one:
            one(data)
        return 0
    return _parent(given.target, given.seconds, given.seed, engine)


def _parent(name: str, seconds: float, seed: int, engine: str) -> int:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as made:
        folder = Path(made)
        last = folder / "last"
        last.write_bytes(bytes(_ROOM))
        command = [sys.executable, "-m", "tests.fuzz", name, "--engine", engine, "--in", made]
        command += ["--seconds", str(seconds), "--seed", str(seed)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said = folder / "said"
        with said.open("w") as sink:
            still = _copy(child, last, sink)
        output = said.read_text(errors="replace")
        runs, data = _noted(last)
        findings = len(list(folder.glob("finding-*")))
        print("".join((folder / it.name).read_text() for it in sorted(folder.glob("finding-*"))), end="")
        if still or child.returncode not in (0, 1):
            findings += 1
            why = f"stood still for {STILL_S if runs else LOAD_S:g} s" if still else f"ended with {child.returncode}"
            print(output[-4000:])
            print(f"FINDING: the process {why} at\n  {_replay(name, data)}\n")
        print(f"{name}: {runs} inputs in {seconds:g} s ({engine}, seed {seed}), {findings} finding(s)")
        return 1 if findings else 0


def _copy(child: subprocess.Popen[str], last: Path, sink: object) -> bool:
    """Wait for the child. Whether it stood still, and was killed."""
    assert child.stdout is not None
    os.set_blocking(child.stdout.fileno(), False)
    before, since = -1, time.monotonic()
    while child.poll() is None:
        with contextlib.suppress(OSError, TypeError):
            if part := child.stdout.read():
                sink.write(part)  # type: ignore[attr-defined]
        runs, _ = _noted(last)
        if runs != before:
            before, since = runs, time.monotonic()
        elif time.monotonic() - since > (STILL_S if runs else LOAD_S):
            child.send_signal(signal.SIGABRT)  # its stacks tell where
            time.sleep(2)
            child.kill()
            child.wait()
            return True
        time.sleep(0.2)
    with contextlib.suppress(OSError, TypeError):
        sink.write(child.stdout.read() or "")  # type: ignore[attr-defined]
    child.stdout.close()
    return False


def _noted(last: Path) -> tuple[int, bytes]:
    data = last.read_bytes()
    size = int.from_bytes(data[8:16], "little")
    return int.from_bytes(data[:8], "little"), data[16 : 16 + size]


def _replay(name: str, data: bytes) -> str:
    return f"python -m tests.fuzz {name} --replay {data.hex() or chr(39) * 2}"


def _child(name: str, seconds: float, seed: int, engine: str, folder: Path) -> int:
    import faulthandler

    faulthandler.enable()
    if engine == "guided":
        import atheris

        with atheris.instrument_imports(include=_INSTRUMENTED):
            from tests.fuzz.targets import TARGETS
    else:
        from tests.fuzz.targets import TARGETS
    from tests.fuzz.search import blind, guided

    target = TARGETS[name]
    places: set[str] = set()
    with (folder / "last").open("r+b") as file:
        note = mmap.mmap(file.fileno(), _ROOM)
    runs = 0

    def found(data: bytes, error: Exception) -> None:
        place = _place(error)
        if place in places or len(places) > 50:
            return
        places.add(place)
        text = "".join(traceback.format_exception(error))[-4000:]
        (folder / f"finding-{len(places):03}").write_text(f"FINDING: {place}\n{text}  {_replay(name, data)}\n\n")

    with target.opened() as raw:

        def one(data: bytes) -> None:
            nonlocal runs
            runs += 1
            note[8:16] = len(data).to_bytes(8, "little")
            note[16 : 16 + len(data)] = data
            note[:8] = runs.to_bytes(8, "little")
            raw(data)

        if engine == "guided":
            guided(target, one, seconds, seed, found, folder)
        blind(target, one, seconds, seed, found)
    return 0


def _place(error: BaseException) -> str:
    """What was raised, and the innermost line of this project that it came through."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    lines = [it for it in traceback.extract_tb(error.__traceback__) if "omni_actors" in it.filename]
    lines = lines or list(traceback.extract_tb(error.__traceback__))
    where = f"{Path(lines[-1].filename).name}:{lines[-1].lineno}" if lines else "nowhere"
    said = re.sub(r"[0-9]+", "N", str(error))[:60] if isinstance(error, AssertionError) else ""
    return f"{type(error).__name__} at {where} {said}".rstrip()


if __name__ == "__main__":
    raise SystemExit(main())
