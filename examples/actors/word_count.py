"""Count words in two supervised processes, and survive a text that kills its reader.

python examples/actors/word_count.py
"""

import itertools
import os
from functools import partial
from pathlib import Path
from typing import Any

import trio

from omni_actors.actors import (
    Actor,
    ActorCrashed,
    ActorRef,
    ProcessActor,
    Refusal,
    Restarts,
    open_launcher,
    open_supervisor,
)

ENV = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}


class Desk(Actor[str]):
    """Gives each text to the next counter, and once more to another counter if the first one crashes."""

    def __init__(self, counters: list[ActorRef[str]]) -> None:
        self.counters = counters
        self.turns = itertools.cycle(counters)
        self.crashes = 0

    async def setup(self) -> None:
        for counter in self.counters:
            counter.watch(self.ref)
            await counter.wait_ready()

    async def receive(self, text: str) -> int:
        for _ in range(2):
            try:
                words: int = await next(self.turns).ask(text, within=5)
                return words
            except ActorCrashed:
                continue
        raise Refusal(f"no counter survives {text!r}")

    async def on_signal(self, key: Any, value: Any) -> None:  # ("down", name of the counter) and a Down
        self.crashes += value.error is not None
        print(f"{value.ref.name} crashed; crashes so far: {self.crashes}")


async def main() -> None:
    async with open_launcher() as launcher, open_supervisor("word-count") as root:
        pool = root.supervisor("counters", restarts=Restarts(limit=None, first_s=0.1))
        process = partial(ProcessActor, launcher, "counting:Counter", answer_type=int, env=ENV)
        counters = [pool.start(process, name=f"counter-{index}") for index in range(2)]
        desk = root.start(lambda: Desk(counters), name="desk")
        await desk.wait_ready()
        print(root.tree())

        print(await desk.ask("the quick brown fox", within=30), "words")
        try:
            await desk.ask("a text to crash on", within=30)
        except Refusal as refusal:
            print("refused:", refusal)
        for counter in counters:
            await counter.wait_ready()  # the supervisor has started a new process
        print(await desk.ask("still counting", within=30), "words")


if __name__ == "__main__":
    trio.run(main)
