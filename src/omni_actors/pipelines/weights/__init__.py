"""The place of a checkpoint's files on this machine, and checks that the files are whole."""
