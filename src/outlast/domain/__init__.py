"""The pure core: no clock, no file, no randomness that was not handed in."""
