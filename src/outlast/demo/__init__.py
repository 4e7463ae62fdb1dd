"""The steps of `outlast demo`; its output is in `outlast.cli.commands.demo`.

setup        a temporary directory with an experiment, an environment and a local cluster
undisturbed  the training run without any interruption
trouble      kills an attempt without warning, and truncates a checkpoint
compare      compares the results of both training runs
"""
