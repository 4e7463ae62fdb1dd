"""The cause of a failed training: `failure` decides by the log and by what the kernel reports (`oom`).

`log_tracebacks` parses the tracebacks of one or several processes, `launcher_log` the reports of launchers.
`usage` measures what it uses.
"""
