"""Adapters to schedulers. `base` says what an adapter is; each other module is one."""
