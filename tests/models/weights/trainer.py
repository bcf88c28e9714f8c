"""A stand-in for a training, under the rules of :mod:`omni_actors.models.digits`: steps without a model.

The folder of the text encoder says how: a file ``fail`` ends the training with an error after two steps, and a file
``wait`` lets it wait for ever after two steps. Kept state is the number of the last step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    encoder, folder, state = (Path(asked[name]) for name in ("encoder", "folder", "state"))
    state.mkdir(parents=True, exist_ok=True)
    kept = state / "step"
    first = int(kept.read_text()) if kept.exists() else 0
    for step in range(first + 1, asked["steps"] + 1):
        kept.write_text(str(step))
        print(json.dumps({"step": step, "steps": asked["steps"], "loss": 1 / step, "left_s": 200.0}), flush=True)
        if step == 2 and (encoder / "fail").exists():
            raise SystemExit("no digits in sight")
        while step == 2 and (encoder / "wait").exists() and os.getppid() == asked["parent"]:
            time.sleep(0.02)
        if os.getppid() != asked["parent"]:
            os._exit(1)
    folder.mkdir(parents=True)
    (folder / "model_index.json").write_text(json.dumps({"first": first}))


if __name__ == "__main__":
    main()
