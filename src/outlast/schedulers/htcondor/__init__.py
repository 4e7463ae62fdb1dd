"""HTCondor: the adapter and its parts."""
