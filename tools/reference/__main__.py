"""Write the reference pages: ``python -m tools.reference``."""

from __future__ import annotations

from tools.reference.pages import FOLDER, PAGES

if __name__ == "__main__":
    for name, make in PAGES.items():
        (FOLDER / name).write_text(make())
