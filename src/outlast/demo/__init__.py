"""What `outlast demo` does; the words it says are in `outlast.cli.commands.demo`.

stage        a place of its own, with an experiment, an environment and a local cluster
undisturbed  the training as it goes when nothing happens to it
trouble      an attempt killed without warning, a checkpoint torn
compare      whether both trainings came to the same weights
"""
