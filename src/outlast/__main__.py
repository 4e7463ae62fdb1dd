"""`python -m outlast`."""

from outlast.cli import main

main()
