"""The Grid Engine adapter.

Read `adapter` first: `SgeScheduler` runs qsub, qstat, qacct, qdel, qmod and qhost. `submit` builds the job
script with its `#$` options. `listing` parses what the programs print. `views` merges the tasks or accounting
records of an attempt into a JobView. `states` maps Grid Engine's states, `failed` codes and error messages to
ours.
"""
