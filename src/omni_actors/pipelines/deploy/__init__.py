"""The settings of a deployment: the schema of deploy files and ``--set``, and their reading."""
