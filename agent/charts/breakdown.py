"""Stacked bars: a decode step by term, and a GPU's memory by what fills it."""

from collections.abc import Mapping, Sequence

from agent.charts.figure import Axis, Bar, Figure, cell
from agent.explain.mechanisms import mechanisms
from predictor.types import MemoryBreakdown

GIB = 2.0**30


def step_figure(key: str, steps: Mapping[str, Mapping[str, float]], title: str = "Decode step by term") -> Figure:
    """A bar for each deployment, by name; ``steps`` hold the terms of a step model, ms."""
    found = {name: by_term(terms) for name, terms in steps.items()}
    used = [term for term in mechanisms().terms if any(terms.get(term, 0.0) > 0.0 for terms in found.values())]
    label = {term: mechanisms().terms[term].label for term in used}
    told = [
        f"{name}: {cell(sum(terms.values()))} ms, most of it {label[max(terms, key=lambda one: terms[one])]}"
        for name, terms in found.items()
        if terms
    ]
    return Figure(
        key,
        title,
        "; ".join(told) + ".",
        Axis("ms a step", low=0.0),
        Axis(""),
        ("deployment", *(f"{label[term]} ms" for term in used), "all ms"),
        tuple((name, *(terms.get(term, 0.0) for term in used), sum(terms.values())) for name, terms in found.items()),
        bars=tuple(
            Bar(label[term], tuple(terms.get(term, 0.0) for terms in found.values()), number)
            for number, term in enumerate(used)
        ),
        categories=tuple(found),
    )


def by_term(step_ms: Mapping[str, float]) -> dict[str, float]:
    """A step model's own terms gathered under the names that explanations use.

    >>> by_term({"gemm": 1.0, "lm_head": 0.5, "experts": 2.0})
    {'weights': 1.5, 'experts': 2.0}
    """
    found: dict[str, float] = {}
    for member, value in step_ms.items():
        term = mechanisms().term_of(member)
        found[term] = found.get(term, 0.0) + value
    return found


PARTS = (
    ("weights", "weights_bytes"),
    ("KV pool", "kv_pool_bytes"),
    ("recurrent state", "state_bytes"),
    ("activations", "activation_bytes"),
    ("graphs", "graph_bytes"),
    ("context, buffers", "other_bytes"),
)


def memory_figure(key: str, held: Mapping[str, MemoryBreakdown]) -> Figure:
    """A bar for each deployment's busiest GPU, GiB, with the line of all there is."""
    used = [(label, part) for label, part in PARTS if any(getattr(one, part) > 0.0 for one in held.values())]
    limits: Sequence[float] = sorted({one.hbm_bytes / GIB for one in held.values()})
    values = {name: [getattr(one, part) / GIB for _, part in used] for name, one in held.items()}
    told = [f"{name}: {one.total_bytes / GIB:.0f} of {one.hbm_bytes / GIB:.0f} GiB" for name, one in held.items()]
    return Figure(
        key,
        "Memory of the busiest GPU",
        "; ".join(told) + ".",
        Axis("GiB", low=0.0),
        Axis(""),
        ("deployment", *(f"{label} GiB" for label, _ in used), "all GiB", "HBM GiB"),
        tuple((name, *values[name], one.total_bytes / GIB, one.hbm_bytes / GIB) for name, one in held.items()),
        bars=tuple(
            Bar(label, tuple(values[name][number] for name in held), number) for number, (label, _) in enumerate(used)
        ),
        categories=tuple(held),
        limit=limits[0] if limits else None,
        limit_name="HBM",
    )
