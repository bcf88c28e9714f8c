"""The keys of a telephone and their two tones each (DTMF, ITU-T Q.23)."""

from __future__ import annotations

ROWS = (697, 770, 852, 941)
"""Hz of the lower tone, by row of the keypad."""
COLUMNS = (1209, 1336, 1477, 1633)
"""Hz of the higher tone, by column of the keypad."""

KEYPAD = ("123A", "456B", "789C", "*0#D")

CODES = {key: (row, column) for row, keys in enumerate(KEYPAD) for column, key in enumerate(keys)}
"""The row and column of each key."""

SILENT = " ,.-()/"
"""Characters between keys that make no sound."""
