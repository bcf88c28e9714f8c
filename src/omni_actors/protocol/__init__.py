"""Wire-level facts that every room may import: msgspec structs, their limits, and the typed error.

Nothing here does any work, opens anything or imports another room of the package.
"""
