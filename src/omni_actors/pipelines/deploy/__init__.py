"""What a deployment may set: the schema of a deploy file and ``--set``, and the reading of both."""
