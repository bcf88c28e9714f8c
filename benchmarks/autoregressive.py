"""The speed of the autoregressive engine, beside transformers' own ``generate`` in the same process.

Prompts of mixed length, a fixed number of new tokens each, greedy, on the demo's language model. At each concurrency
the engine, ``generate`` one by one and ``generate`` as one padded batch take turns; the best turn counts, since
disturbances on a shared machine only ever slow a run. TTFT is the mean time to a request's first token when all
requests arrive at once.

The bound: a decode step must read every weight once. The memory bandwidth is measured here, and a profile of some steps
shows the rest of a step's time.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from omni_actors.models.weights import demo_folder, pull
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello
from omni_actors.protocol.params import Prompt, Sampling
from omni_actors.protocol.request import TextDelta
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.autoregressive import AutoregressiveEngine
from report import Aim, Report, arguments

AIM = 1.2
PROMPT_TOKENS = (16, 48)
PUBLISHED = {("float32", 1): 17.8, ("float32", 8): 103, ("float32", 32): 224}
PUBLISHED |= {("bfloat16", 1): 26, ("bfloat16", 8): 159, ("bfloat16", 32): 384}
"""Tokens/s of padded ``generate``, measured once on two cores with two threads and 64 tokens."""

PARTS = {
    "weights": ("linear", "addmm", "aten::mm"),
    "attention": ("bmm", "softmax", "index_select", "index_copy", "scaled_dot", "aten::cat"),
    "sampling": ("aten::max", "aten::isfinite"),
}
"""Which part of a step an operator belongs to, by what its name contains. Any other is glue (norms, rotation, …); what
no operator accounts for is ``outside`` (Python, mostly)."""


@dataclass
class Outcome:
    seconds: float
    first_tokens: list[float]


@dataclass
class Clock:
    """An Outbox that notes the time of each request's first token."""

    start: float = field(default_factory=time.perf_counter)
    firsts: dict[int, float] = field(default_factory=dict)

    def ready(self, key: int) -> bool:
        return True

    def text(self, delta: TextDelta) -> None:
        self.firsts.setdefault(delta.key, time.perf_counter() - self.start)

    def finish(self, key: int, usage: Any) -> None:
        pass


def read_bandwidth() -> float:
    """Return the bytes per second that this process reads from memory, with all its threads."""
    buffer = torch.ones(128 << 20)
    best = min(timed(buffer.sum) for _ in range(8))
    return float(buffer.numel() * buffer.element_size() / best)


def timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def make_engine(folder: str, dtype: str, threads: int) -> AutoregressiveEngine:
    engine = AutoregressiveEngine(
        Hello(
            version=PROTOCOL_VERSION,
            stage="llm",
            replica=0,
            incarnation=1,
            engine="omni_actors.worker.engines.autoregressive:AutoregressiveEngine",
            adapter="omni_actors.models.causal_lm.adapter:CausalLM",
            model=folder,
            dtype=dtype,
            threads=threads,
            options={"prefix_cache": False},
        )
    )
    engine.load(lambda text, fraction: None)
    return engine


