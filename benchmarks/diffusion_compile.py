"""Compiled blocks of diffusion: the time of compiling, the rate afterwards, and the difference to eager blocks.

    python benchmarks/diffusion_compile.py [--quick] [--json FILE] [--family digits]

Pictures are made in the real engine, eight at a time, with eager blocks and with compiled ones. Loading compiles for
the warm-up's shape and the first pictures for theirs; the rate is that of pictures of shapes that are known, in
denoising steps per second of one processor thread. The difference is the largest of the pixels, in levels of 255.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from diffusion_cache import AT_ONCE, Made, Model, engine_of, make, models
from report import Aim, Report, arguments


def measured(model: Model, count: int, compiled: bool) -> tuple[dict[str, Any], Made]:
    """Return the figures of a model, and the pictures behind them."""
    begun = time.perf_counter()
    engine = engine_of(model, compile=compiled)
    loading = time.perf_counter() - begun
    begun = time.perf_counter()
    make(engine, model, AT_ONCE, {})
    first = time.perf_counter() - begun
    made = make(engine, model, count, {})
    found = {"load s": loading, "first pictures s": first, "steps/s": made.rate}
    return {**found, "compilations": engine.counters().get("compilations_total", 0)}, made


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--family", default="sd3", help="one of digits, sd3")
    parser.add_argument("--pictures", type=int, default=80, help="pictures of each measurement")
    args = parser.parse_args()
    torch.set_num_threads(1)
    report = Report("Compiled blocks")
    for model in models(args.family):
        count = 16 if args.quick else args.pictures
        eager, plain = measured(model, count, compiled=False)
        row, made = measured(model, count, compiled=True)
        apart = max(int(np.abs(a.astype(int) - b).max()) for a, b in zip(made.pixels, plain.pixels, strict=True))
        report.rows.append({"model": model.name, "blocks": "eager", **eager, "ratio": 1.0})
        report.rows.append({"model": model.name, "blocks": "compiled", **row, "ratio": made.rate / plain.rate})
        report.aims.append(Aim(f"{model.name}: largest difference of a pixel", apart, 1, "<="))
    report.show()
    if args.json:
        report.write(args.json)


if __name__ == "__main__":
    main()
