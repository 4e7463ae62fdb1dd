"""The node program, which runs on the compute node: standard library only, Python 3.8 or later, no imports
from outside `node/`."""
