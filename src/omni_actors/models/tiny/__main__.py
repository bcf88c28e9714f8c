"""``python -m omni_actors.models.tiny FAMILY FOLDER SEED``: the process of ``omni-actors models tiny``."""

from __future__ import annotations

import sys
from pathlib import Path

from omni_actors.models.tiny import build

if __name__ == "__main__":
    family, folder, seed = sys.argv[1:]
    build(family, Path(folder), seed=int(seed))
