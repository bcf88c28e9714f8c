"""What ``http_servers.py`` runs: the servers that it compares, and the load (``load.c``)."""
