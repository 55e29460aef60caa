"""The mix planner: for each model and class of users one deployment, and a fleet divided among them."""

from agent.mix.allocate import Allocation, allocate
from agent.mix.demand import Demand, parse_demands
from agent.mix.pick import Slot, fill
from agent.mix.plan import Mix, plan_mix

__all__ = ["Allocation", "Demand", "Mix", "Slot", "allocate", "fill", "parse_demands", "plan_mix"]
