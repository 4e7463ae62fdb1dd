"""The Slurm adapter.

Read `adapter` first: `SlurmScheduler` runs sbatch, squeue, sacct, scancel, scontrol and sinfo. `submit`
builds the sbatch command and the batch script. `listing` parses squeue, sacct and sinfo into rows. `views`
merges the rows of a job into a JobView. `states` maps Slurm's states, reasons and error messages to ours.
"""
