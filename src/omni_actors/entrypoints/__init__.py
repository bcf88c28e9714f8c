"""The ways to reach a deployment: command line, Python, HTTP."""
