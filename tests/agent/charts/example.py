"""A report of fixed numbers with every kind of figure, so that its picture changes only when the drawing does."""

import numpy as np

from agent.charts.accuracy import Pair, accuracy_figure
from agent.charts.breakdown import memory_figure, step_figure
from agent.charts.document import Commands, Document, Facts, Section, Table, Text
from agent.charts.figure import Figure
from agent.charts.frontiers import Point, frontier_figure
from agent.charts.latency import cdf_figure, lanes_figure, load_figure
from agent.tiers import read_tiers
from predictor.des.metrics import HostTimes, RequestColumns, Samples, SimulationResult, Totals
from predictor.types import MemoryBreakdown

CLIENTS, ROUNDS = 8, 5


def frontier() -> Figure:
    rates = [20.0 * 1.5**step for step in range(7)]
    lines = {
        engine: [
            Point(rate, scale * 4000.0 / (1.0 + (rate / 90.0) ** 2), f"{engine} tp{4 + step % 2 * 4}", 300.0, 8)
            for step, rate in enumerate(rates)
        ]
        for engine, scale in (("SGLang", 1.0), ("vLLM", 0.8))
    }
    dominated = [Point(rate * 0.9, 900.0 / (1.0 + (rate / 60.0) ** 2), "behind") for rate in rates]
    measured = [
        Point(rate * 1.04, 3900.0 / (1.0 + (rate / 92.0) ** 2), "measured tp8", anchored_here=rate == rates[2])
        for rate in rates[1:6]
    ]
    return frontier_figure(
        "frontier", "Frontier by engine", lines, tiers=read_tiers(), dominated=dominated, measured=measured
    )


def accuracy() -> Figure:
    values = [5.0 * 1.3**step for step in range(12)]
    pairs = [
        Pair(value, value * (1.0 + 0.12 * ((step % 5) - 2) / 2.0), f"run {step}") for step, value in enumerate(values)
    ]
    return accuracy_figure("accuracy", "TPOT, ms", {"SGLang": pairs[::2], "vLLM": pairs[1::2]})


def step() -> Figure:
    return step_figure(
        "step",
        {
            "best": {"gemm": 1.1, "attention": 0.9, "experts": 2.4, "collectives": 0.7, "launch": 1.9, "host": 0.4},
            "baseline": {"gemm": 2.0, "attention": 1.2, "experts": 3.1, "collectives": 0.5, "launch": 1.9, "host": 0.4},
        },
    )


def memory() -> Figure:
    def held(weights: float, pool: float) -> MemoryBreakdown:
        gib = 2.0**30
        return MemoryBreakdown(
            weights * gib, pool * gib, 0.0, 8.0 * gib, 2.0 * gib, (weights + pool + 10.0) * gib, 288.0 * gib, 1e5, 10**6
        )

    return memory_figure("memory", {"best": held(80.0, 150.0), "baseline": held(160.0, 70.0)})


def result() -> SimulationResult:
    """Clients that come at once, wait for each other's prompts, and come again when they are done."""
    arrival, queue, ttft, e2e = [], [], [], []
    for turn in range(ROUNDS):
        for client in range(CLIENTS):
            began = turn * 2000.0 + (0.0 if turn == 0 else 40.0 * client)
            wait = 60.0 * client if turn == 0 else 15.0 * (client % 3)
            arrival.append(began)
            queue.append(wait)
            ttft.append(wait + 60.0)
            e2e.append(2000.0 + (40.0 * client if turn == 0 else 0.0))
    count = len(arrival)
    columns = {"arrival_ms": arrival, "queue_ms": queue, "ttft_ms": ttft, "e2e_ms": e2e}
    whole = {"id": range(count), "prompt_tokens": [1024] * count, "output_tokens": [100] * count}
    empty = {name: [0] * count for name in ("cached_tokens", "preemptions", "replica")}
    table = RequestColumns(
        {name: np.array(list(values), dtype=float) for name, values in {**columns, **whole, **empty}.items()}
    )
    totals = Totals(10_000.0, 100.0 * count, 1024.0 * count, 0.0, 500, 50, 40, 40, 70_000.0, 10_000.0, 0)
    gaps = Samples.of(np.linspace(15.0, 60.0, 200) ** 1.1)
    return SimulationResult(table, gaps, totals, HostTimes(), "runs")


def document() -> Document:
    simulated = {"best": result()}
    return Document(
        "Llama-3.1-8B on MI355X:8",
        "search 1: output_tok_s_per_gpu with SGLang; tpot_ms<=10; 1024 tokens in, 1024 out, 64 clients",
        (("output tok/s/GPU", "3,120"), ("tok/s/user", "104.2"), ("TTFT, ms", "182"), ("trials", "314")),
        (
            Section(
                "answer",
                "What to deploy",
                (
                    Commands("Launch", ("python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B --tp 1",)),
                    Facts("Levers", (("tp", 1), ("kv_dtype", "fp8"), ("token_budget", 8192))),
                ),
            ),
            Section("trade-off", "Trade-off", (frontier(), Table("Tiers", ("tier", "tok/s/GPU"), (("bulk", 3890.0),)))),
            Section("accuracy", "Predicted against measured", (accuracy(),)),
            Section("inside", "Inside the best", (step(), memory())),
            Section(
                "latency",
                "Latencies",
                (
                    *(cdf_figure(f"cdf-{metric}", metric, simulated) for metric in ("ttft", "itl")),
                    load_figure("load", "best", simulated["best"]),
                    lanes_figure("lanes", "best", simulated["best"]),
                    Text("Simulated request by request."),
                ),
            ),
        ),
        ("Points without an anchor rank deployments of one engine <only>.",),
    )
