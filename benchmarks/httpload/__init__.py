"""The servers that ``http_servers.py`` compares, and the load (``load.c``)."""
