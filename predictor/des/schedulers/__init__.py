"""Scheduler rules by engine. Adding an engine is one file and one line here."""

from predictor.des.rules import SchedulerRules
from predictor.des.schedulers import atom, sglang, trtllm, vllm
from predictor.des.schedulers.base import Replica, RulesOf
from predictor.errors import unknown_name
from predictor.profiles.loader import engine_profile
from predictor.types import SchedulerSettings

SCHEDULERS: dict[str, RulesOf] = {
    "vLLM": vllm.rules,
    "SGLang": sglang.rules,
    "ATOM": atom.rules,
    "TensorRT-LLM": trtllm.rules,
}


def scheduler_rules(
    engine: str, version: str, settings: SchedulerSettings, replica: Replica = Replica()
) -> SchedulerRules:
    """Rules of an engine by its name or an alias.

    >>> scheduler_rules("vllm", "", SchedulerSettings(max_running=64)).running_cap
    64
    """
    name = engine_profile(engine).name
    if name not in SCHEDULERS:
        raise unknown_name("engine with a scheduler", engine, SCHEDULERS)
    return SCHEDULERS[name](version, settings, replica)
