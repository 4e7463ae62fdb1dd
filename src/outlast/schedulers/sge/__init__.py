"""Grid Engine: the adapter and its parts."""
