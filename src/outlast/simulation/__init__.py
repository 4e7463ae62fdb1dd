"""A simulator: the real controller against a simulated cluster in virtual time.

`simulate(seed)` draws a scenario (training runs, limits and fault rates), lets the controller, engine, policy
and fold that run real experiments work on it until all runs are over, and checks the promises on the result.
Everything follows from the seed, so a failing one can be run again::

    python -m outlast.simulation --seeds 0:10000 --jobs 2
    python -m outlast.simulation --seed 1234 -v
"""

from outlast.simulation.history import History, Violation
from outlast.simulation.scenario import Scenario, draw_scenario
from outlast.simulation.schedule import carry_out, simulate

__all__ = ["History", "Scenario", "Violation", "carry_out", "draw_scenario", "simulate"]
