"""The cost of a token beside the network: choosing the token, and turning it into text.

    python benchmarks/token_path.py [--quick] [--json FILE]

CPU time of one thread, the best of several runs. Logits are random with the spread of a language model's (SmolLM2 on
prose leaves thousands of tokens above a nucleus's tail at temperature 1), vocabulary 49,152. Text goes through a
byte-level tokenizer with one token per byte, the most tokens that a text can have.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from omni_actors.platforms.cpu.kernels import KERNELS
from omni_actors.protocol.params import Sampling
from omni_actors.worker.engines.autoregressive.detokenize import NO_STOPS, StopStrings, TextStream, Vocabulary
from omni_actors.worker.engines.autoregressive.sampling import SamplingState, resolve, sample
from report import Aim, Report, arguments

VOCABULARY = 49_152
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.7},
    "top_k 50": {"top_k": 50},
    "top_p 0.9": {"top_p": 0.9},
    "min_p 0.05": {"min_p": 0.05},
    "top_k, top_p and min_p": {"top_k": 50, "top_p": 0.9, "min_p": 0.02},
    "greedy, penalties": {"temperature": 0.0, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    "greedy, 5 logprobs": {"temperature": 0.0, "logprobs": 5},
}
TEXT = "The café's cat — 😺 — sat.\n\nIt didn't move; why should it? " * 40


def cost(run: Callable[[], object], repeats: int) -> float:
    """Return the CPU microseconds of one run, the least of several."""
    run()
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        for _ in range(5):
            run()
        best = min(best, (time.process_time() - start) / 5)
    return best * 1e6


def sampling_rows(repeats: int) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    logits = torch.randn(32, VOCABULARY) * 1.8
    logits[:, ::1000] += 9.0
    rows = []
    for name, fields in SETTINGS.items():
        figures: dict[str, Any] = {"choosing": name}
        for batch in (1, 8, 32):
            choices = []
            for i in range(batch):
                choices.append(SamplingState(resolve(Sampling(seed=i, **fields)), stage="llm", prompt=range(200)))
                for token_id in range(0, 700, 7):
                    choices[-1].append(token_id)
            part = logits[:batch].clone()

            def run(part: torch.Tensor = part, choices: list[SamplingState] = choices) -> object:
                return sample(part, choices, lambda token_id: b"", KERNELS)

            figures[f"us/token, batch {batch}"] = cost(run, repeats) / batch
        rows.append(figures)
    return rows


def text_rows(repeats: int) -> list[dict[str, Any]]:
    alphabet = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(alphabet, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    vocabulary, ids = Vocabulary(tokenizer), tokenizer.encode(TEXT).ids
    stops = {"none": NO_STOPS, "4 that never match": StopStrings(["\n\nUser:", "###", "sat?", "It did not"])}
    rows = []
    for name, strings in stops.items():

        def run(strings: StopStrings = strings) -> None:
            stream = TextStream(vocabulary, stops=strings)
            if "".join([*map(stream.push, ids), stream.finish()]) != TEXT:
                raise AssertionError("the text differs from the encoded text")

        rows.append({"text, stop strings": name, "us/token": cost(run, repeats) / len(ids)})
    return rows


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    repeats = 3 if options.quick else 10
    choosing = Report("Choosing a token", sampling_rows(repeats))
    text = Report("Turning a token into text", text_rows(repeats))
    choosing.aims = [Aim("greedy, batch 32, us/token", choosing.rows[0]["us/token, batch 32"], 100, "<=")]
    text.aims = [Aim("no stop strings, us/token", text.rows[0]["us/token"], 2, "<=")]
    choosing.show()
    text.show()
    if options.json:
        Report("", choosing.rows + text.rows, choosing.aims + text.aims).write(options.json)


if __name__ == "__main__":
    main()
