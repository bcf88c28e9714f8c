"""Where a checkpoint's files lie on this machine, and whether they are whole."""
