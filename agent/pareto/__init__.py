"""Pareto sweeps: every engine, precision, layout, load, scheduler setting, drafter and pool split of a model."""

from agent.pareto.frontier import Chart, Frontier, charts
from agent.pareto.request import SweepRequest
from agent.pareto.sweep import Sweep, run_sweep

__all__ = ["Chart", "Frontier", "Sweep", "SweepRequest", "charts", "run_sweep"]