def admit(engine: AutoregressiveEngine, prompts: list[list[int]], tokens: int) -> None:
    for key, prompt in enumerate(prompts):
        sampling = Sampling(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        params = {"prompt": Prompt(token_ids=prompt), "sampling": sampling}
        engine.admit(Work(key, str(key), params, visible=True))


def run_engine(engine: AutoregressiveEngine, prompts: list[list[int]], tokens: int) -> Outcome:
    out: Any = Clock()
    admit(engine, prompts, tokens)
    while engine.runnable:
        engine.step(out)
    return Outcome(time.perf_counter() - out.start, list(out.firsts.values()))


def run_generate(model: Any, prompts: list[list[int]], tokens: int) -> Outcome:
    """Run one left-padded batch; the first token's time is that of a call for one token."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])

    def generate(count: int) -> None:
        out = model.generate(ids, attention_mask=mask, max_new_tokens=count, do_sample=False)
        assert out.shape[1] == width + count

    first = timed(lambda: generate(1))
    return Outcome(timed(lambda: generate(tokens)), [first] * len(prompts))


def step_profile(engine: AutoregressiveEngine, prompts: list[list[int]]) -> tuple[float, dict[str, float]]:
    """Return the seconds of a decode step, and the shares of its parts."""
    steps = 12
    out: Any = Clock()
    admit(engine, prompts, 200)
    while len(out.firsts) < len(prompts):
        engine.step(out)
    engine.step(out)
    seconds = min(timed(lambda: engine.step(out)) for _ in range(steps))
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        whole = timed(lambda: [engine.step(out) for _ in range(steps)])
    shares = dict.fromkeys((*PARTS, "glue"), 0.0)
    for event in profiler.key_averages():
        part = next((p for p, names in PARTS.items() if any(n in event.key for n in names)), "glue")
        shares[part] += event.self_cpu_time_total * 1e-6 / whole
    shares["outside"] = max(0.0, 1 - sum(shares.values()))
    for key in range(len(prompts)):
        engine.abort(key)
    return seconds, shares


def measure(dtype: str, options: argparse.Namespace, folder: str, report: Report) -> None:
    engine = make_engine(folder, dtype, options.threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    rng = random.Random(0)
    for concurrency in options.concurrency:
        prompts = [
            [rng.randrange(1000, 40_000) for _ in range(rng.randint(*PROMPT_TOKENS))] for _ in range(concurrency)
        ]
        alone = prompts[:2]
        runs: dict[str, list[tuple[float, Outcome]]] = {"engine": [], "one by one": [], "padded": []}
        for _ in range(options.repeats):
            for name, batches in (("engine", [prompts]), ("one by one", [[p] for p in alone]), ("padded", [prompts])):
                run = partial(run_engine, engine) if name == "engine" else partial(run_generate, model)
                outcomes = [run(batch, options.tokens) for batch in batches]
                rate = sum(map(len, batches)) * options.tokens / sum(o.seconds for o in outcomes)
                runs[name].append((rate, outcomes[0]))
        best = {name: max(rate for rate, _ in each) for name, each in runs.items()}
        ttft = {name: min(sum(o.first_tokens) / len(o.first_tokens) for _, o in each) for name, each in runs.items()}
        seconds, shares = step_profile(engine, prompts)
        bound = weights / read_bandwidth()
        report.rows.append(
            {
                "dtype": dtype,
                "at once": concurrency,
                "tok/s": best["engine"],
                "one by one": best["one by one"],
                "padded": best["padded"],
                "times": best["engine"] / best["padded"],
                "TTFT ms": 1e3 * ttft["engine"],
                "padded TTFT": 1e3 * ttft["padded"],
                "step ms": 1e3 * seconds,
                "bound ms": 1e3 * bound,
                "bound/step": bound / seconds,
                **{f"{part} %": 100 * share for part, share in shares.items()},
            }
        )
        name = f"{dtype}, concurrency {concurrency}: tokens/s, times padded generate's"
        report.aims.append(Aim(name, best["engine"] / best["padded"], AIM, ">="))
    engine.close()


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    threads = torch.get_num_threads()
    parser.add_argument("--threads", type=int, default=threads, help=f"torch threads (default: {threads})")
    parser.add_argument("--tokens", type=int, help="new tokens per request (default 64; quick: 16)")
    parser.add_argument("--concurrency", type=int, nargs="+", help="(default 1 8 32; quick: 1 8)")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--repeats", type=int, help="turns of each contestant (default 3; quick: 1)")
    options = parser.parse_args()
    options.tokens = options.tokens or (16 if options.quick else 64)
    options.concurrency = options.concurrency or ([1, 8] if options.quick else [1, 8, 32])
    options.repeats = options.repeats or (1 if options.quick else 3)
    transformers_logging.disable_progress_bar()
    pull(("demo/llm",))
    torch.set_num_threads(options.threads)
    report = Report(f"SmolLM2-135M, {options.tokens} tokens each, greedy, {options.threads} torch threads")
    for dtype in options.dtypes:
        measure(dtype, options, str(demo_folder() / "llm"), report)
        gc.collect()  # the models of this dtype
    parts = ", ".join((*PARTS, "glue", "outside"))
    report.notes += [f"a decode step's parts in percent ({parts}):"]
    report.notes += [
        f"  {row['dtype']} at {row['at once']}: "
        + ", ".join(f"{value:.0f}" for name, value in row.items() if name.endswith(" %"))
        for row in report.rows
    ]
    report.notes += [
        "one by one, padded: tokens/s of transformers' generate. times: tok/s over padded.",
        "bound: one read of the weights at the bandwidth measured here.",
        "padded, measured once on two cores with two threads and 64 tokens: "
        + ", ".join(f"{dtype} at {count}: {rate:g}" for (dtype, count), rate in PUBLISHED.items()),
    ]
    report.show([name for name in report.rows[0] if not name.endswith(" %")])
    if options.json:
        report.write(options.json)


if __name__ == "__main__":
    main()
