"""``python -m omni_actors``: the same as the console script ``omni-actors``."""

from omni_actors.entrypoints.cli import main

if __name__ == "__main__":
    main()
