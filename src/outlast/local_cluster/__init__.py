"""A small scheduler for one machine: queue, hosts, wall-time limits, kills.

One daemon per user, machine and cluster name is started on demand and exits when it has been idle; jobs
survive both the client and the daemon. `client` sends requests, `daemon` handles them:

    client ··> daemon_main → daemon → server      connections, requests and replies (messages)
                                    → cluster     starts, watches and ends jobs (spawn, processes)
                                    → job_table   all jobs (job, queue, hosts), also on disk (job_log)

`directory` is where a cluster keeps its files; `fingerprint` shows whether a daemon runs the code on disk.
Jobs are forked from the daemon without an exec, so each has in memory what the daemon imports: the standard
library, `outlast.node` and this package, nothing else.
"""
