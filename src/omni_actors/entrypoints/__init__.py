"""How the outside reaches a deployment: command line, Python, HTTP."""
