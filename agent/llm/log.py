"""The trials of one search as they are made: one list, one best, and what was tried before."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.evaluate import Evaluator, Judged, refused
from agent.llm.inputs import compact
from agent.search import Record, SearchResult, Trial, better
from levers.space import Setting, as_json_value, merge, to_deployment
from predictor.types import Deployment, Workload

PLANNER, INVESTIGATOR = "planner", "investigator"
LLM_ORIGINS = (PLANNER, INVESTIGATOR)


@dataclass(slots=True)
class SearchLog:
    """Every trial goes through :meth:`add`, and every proposal through :meth:`propose`, the one door."""

    evaluator: Evaluator
    record: Record
    progress: Callable[[Trial], None] | None = None
    result: SearchResult = field(default_factory=lambda: SearchResult([], None))
    _launched: dict[tuple[Deployment, Workload], Trial] = field(default_factory=dict)
    _refused: dict[str, Trial] = field(default_factory=dict)  # proposals that are no setting, by their text

    @property
    def best(self) -> Trial | None:
        """The best legal trial so far."""
        return self.result.best

    def add(self, origin: str, name: str, levers: Mapping[str, Any], judged: Judged, hypothesis: str = "") -> Trial:
        """Record a trial before anybody sees it."""
        trial = Trial(len(self.result.trials), origin, name, levers, judged, hypothesis)
        self.result.trials.append(trial)
        if judged.deployment is not None and judged.workload is not None:
            self._launched.setdefault((judged.deployment, judged.workload), trial)
        if judged.legal and (self.result.best is None or better(judged, self.result.best.judged)):
            self.result.best = trial
        self.record(trial.record())
        if self.progress is not None:
            self.progress(trial)
        return trial

    def find(self, deployment: Deployment, workload: Workload) -> Trial | None:
        """The trial that launched exactly this."""
        return self._launched.get((deployment, workload))

    def known(self, partial: Mapping[str, Any], base: Setting) -> Trial | None:
        """The trial that tried the same before, whatever it was called; None for something new."""
        merged = merge(partial, base, self.evaluator.context)
        if merged.setting is None:
            return self._refused.get(self._key(partial))
        return self.find(*to_deployment(merged.setting, self.evaluator.context))

    def propose(
        self, origin: str, name: str, partial: Mapping[str, Any], base: Setting, hypothesis: str = ""
    ) -> tuple[Trial, Setting | None]:
        """Put a proposal through the door: merge, check, price, judge, record."""
        merged = merge(partial, base, self.evaluator.context)
        if merged.setting is None:
            levers = {lever: as_json_value(value) if _flat(value) else value for lever, value in partial.items()}
            trial = self.add(origin, name, levers, refused(merged.reasons), hypothesis)
            self._refused[self._key(partial)] = trial
            return trial, None
        launched = to_deployment(merged.setting, self.evaluator.context)
        judged = self.evaluator.evaluate(*launched)
        return self.add(origin, name, merged.setting.as_json(), judged, hypothesis), merged.setting

    def replay(self, origin: str, name: str, setting: Setting, hypothesis: str) -> Trial:
        """Judge a recorded setting again: a prediction is the same to the last bit, so its record is too."""
        judged = self.evaluator.evaluate(*to_deployment(setting, self.evaluator.context))
        return self.add(origin, name, setting.as_json(), judged, hypothesis)

    @staticmethod
    def _key(partial: Mapping[str, Any]) -> str:
        return compact(dict(sorted(partial.items())))


def _flat(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str | tuple)
