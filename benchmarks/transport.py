"""The cost of a payload from one worker to another: put, handed over, seen, acknowledged, freed.

Two processes with the project's own links, as ``omni-actors bench transport`` runs them, 4 KiB to 64 MiB, contents
checked; memcpy of the same sizes in the same run. All are measured twice, some time apart, and the better pass counts,
ours and theirs: other load of the machine is not part of a transport. The peers hand a payload over and wait for an
acknowledgement in the same way, with two differences: theirs cross a multiprocessing pipe, and their consumer copies
the payload out of the segment, as their interface requires.

``--sglang-omni PYTHON SCRIPT`` and ``--vllm-omni PYTHON SCRIPT`` run a peer's relay or connector in the same run (a
script that prints JSON lines with ``mode``, ``bytes`` and ``put_get_ack``), and none of its processes may be left when
ours begins. Only figures of the same run are compared: a machine is not equally quick at all times. Figures recorded
once on a machine of this kind are shown beside them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from idle import machine_busy, run_alone
from omni_actors.connectors.measure import IN_PLACE, SIZES, WAYS, Measured, measure, memcpy
from omni_actors.entrypoints.bench.transport import size
from report import Aim, Report, arguments

RECORDED = {
    "vLLM-Omni shared memory, recorded": (388.6, 479.1, 2026.9, 8208.4, 27941.5, 199497.2),
    "SGLang-Omni relay, recorded": (242.7, 354.6, 1320.8, 12425.0, 28030.3, 79860.4),
}
"""p50 in microseconds by :data:`SIZES`, two processes; each the better of its kinds of payload."""


def peer(python: str, script: str) -> dict[int, float]:
    """Return the peer's p50 in seconds by size, two processes; the fastest kind of payload counts."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    output = run_alone([python, script], env=environment, cwd=Path(script).parent)
    found: dict[int, float] = {}
    for line in output.splitlines():
        row = json.loads(line) if line.startswith("{") else {}
        if row.get("mode") == "two processes":
            p50 = row["put_get_ack"]["p50_us"] / 1e6
            found[row["bytes"]] = min(p50, found.get(row["bytes"], p50))
    return found


def best(first: list[Measured], second: list[Measured]) -> list[Measured]:
    """Return the better of two passes by size: other load of the machine in one of them is not the transport's."""
    return [min(pair, key=lambda row: row.p50) for pair in zip(first, second, strict=True)]


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--sglang-omni", nargs=2, metavar=("PYTHON", "SCRIPT"), help="measure SGLang-Omni too")
    parser.add_argument("--vllm-omni", nargs=2, metavar=("PYTHON", "SCRIPT"), help="measure vLLM-Omni too")
    options = parser.parse_args()
    in_use = machine_busy()

    peers = {name: dict(zip(SIZES, (us / 1e6 for us in row), strict=True)) for name, row in RECORDED.items()}
    commands = {"SGLang-Omni relay": options.sglang_omni, "vLLM-Omni shared memory": options.vllm_omni}
    commands = {name: command for name, command in commands.items() if command}
    for name, command in commands.items():
        del peers[f"{name}, recorded"]
        peers[f"{name}, this run"] = peer(*command)
    copies = [memcpy(nbytes, quick=options.quick) for nbytes in SIZES]
    ours = {way: measure(way, quick=options.quick) for way in WAYS}
    if not options.quick:
        ours = {way: best(rows, measure(way)) for way, rows in ours.items()}
        copies = best(copies, [memcpy(nbytes) for nbytes in SIZES])
        for name, command in commands.items():
            first, second = peers[f"{name}, this run"], peer(*command)
            peers[f"{name}, this run"] = {nbytes: min(first[nbytes], second[nbytes]) for nbytes in first}

    report = Report("A payload from one process to another and its acknowledgement back")
    for row in [*(row for rows in ours.values() for row in rows), *copies]:
        report.rows.append(
            {
                "way": row.way if row.way == "memcpy" else f"omni-actors, {row.way}",
                "payload": size(row.nbytes),
                "p50 us": row.p50 * 1e6,
                "p99 us": row.p99 * 1e6,
                "GB/s": None if row.way == IN_PLACE else row.bandwidth / 1e9,  # nothing of it is moved
                "rounds": row.rounds,
            }
        )
    for name, times in peers.items():
        for nbytes, p50 in times.items():
            report.rows.append({"way": name, "payload": size(nbytes), "p50 us": p50 * 1e6, "GB/s": nbytes / p50 / 1e9})
    shared = {row.nbytes: row for row in ours[WAYS[0]]}
    report.aims = [Aim("round trip at 4 KiB, us", shared[4 << 10].p50 * 1e6, 60, "<=")]
    here = [times for name, times in peers.items() if name.endswith("this run")]
    for nbytes in (it for it in SIZES if it >= 1 << 20 and here):
        faster = min(times[nbytes] for times in here if nbytes in times)
        report.aims.append(Aim(f"times the faster peer at {size(nbytes)}", faster / shared[nbytes].p50, 5, ">="))
    share = shared[SIZES[-1]].bandwidth / copies[-1].bandwidth
    report.aims.append(Aim(f"share of memcpy bandwidth at {size(SIZES[-1])}", share, 0.8, ">="))
    report.notes = [f"cores in use by others before the run: {in_use:.2f}"]
    report.show()
    if options.json:
        report.write(options.json)


if __name__ == "__main__":
    main()
