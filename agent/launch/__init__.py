"""Launch artefacts: engine commands, routers, manifests and the benchmark that verifies a deployment."""

from agent.launch.compose import compose
from agent.launch.kubernetes import kubernetes
from agent.launch.plan import launch_plan
from agent.launch.shell import benchmark_line, command_line, launch_lines, script
from agent.launch.types import LaunchFile, LaunchPlan, Options, Process

__all__ = [
    "LaunchFile",
    "LaunchPlan",
    "Options",
    "Process",
    "benchmark_line",
    "command_line",
    "compose",
    "kubernetes",
    "launch_lines",
    "launch_plan",
    "script",
]
