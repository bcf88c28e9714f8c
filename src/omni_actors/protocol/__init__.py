"""Wire-level facts that every package may import: msgspec structs, limits, and the typed error.

No module here does any work, opens anything or imports another package of the library.
"""
