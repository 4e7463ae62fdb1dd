"""The web application: log-in, tokens, and requests to it."""
