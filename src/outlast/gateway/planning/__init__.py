"""From a request to a run, and from a failed run to the reason that its sender reads."""
