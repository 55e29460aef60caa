"""A recorded trial brought back: what it would deploy, to launch it, verify it or compare it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent.anchor_files import load_anchors
from agent.request import TuningRequest
from levers.catalog import LEVERS
from levers.context import SearchContext
from levers.space import Setting, normalised, to_deployment
from predictor.errors import BadInput
from predictor.types import Deployment, Workload

if TYPE_CHECKING:
    from ledger.record import TrialRecord
    from ledger.store import Ledger


@dataclass(frozen=True, slots=True)
class RecordedTrial:
    """One trial of a search with what it deploys."""

    search_id: int
    trial: "TrialRecord"
    request: TuningRequest
    context: SearchContext
    deployment: Deployment
    workload: Workload


def parse_trial(text: str) -> tuple[int, int | None]:
    """Read ``SEARCH`` (its best trial) or ``SEARCH:TRIAL``.

    >>> parse_trial("3"), parse_trial("3:17")
    ((3, None), (3, 17))
    """
    search, _, trial = text.partition(":")
    try:
        return int(search), int(trial) if trial else None
    except ValueError:
        raise BadInput(f"trial {text!r}: write SEARCH for its best trial, or SEARCH:TRIAL, such as 3:17") from None


def recorded_trial(book: "Ledger", search_id: int, index: int | None, anchors: str | None = None) -> RecordedTrial:
    """Read a trial; ``index`` None is the search's best. A refused seed that is no whole setting cannot be deployed."""
    stored = book.get_search(search_id)
    if index is None:
        if stored.end is None or stored.end.best_index is None:
            raise BadInput(f"search {search_id}: has no best trial; name one, such as {search_id}:0")
        index = stored.end.best_index
    trial = book.trial(search_id, index)
    missing = [lever.name for lever in LEVERS if lever.name not in trial.levers]
    if missing:
        raise BadInput(f"trial {search_id}:{index}: was refused before it was a whole setting; it deploys nothing")
    known = {name: value for name, value in dict(stored.record.request).items() if name in TuningRequest.model_fields}
    request = TuningRequest.model_validate(_plain(known))
    context = request.context(load_anchors(anchors))
    setting = Setting(tuple(normalised(lever.name, _plain(trial.levers[lever.name])) for lever in LEVERS))
    deployment, workload = to_deployment(setting, context)
    return RecordedTrial(search_id, trial, request, context, deployment, workload)


def _plain(value: Any) -> Any:
    """Frozen JSON as lists and dicts."""
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if hasattr(value, "items"):
        return {name: _plain(one) for name, one in value.items()}
    return value
