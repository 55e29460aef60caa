"""Predicted against measured, one scatter a metric, with the lines of perfect and of a stated miss."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from agent.charts.figure import Axis, Figure, Mark, Series, finite_range
from predictor.errors import BadInput

TOLERANCE = 0.20  # the paper's dotted lines (Figures 5 and 9)


@dataclass(frozen=True, slots=True)
class Pair:
    """One figure, measured and predicted."""

    measured: float
    predicted: float
    name: str

    @property
    def error(self) -> float:
        """Signed relative miss."""
        return self.predicted / self.measured - 1.0


def accuracy_figure(key: str, metric: str, groups: Mapping[str, Sequence[Pair]]) -> Figure:
    """Scatter of one metric on log axes; ``groups`` are series by name. Values must be above zero."""
    pairs = [pair for group in groups.values() for pair in group]
    spread = finite_range([value for pair in pairs for value in (pair.measured, pair.predicted)])
    if spread is None:
        raise BadInput(f"chart of {metric}: there is no measured value to compare with")
    if spread[0] <= 0.0:
        raise BadInput(f"chart of {metric}: value {spread[0]} must be above zero")
    low, high = spread[0] / 1.25, spread[1] * 1.25
    guides = [
        Series(name, (low, high), (low * share, high * share), Mark.GUIDE)
        for name, share in (
            ("exact", 1.0),
            (f"±{TOLERANCE:.0%}", 1.0 + TOLERANCE),
            (f"−{TOLERANCE:.0%}", 1.0 - TOLERANCE),
        )
    ]
    points = [
        Series(
            name,
            tuple(pair.measured for pair in group),
            tuple(pair.predicted for pair in group),
            Mark.OPEN,
            number,
            number,
            notes=tuple(
                f"{pair.name}<br>measured {pair.measured:,.4g}, predicted {pair.predicted:,.4g} ({pair.error:+.1%})"
                for pair in group
            ),
        )
        for number, (name, group) in enumerate(groups.items())
    ]
    errors = [abs(pair.error) for pair in pairs]
    within = sum(error <= TOLERANCE for error in errors) / len(errors)
    return Figure(
        key,
        f"Predicted against measured: {metric}",
        f"{len(pairs)} points; median error {median(errors):.1%}, {within:.0%} within {TOLERANCE:.0%}.",
        Axis(f"measured {metric}", log=True, low=low, high=high),
        Axis(f"predicted {metric}", log=True, low=low, high=high),
        ("series", "what", "measured", "predicted", "error %"),
        tuple(
            (name, pair.name, pair.measured, pair.predicted, 100.0 * pair.error)
            for name, group in groups.items()
            for pair in group
        ),
        series=(*guides, *points),
    )
