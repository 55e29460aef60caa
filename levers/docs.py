"""The generated part of the documentation: tables of levers, objectives and rules, straight from the catalogue."""

from collections.abc import Iterable
from pathlib import Path

from levers.catalog import LEVERS
from levers.catalog.common import ENGINES
from levers.catalog.objectives import OBJECTIVES
from levers.legality import NOTICES, RULES
from levers.legality.field import FIELD_FAILURES, FieldFailure
from levers.legality.rule import Rule
from levers.lever import EngineFlag

KINDS = (
    "Kind: **A** anchor-defining (changes the kernels, so it needs its own anchor), **T** transferable (moved from "
    "an anchor), **S** a parameter of the simulated scheduler, **load** what clients do."
)


def levers_page() -> str:
    """``docs/levers.md``: the 36 levers, how each engine spells them, and the 24 objectives."""
    levers = table(
        ("#", "lever", "kind", "what it changes", "default"),
        ((str(x.number), f"`{x.name}`", str(x.kind), x.what, DEFAULTS.get(x.name, "engine's own")) for x in LEVERS),
    )
    flags = table(
        ("lever", *ENGINES),
        ((f"`{lever.name}`", *(" / ".join(spelling(lever.flags, engine)) for engine in ENGINES)) for lever in LEVERS),
    )
    objectives = table(
        ("#", "objective", "unit", "better", "definition", "computed by"),
        ((str(o.number), f"`{o.name}`", o.unit, str(o.direction), o.definition, o.computed_by) for o in OBJECTIVES),
    )
    return "\n\n".join(
        (
            "# Levers and objectives",
            "Generated from `levers/catalog` by `python -m levers.docs`; do not edit. `inferasim levers --model M "
            "--engine E --json` prints the legal set of each lever with the reason for every value left out.",
            "## The 36 levers",
            f"{KINDS} With `disagg` on, `tp`, `ep`, `attn_dp` and `replicas` describe the decode pool.",
            levers,
            "Load and precision levers are pinned unless they are freed, by name or as `load` and `precision`.",
            "## Flags",
            "Defaults in brackets; `since` marks a spelling of later releases.",
            flags,
            "## The 24 objectives",
            "A prediction that does not hold an objective says so; nothing is approximated in its place.",
            objectives,
            "",
        )
    )


DEFAULTS = {
    "tp": "narrowest that fits",
    "ep": "1",
    "attn_dp": "1",
    "pp": "1",
    "dcp": "1",
    "replicas": "1",
    "disagg": "off",
    "prefill_tp": "as tp",
    "prefill_ep": "as ep",
    "prefill_attn_dp": "as attn_dp",
    "prefill_replicas": "1",
    "weight_dtype": "the maker's checkpoint",
    "linear_dtype": "as the weights, where the GPU multiplies in it",
    "expert_dtype": "of the checkpoint",
    "kv_dtype": "bf16 where a backend keeps it",
    "sparse_topk": "as trained",
    "a2a_backend": "none",
    "eplb_redundant": "0",
    "fusions": "none",
    "graph_mode": "full",
    "allreduce": "custom",
    "spec_method": "none",
    "spec_depth": "1",
    "prefix_cache": "on",
    "host_kv_gb": "0",
    "concurrency": "the workload's",
    "arrival_process": "the workload's",
    "request_rate": "the workload's",
}


def legality_page() -> str:
    """``docs/legality.md``: what is refused, what is explained, and where each rule comes from."""
    return "\n\n".join(
        (
            "# Legality",
            "Generated from `levers/legality` by `python -m levers.docs`; do not edit. A candidate is refused with "
            "every reason that holds, each a sentence that says what to do instead. Two checks follow the "
            "prediction: memory beyond 90% of HBM, and a missed latency bound.",
            "## Refused",
            table(("rule", "what must hold", "engines", "source"), map(rule_row, RULES)),
            "## Explained",
            "Legal, and worth knowing: effective values and surprises of the engines.",
            table(("notice", "what it tells", "engines", "source"), map(rule_row, NOTICES)),
            "## Memory",
            "From the breakdown of a prediction: `hbm_cap` and `kv_pool` refuse; the others explain "
            "(`running_clamped`, `state_pool`, `graph_estimate`, `hybrid_pool`), and `kv_bytes_log` compares a start "
            "log with the formula.",
            "## Field failures",
            "Twenty reported failures, each a test: its configuration is refused or explained, its neighbour passes.",
            table(("#", "issue", "what happened", "answered by"), map(failure_row, FIELD_FAILURES)),
            "",
        )
    )


def failure_row(failure: FieldFailure) -> tuple[str, ...]:
    """One table row of a field failure."""
    return str(failure.number), failure.issue, failure.happened, ", ".join(f"`{name}`" for name in failure.answered_by)


def rule_row(rule: Rule) -> tuple[str, ...]:
    """One table row of a rule."""
    engines = ", ".join(rule.engines) or "all"
    return f"`{rule.name}`", rule.summary, f"{engines} before {rule.before}" if rule.before else engines, rule.source


def spelling(flags: Iterable[EngineFlag], engine: str) -> list[str]:
    """Every spelling of a lever on one engine, oldest first.

    >>> spelling([EngineFlag("vLLM", "-tp", "1"), EngineFlag("SGLang", "--tp-size", "1")], "SGLang")
    ['`--tp-size` (1)']
    """
    return [flag_text(flag) for flag in flags if flag.engine == engine]


def flag_text(flag: EngineFlag) -> str:
    """A flag with its default, first release and note."""
    default = f" ({flag.default})" if flag.default else ""
    since = f" since {flag.since}" if flag.since else ""
    note = f": {flag.note}" if flag.note else ""
    return f"`{flag.text}`{default}{since}{note}"


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def write(folder: Path) -> None:
    """Write both pages into a folder."""
    (folder / "levers.md").write_text(levers_page(), encoding="utf-8")
    (folder / "legality.md").write_text(legality_page(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).parents[1] / "docs")
