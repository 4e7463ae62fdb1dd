"""The commands of `outlast gateway`: one module per command, imported when the command is called."""
