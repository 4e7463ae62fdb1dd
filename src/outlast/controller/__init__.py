"""The controller of an experiment: observe, decide, act.

`supervisor` makes passes under the lease, `controller` makes one pass, `dispatch` submits new attempts,
`submission` writes requests of commands, `inbox` holds them, `crashpoints` names places where tests kill the
controller.
"""
