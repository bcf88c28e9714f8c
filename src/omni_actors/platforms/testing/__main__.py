"""The command ``python -m omni_actors.platforms.testing cuda`` (or ``my_platform.platform:MyPlatform``), which prints a
line for each check.

The exit status is 0 if no check failed, 1 if one did, 2 if there is no such platform.
"""

from __future__ import annotations

import argparse
import sys
from pkgutil import resolve_name

from omni_actors.platforms.platform import OmniPlatform
from omni_actors.platforms.probe import BUILTINS
from omni_actors.platforms.testing.kit import DEADLINE_S, check_platform, failures


def main(arguments: list[str] | None = None) -> int:
    known = {"cpu": "omni_actors.platforms.cpu:CpuPlatform", **BUILTINS}
    parser = argparse.ArgumentParser(prog="python -m omni_actors.platforms.testing", description=__doc__)
    parser.add_argument("platform", help=f"module:Class, or one of {', '.join(known)}")
    parser.add_argument("--device", help="the device to examine (default: the platform's first)")
    parser.add_argument(
        "--deadline", type=float, default=DEADLINE_S, help="seconds for each half (default: %(default)g)"
    )
    asked = parser.parse_args(arguments)
    try:
        kind: type[OmniPlatform] = resolve_name(known.get(asked.platform, asked.platform))
    except (ImportError, AttributeError, ValueError) as error:
        parser.error(f"platform {asked.platform}: {error}")
    results = check_platform(kind, device=asked.device, deadline_s=asked.deadline)
    for result in results:
        print(result)
    return 1 if failures(results) else 0


if __name__ == "__main__":
    sys.exit(main())
