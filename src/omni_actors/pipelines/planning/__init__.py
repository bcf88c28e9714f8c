"""The steps by which a pipeline, a model's folder and settings become a plan."""
