"""The throughput-interactivity chart as inline SVG: one mark a priced trial, no script."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from ledger.record import TrialRecord

WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 72, 18, 16, 52
X_METRIC, Y_METRIC = "interactivity_tok_s_user", "output_tok_s_per_gpu"
X_TITLE, Y_TITLE = "Interactivity, tok/s per user", "Throughput, output tok/s per GPU"
GAPS = 5  # about so many steps an axis


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear axis from ``low`` to ``high`` with round ticks."""

    low: float
    high: float
    step: float

    def ticks(self) -> Iterator[float]:
        """Round values, low to high."""
        for number in range(round((self.high - self.low) / self.step) + 1):
            yield self.low + number * self.step

    def share(self, value: float) -> float:
        """Where a value lies, 0 to 1."""
        return (value - self.low) / (self.high - self.low)


def axis(values: Sequence[float]) -> Axis:
    """An axis from zero that holds every value, with steps of 1, 2 or 5 times a power of ten.

    >>> axis([3.0, 97.0])
    Axis(low=0.0, high=100.0, step=20.0)
    """
    most = max(values, default=0.0) or 1.0
    rough = most / GAPS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough * 0.999)
    return Axis(0.0, step * math.ceil(most / step - 1e-9), step)


def number(value: float) -> str:
    """A figure for people.

    >>> number(12345.6), number(0.01234), number(12.0)
    ('12,346', '0.0123', '12')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def short(value: float) -> str:
    """A round figure on an axis, so short that it can be large on a phone.

    >>> short(15000.0), short(2500.0), short(800.0), short(0.25)
    ('15k', '2.5k', '800', '0.25')
    """
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def chart(trials: Sequence[TrialRecord], best: TrialRecord | None) -> str:
    """The chart; the caller marks it as safe. Trials without both figures are left out."""
    marks = [one for one in trials if X_METRIC in one.metrics and Y_METRIC in one.metrics]
    across, up = axis([one.metrics[X_METRIC] for one in marks]), axis([one.metrics[Y_METRIC] for one in marks])
    inner_w, inner_h = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(value: float) -> float:
        return LEFT + across.share(value) * inner_w

    def y(value: float) -> float:
        return TOP + (1.0 - up.share(value)) * inner_h

    legal = sum(one.legal for one in marks)
    said = f"{len(marks)} priced trials, {legal} of them legal."
    if best is not None and best in marks:
        said += f" The best: {number(best.metrics[Y_METRIC])} at {number(best.metrics[X_METRIC])} tok/s per user."
    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="chart-title chart-text">',
        f'<title id="chart-title">{Y_TITLE}, against {X_TITLE.lower()}</title><desc id="chart-text">{said}</desc>',
    ]
    for tick in across.ticks():
        parts.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text class="tick" x="{x(tick):.1f}" y="{HEIGHT - BOTTOM + 18}">{short(tick)}</text>')
    for tick in up.ticks():
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text class="tick end" x="{LEFT - 8}" y="{y(tick) + 4:.1f}">{short(tick)}</text>')
    parts.append(f'<text class="axis" x="{LEFT + inner_w / 2:.0f}" y="{HEIGHT - 10}">{X_TITLE}</text>')
    middle = TOP + inner_h / 2
    parts.append(f'<text class="axis" transform="translate(18 {middle:.0f}) rotate(-90)">{Y_TITLE}</text>')
    for one in sorted(marks, key=lambda trial: trial.legal):  # the legal ones on top
        kind = "legal" if one.legal else "refused"
        parts.append(
            f'<circle class="mark {kind}" cx="{x(one.metrics[X_METRIC]):.1f}" cy="{y(one.metrics[Y_METRIC]):.1f}" '
            f'r="4"><title>{escape(_label(one))}</title></circle>'
        )
    if best is not None and best in marks:
        at = f"{x(best.metrics[X_METRIC]):.1f} {y(best.metrics[Y_METRIC]):.1f}"
        parts.append(f'<path class="mark best" transform="translate({at})" d="{STAR}"/>')
    return "".join((*parts, "</svg>"))


STAR = "M0 -10L2.9 -3.1L10 -3.1L4.5 1.6L6.2 9L0 4.9L-6.2 9L-4.5 1.6L-10 -3.1L-2.9 -3.1Z"


def _label(trial: TrialRecord) -> str:
    verdict = "legal" if trial.legal else "; ".join(message for _, message in trial.reasons)
    figures = f"{number(trial.metrics[Y_METRIC])} at {number(trial.metrics[X_METRIC])} tok/s per user"
    return f"trial {trial.index}, {trial.hypothesis or trial.origin}: {figures}; {verdict}"
