"""The pure core: state, decisions and sums. Nothing here reads a clock, a file or a random number."""
