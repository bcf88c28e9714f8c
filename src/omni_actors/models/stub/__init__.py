"""A pipeline without a model, for the control plane's benchmark and for tests of faults."""
