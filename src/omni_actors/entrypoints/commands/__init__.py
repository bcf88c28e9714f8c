"""One file per command of the shell."""
