"""The formats of messages. Nothing here reads a clock, a file or the network."""
