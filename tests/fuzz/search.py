"""Two ways through a target's inputs: blind and seeded, or led by coverage (Atheris, libFuzzer)."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.fuzz.target import One, Target

Found = Callable[[bytes, Exception], None]

_EDGES = (b"\x00", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", b"0", b"-1", b"\r\n", b'"')


def mutated(dice: random.Random, corpus: Sequence[bytes], words: Sequence[bytes], most: int) -> bytes:
    """An input made of one or two of the corpus."""
    data = bytearray(dice.choice(corpus))
    for _ in range(1 << dice.randrange(5)):
        at = dice.randrange(len(data) + 1)
        end = min(len(data), at + (1 << dice.randrange(7)))
        match dice.randrange(8):
            case 0:
                data[at : at + 1] = bytes([dice.randrange(256)])
            case 1 if at < len(data):
                data[at] ^= 1 << dice.randrange(8)
            case 2:
                del data[at:end]
            case 3:
                data[at:at] = data[at:end] * dice.choice((1, 1, 2, 7, 60))
            case 4:
                data[at : end if dice.random() < 0.5 else at] = dice.choice((*words, *_EDGES))
            case 5:
                other = dice.choice(corpus)
                begin = dice.randrange(len(other) + 1)
                data[at:end] = other[begin : begin + (1 << dice.randrange(8))]
            case 6:
                other = dice.choice(corpus)
                data[at:] = other[dice.randrange(len(other) + 1) :]
            case _ if data:
                at = dice.randrange(len(data))
                data[at] = (data[at] + dice.randrange(-8, 9)) % 256
    return bytes(data[:most])


def blind(target: Target, one: One, seconds: float, seed: int, found: Found, most: int | None = None) -> int:
    """Run every seed, however long that takes, then mutations of the seeds and of each other until the time is over,
    but at most ``most`` inputs in all; the same inputs for the same ``seed``. Return how many inputs were run."""
    dice = random.Random(seed)
    corpus = list(target.seeds())
    end = time.monotonic() + seconds
    runs = 0
    fresh = list(corpus)
    while (fresh or time.monotonic() < end) and (most is None or runs < most):
        data = fresh.pop() if fresh else mutated(dice, corpus, target.words, target.most)
        try:
            one(data)
        except Exception as error:
            found(data, error)
        runs += 1
        if dice.random() < 0.02:  # a walk away from the seeds
            corpus.append(data)
    return runs


def guided(target: Target, one: One, seconds: float, seed: int, found: Found, folder: Path) -> None:
    """The same, led to what covers new code. Does not return: libFuzzer ends the process."""
    import atheris

    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for number, data in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(data)
    words = folder / "words"
    words.write_text("".join('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in target.words))

    def run(data: bytes) -> None:
        try:
            one(data)
        except Exception as error:
            found(data, error)

    flags = {
        "seed": seed + 1,  # 0 would be drawn
        "max_total_time": max(1, round(seconds)),
        "max_len": target.most,
        "dict": words,
        "artifact_prefix": f"{folder}{os.sep}died-",
        "timeout": 60,
        "rss_limit_mb": 4096,
        "print_final_stats": 1,
        "verbosity": 1,
    }
    given = [f"-{name}={value}" for name, value in flags.items() if not (name == "dict" and not target.words)]
    atheris.Setup([sys.argv[0], *given, str(corpus)], run)
    atheris.Fuzz()
