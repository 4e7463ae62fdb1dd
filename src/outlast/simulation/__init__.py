"""A cluster that exists only in virtual time, and the real controller at work on it.

`simulate(seed)` draws a scenario (trainings, limits, and what goes wrong how often), lets the same
controller, engine, policy and fold that run real experiments bring its runs to their end, and checks the
promises on what came out. Everything follows from the seed, so a failing one can be run again::

    python -m outlast.simulation --seeds 0:10000 --jobs 2
    python -m outlast.simulation --seed 1234 -v
"""

from outlast.simulation.history import History, Violation
from outlast.simulation.scenario import Scenario, draw_scenario
from outlast.simulation.schedule import carry_out, simulate

__all__ = ["History", "Scenario", "Violation", "carry_out", "draw_scenario", "simulate"]
