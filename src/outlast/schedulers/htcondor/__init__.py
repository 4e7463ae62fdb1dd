"""The HTCondor adapter.

Read `adapter` first: `HTCondorScheduler` talks to the schedd through `worker`, a process of its own for each
request. `submit` builds submit descriptions. `job_event_log` reads HTCondor's event log, and `job_history`
folds the events of a job. `listing` parses the ads of queue and history. `views` chooses between log and ads
and returns JobViews. `states` maps job states, removals and submissions to ours, and `holds` explains holds.
"""
