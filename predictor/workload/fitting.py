"""Leave out requests that a deployment cannot hold, and go on with the rest of their sessions."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from predictor.errors import BadInput
from predictor.workload.trace import DEFAULT_HISTORY_RECORDS, TraceRequest


class Fitting:
    """The requests whose prompt and answer together stay within ``most_tokens``; ``dropped`` counts the others.

    What waited for a dropped request waits for what that one waited for, as in a corpus cut to a context window.
    """

    def __init__(self, requests: Iterable[TraceRequest], most_tokens: int) -> None:
        if most_tokens < 2:
            raise BadInput(f"most_tokens {most_tokens}: room for a prompt and an answer")
        self.dropped = 0
        self._requests = requests
        self._most = most_tokens
        self._instead: OrderedDict[str, tuple[str, ...]] = OrderedDict()  # dropped -> what it waited for

    def __iter__(self) -> Iterator[TraceRequest]:
        for request in self._requests:
            waits_on = self._resolved(request.waits_on)
            if request.input_tokens + request.output_tokens > self._most:
                self.dropped += 1
                self._instead[request.request_id] = waits_on
                if len(self._instead) > DEFAULT_HISTORY_RECORDS:
                    self._instead.popitem(last=False)
                continue
            yield request if waits_on == request.waits_on else replace(request, waits_on=waits_on)

    def _resolved(self, names: tuple[str, ...]) -> tuple[str, ...]:
        if not any(name in self._instead for name in names):
            return names
        return tuple(dict.fromkeys(kept for name in names for kept in self._instead.get(name, (name,))))
