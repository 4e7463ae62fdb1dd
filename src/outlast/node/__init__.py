"""What runs on the compute node: standard library only, Python 3.8 or later, nothing from outside `node/`."""
