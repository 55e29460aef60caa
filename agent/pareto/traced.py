"""Trace points of a sweep: a stated sample of a trace, its first requests, played on a deployment.

The sample is read once a worker. Its median lengths stand for the trace where a length is asked for: a context to list
settings for, the prompt whose prefill chooses an anchor.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from statistics import median

from agent.pareto.request import SweepRequest
from agent.playing import Played, play_trace
from predictor.des.play import PlayRules
from predictor.errors import BadInput
from predictor.predict import Catalogue
from predictor.types import Deployment, Mode, Workload
from predictor.workload.block_size import BlockSize
from predictor.workload.json_stream import open_trace
from predictor.workload.trace import TraceReader, TraceRequest


@dataclass(frozen=True, slots=True, eq=False)
class TraceSample:
    """The first requests of a trace, its blocks, and the lengths that stand for it."""

    requests: tuple[TraceRequest, ...]
    block: BlockSize | None
    isl_tokens: int
    osl_tokens: int

    @property
    def sessions(self) -> int:
        """Sessions, each with its sub-agents: no more can be live at once."""
        return len({one.tree_id for one in self.requests})


@lru_cache(maxsize=8)
def sample(path: str, requests: int) -> TraceSample:
    """Read the sample; a record that cannot be used ends the sweep with its line."""
    reader = TraceReader(open_trace(path), name=path)
    found = tuple(islice(reader, requests))
    if not found:
        raise BadInput(f"trace {path!r}: holds no usable record")
    trees: dict[str, list[TraceRequest]] = {}  # sessions are played whole, one after another in a slot
    for one in found:
        trees.setdefault(one.tree_id, []).append(one)
    return TraceSample(
        tuple(one for tree in trees.values() for one in tree),
        reader.block_size,
        max(1, round(median(one.input_tokens for one in found))),
        max(1, round(median(one.output_tokens for one in found))),
    )


def play_sample(
    request: SweepRequest,
    path: str,
    deployment: Deployment,
    workload: Workload,
    catalogue: Catalogue,
    mode: Mode | None,
) -> Played:
    """Play the sample with ``workload.concurrency`` live sessions."""
    found = sample(path, request.trace_requests)
    return play_trace(
        deployment,
        workload,
        catalogue,
        found.requests,
        found.block,
        PlayRules(slots=workload.concurrency),
        mode=mode,
    )
