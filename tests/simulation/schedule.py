"""What is varied: the requests of a run and the faults that befall it. A schedule and its seed determine the run."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from .deployments import DEPLOYMENTS, PIPELINE

SHAPES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("chat", ("text",)),
    ("chat", ("audio",)),
    ("chat", ("text", "audio")),
    ("chat", ("text", "audio", "image")),
    ("chat", ("image",)),
    ("describe", ("text",)),
    ("describe", ("text", "audio")),
    ("stream", ("audio",)),
    ("stream", ("audio",)),
    ("draw", ("image",)),
    ("draw", ("image",)),
)
"""Tasks with the outputs that are wanted of them."""

STAGES = tuple(stage.name for stage in PIPELINE.stages)

HABITS = (
    "reads",
    "slow",  # pauses after each event
    "deaf",  # receives nothing, and leaves after a while
    "leaves",  # after some events
    "gone",  # at some time
    "never",  # as soon as it is admitted
    "hurry",  # with a deadline of its own
)

TROUBLES = (
    "",
    "refuse",  # admit refuses it: the client's mistake
    "admit",  # admit raises
    "feed",  # feed raises
    "fail",  # the stage gives up on it
    "memory",  # it is out of memory with it
    "unsendable",  # its output has no encoding
    "early",  # the stage ends before its input does
    "crash",  # the worker dies on it, once
    "poison",  # the worker dies on it, whenever it meets it
    "bug",  # step raises, whenever it meets it
)

FAULTS = (
    "kill",  # between two turns
    "kill_writing",  # between two writes of one turn
    "kill_partial",  # in the midst of a frame
    "kill_loading",  # the next life ends before it is ready
    "kill_restart",  # the next life ends soon after
    "stall",  # a step takes long
    "freeze",  # a step takes longer than anybody should wait
    "lag",  # what it reports arrives later than what it tells its peers
    "garbage",  # it sends what is no frame
    "no_start",  # the next spawn fails
    "no_load",  # the next life cannot load
    "no_ready",  # the next life loads for ever
    "deaf_stop",  # it does not listen to stop, nor to SIGTERM
    "leap",  # the whole machine stands still for a while
    "stale",  # words about requests that nobody knows (any more)
    "unlink",  # a link breaks while both its ends live
    "mangle",  # a link carries what is no frame
    "ask",  # a question to it
    "drain",  # an operator lets it take nothing new, for a while
    "replace",  # an operator gives it another worker
    "restart",  # an operator gives its stage, or all, other workers
    "kill_command",  # an operator kills it
)


class Load(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request. ``at`` and ``amount`` are milliseconds or events, whichever the habit needs."""

    at: int = 0
    shape: int = 0
    tokens: int = 1
    habit: str = "reads"
    amount: int = 0
    trouble: str = ""
    where: int = 0
    big: bool = False
    choices: int = 1
    tenant: str = ""
    priority: int = 0

    @property
    def task(self) -> str:
        return SHAPES[self.shape][0]

    @property
    def most_bytes(self) -> int:
        """Of output that may wait for its client, as the sink counts."""
        text = self.tokens * self.choices * 80 if "text" in self.outputs else 0
        return text + (12 * (self.tokens + 4) if "audio" in self.outputs else 0)

    @property
    def outputs(self) -> tuple[str, ...]:
        return SHAPES[self.shape][1]


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    at: int = 0
    kind: str = "kill"
    stage: int = 0
    replica: int = 0
    amount: int = 0


class Schedule(msgspec.Struct, frozen=True, omit_defaults=True):
    """``end`` says how the deployment is ended: when all is done (0), or so many milliseconds after the start."""

    seed: int = 0
    deployment: int = 0
    loads: tuple[Load, ...] = ()
    faults: tuple[Fault, ...] = ()
    end: int = 0


LOADS = st.builds(
    Load,
    at=st.integers(0, 500),
    shape=st.integers(0, len(SHAPES) - 1),
    tokens=st.integers(1, 10),
    habit=st.sampled_from((*["reads"] * 9, *HABITS)),
    amount=st.integers(0, 400),
    trouble=st.sampled_from((*[""] * 16, *TROUBLES)),
    where=st.integers(0, len(STAGES) - 1),
    big=st.sampled_from((False, False, False, True)),
    choices=st.sampled_from((1, 1, 2)),
    tenant=st.sampled_from(("", "a", "a", "b")),
    priority=st.integers(0, 2),
)

FAULT_EVENTS = st.builds(
    Fault,
    at=st.integers(0, 700),
    kind=st.sampled_from(FAULTS),
    stage=st.integers(0, len(STAGES) - 1),
    replica=st.integers(0, 1),
    amount=st.integers(0, 400),
)

SCHEDULES = st.builds(
    Schedule,
    seed=st.integers(0, 2**32 - 1),
    deployment=st.integers(0, len(DEPLOYMENTS) - 1),
    loads=st.lists(LOADS, min_size=1, max_size=10).map(tuple),
    faults=st.lists(FAULT_EVENTS, max_size=6).map(tuple),
    end=st.sampled_from((0, 0, 0, 0, 0, 0, 200, 600)),
)

DRAWING = st.builds(
    Schedule,
    seed=st.integers(0, 2**32 - 1),
    deployment=st.sampled_from((0, 4)),
    loads=st.lists(
        st.builds(
            Load,
            at=st.integers(0, 60),
            shape=st.just(SHAPES.index(("draw", ("image",)))),
            tokens=st.integers(4, 10),
            choices=st.sampled_from((1, 2, 3)),
            habit=st.sampled_from(("reads", "slow")),
            amount=st.integers(0, 400),
        ),
        min_size=2,
        max_size=6,
    ).map(tuple),
    faults=st.lists(
        st.builds(
            Fault,
            at=st.integers(20, 200),
            kind=st.sampled_from(("kill", "kill_writing", "kill_partial")),
            stage=st.sampled_from((STAGES.index("denoiser"), STAGES.index("easel"))),
            replica=st.integers(0, 1),
            amount=st.integers(0, 400),
        ),
        min_size=1,
        max_size=4,
    ).map(tuple),
)
"""Pictures alone, and deaths of the workers that make them."""
