"""A small scheduler of its own for one machine: queue, hosts, wall-time limits, kills.

A daemon per user, machine and cluster name is started on demand and leaves when it has been idle; jobs
survive both the client and the daemon. `client` is the side that asks, `daemon` the side that answers:

    client ··> main → daemon → server      sockets, requests and replies
                             → cluster     starts, watches and ends jobs: spawn, processes
                             → roster      knows all jobs: book (on disk), waiting, hosts

What the daemon imports is in every job's memory, because jobs are forked from it without an exec: the
standard library, `outlast.node` and this package, nothing else.
"""
