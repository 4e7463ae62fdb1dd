"""Observe, decide, act: the loop over an experiment, and the requests it takes."""
