"""Request traces: Mooncake records, plain, extended and compact, read one at a time (paper A.1).

A record is one request. Fields, with the aliases other writers use:

===================  ==============================  ==========================================================
field                aliases                         meaning
===================  ==============================  ==========================================================
``timestamp``        created_time                    arrival, ms after the start of the trace (or of the session)
``input_length``     input_tokens                    prompt tokens
``output_length``    output_tokens                   generated tokens (0: the answer was empty)
``hash_ids``                                         ids of the prompt's blocks; each stands for its whole prefix
``prefix_from``                                      the prompt starts with the first ``prefix_blocks`` blocks
``prefix_blocks``                                    of that earlier record ...
``new_blocks``                                       ... followed by that many never-seen blocks (or ``hash_ids``)
``session_id``                                       chain of turns; ``parent_session_id`` names the spawning chain
``request_id``                                       unique name
``wait_on``          wait_for                        request(s) that must complete before this one may be sent
``joins``                                            further requests that must complete (sub-agent calls)
``think_time``       delay, delay_ms                 pause after the last of those, ms
``recorded_api_time``                                service time in the recording, ms
===================  ==============================  ==========================================================

A row of a session that names no dependency waits for the previous row of that session. References point to earlier
rows. Memory is bounded by ``history_records``: how many rows back a row may refer to, in words or by its block ids.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from predictor.errors import BadFile, BadInput
from predictor.workload.block_size import BlockSize, Candidates
from predictor.workload.blocks import NO_BLOCKS, BlockForest, ChainViolation, Prompt
from predictor.workload.fields import Bad, BadRecord, Record
from predictor.workload.json_stream import Document, documents

DEFAULT_HISTORY_RECORDS = 200_000
_PROBE_RECORDS = 20_000  # held back at most until the block size is known
_FORGET_EVERY = 4  # old rows are dropped each quarter of the history


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace. ``prompt`` is None where the trace has no ids: reuse is then unknown, not absent."""

    row: int  # from 0, in file order, skipped rows not counted
    request_id: str
    session_id: str
    tree_id: str  # the session that spawned it, over all generations
    arrival_ms: float | None
    input_tokens: int
    output_tokens: int
    prompt: Prompt | None = None
    waits_on: tuple[str, ...] = ()
    think_time_ms: float = 0.0
    recorded_api_ms: float | None = None


class TraceReader:
    """Iterates over the requests of a trace; see the module's text for the format.

    ``text`` is lines or chunks of text, or what a converter of :mod:`predictor.workload.convert` yields. ``block_size``
    overrides the inference. After iteration (and as soon as it is inferred) it says what the blocks are, None where no
    record has ids, and ``skipped`` counts what ``skip_bad_records`` left out, by kind. A row that refers to a skipped
    one is skipped too.
    """

    def __init__(
        self,
        text: Iterable[str] | Iterable[Document],
        *,
        name: str = "trace",
        block_size: BlockSize | None = None,
        skip_bad_records: bool = False,
        history_records: int = DEFAULT_HISTORY_RECORDS,
    ) -> None:
        if history_records < 1:
            raise BadInput(f"history_records {history_records}: at least 1")
        self.block_size = block_size
        self.skipped: Counter[BadRecord] = Counter()
        self._documents, self._name = _documents(text), name
        self._skip, self._history = skip_bad_records, history_records
        self._candidates = Candidates()
        self._forest = BlockForest()
        self._rows = 0
        self._prompts: dict[str, Prompt | None] = {}
        self._known: deque[str] = deque()
        self._lost: OrderedDict[str, None] = OrderedDict()
        self._sessions: dict[str, tuple[str, str, int]] = {}  # session -> last request, tree, row

    def __iter__(self) -> Iterator[TraceRequest]:
        held: list[TraceRequest] = []
        stream = self._documents
        for document in stream:
            try:
                request = self._request(document)
            except Bad as bad:
                if self._skip and document.resumable:
                    self._skip_record(bad.kind, document)
                    continue
                if bad.kind is BadRecord.DANGLING_REFERENCE:
                    bad = self._explain_reference(bad, document, stream)
                raise BadFile(f"{self._name} line {document.line}: {bad}") from bad
            if self.block_size is None and (held or request.prompt is not None):
                held.append(request)
                if len(held) > _PROBE_RECORDS:
                    raise BadFile(f"{self._name}: {self._ambiguous()} after {len(held)} records")
            else:
                yield from held
                held.clear()
                yield request
        if held and self.block_size is None:
            self.block_size = self._candidates.exact_multiple
            if self.block_size is None:
                raise BadFile(f"{self._name}: {self._ambiguous()}")
        yield from held

    @property
    def remembered(self) -> int:
        """Records, sessions and block ids now held; bounded by the history, not by the trace."""
        return len(self._prompts) + len(self._sessions) + self._forest.distinct_ids

    def _ambiguous(self) -> str:
        return f"the block size is ambiguous: {self._candidates}; say which it is"

    def _skip_record(self, kind: BadRecord, document: Document) -> None:
        self.skipped[kind] += 1
        if isinstance(document.value, dict) and "request_id" in document.value:
            self._lost[str(document.value["request_id"])] = None
            if len(self._lost) > self._history:
                self._lost.popitem(last=False)

    def _request(self, document: Document) -> TraceRequest:
        if document.fault is not None:
            raise Bad(BadRecord(document.kind.value), document.fault)
        if not isinstance(document.value, dict):
            raise Bad(BadRecord.NOT_AN_OBJECT, f"a record is an object, found {type(document.value).__name__}")
        record = Record(document.value)
        request_id = record.text("request_id") or f"#{self._rows}"
        if request_id in self._prompts:
            raise Bad(BadRecord.DUPLICATE_ID, f"request_id {request_id!r} names an earlier record too")
        input_tokens = record.length("input_length", "input_tokens")
        output_tokens = record.length("output_length", "output_tokens", least=0)
        session_id = record.text("session_id")
        waits_on = self._waits_on(record, request_id, session_id)
        arrival_ms = record.time("timestamp", "created_time")
        think_time_ms = record.time("think_time", "delay", "delay_ms") or 0.0
        recorded_api_ms = record.time("recorded_api_time")
        tree_id = self._tree(record, session_id or request_id)
        prompt = self._prompt(record, input_tokens)
        request = TraceRequest(
            row=self._rows,
            request_id=request_id,
            session_id=session_id or request_id,
            tree_id=tree_id,
            arrival_ms=arrival_ms,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            prompt=prompt,
            waits_on=waits_on,
            think_time_ms=think_time_ms,
            recorded_api_ms=recorded_api_ms,
        )
        self._remember(request)
        return request

    def _waits_on(self, record: Record, request_id: str, session_id: str | None) -> tuple[str, ...]:
        named = (*record.texts("wait_on", "wait_for"), *record.texts("joins"))
        for reference in named:
            self._check_reference(reference, request_id)
        if not named and session_id in self._sessions:
            return (self._sessions[session_id][0],)
        return tuple(dict.fromkeys(named))

    def _check_reference(self, reference: str, request_id: str) -> None:
        if reference == request_id:
            raise Bad(BadRecord.CYCLE, f"{request_id!r} waits on itself")
        if reference in self._lost:
            raise Bad(BadRecord.FOLLOWS_SKIPPED, f"it refers to {reference!r}, which was skipped")
        if reference not in self._prompts:
            raise Bad(
                BadRecord.DANGLING_REFERENCE,
                f"it refers to {reference!r}, which is none of the last {self._history} records",
            )

    def _explain_reference(self, bad: Bad, document: Document, rest: Iterator[Document]) -> Bad:
        """Read on to tell a cycle and a forward reference from a name that is nowhere."""
        me = str(document.value.get("request_id"))
        later: dict[str, tuple[str, ...]] = {me: _references(document.value)}
        for following in rest:
            if isinstance(following.value, dict) and "request_id" in following.value:
                later[str(following.value["request_id"])] = _references(following.value)
        cycle = _cycle(later, me)
        if cycle:
            return Bad(BadRecord.CYCLE, f"a cycle of requests that wait on each other: {' -> '.join(cycle)}")
        forward = [name for name in later[me] if name in later and name not in self._prompts]
        if forward:
            return Bad(BadRecord.DANGLING_REFERENCE, f"it refers to {forward[0]!r}, a later record: sort the trace")
        return bad

    def _tree(self, record: Record, session_id: str) -> str:
        parent = record.text("parent_session_id")
        for session in (session_id, parent):
            if session in self._sessions:
                return self._sessions[session][1]
        return parent or session_id

    def _prompt(self, record: Record, input_tokens: int) -> Prompt | None:
        source, ids = record.text("prefix_from"), record.ids("hash_ids")
        new_blocks, prefix_blocks = record.count("new_blocks"), record.count("prefix_blocks")
        if ids is not None and new_blocks is not None:
            raise Bad(BadRecord.CONFLICTING_FIELDS, "'hash_ids' and 'new_blocks' exclude each other")
        if (source is None) != (prefix_blocks is None):
            raise Bad(BadRecord.MISSING_FIELD, "'prefix_from' and 'prefix_blocks' go together")
        if ids is None and new_blocks is None and source is None:
            return None
        prefix = NO_BLOCKS if source is None else self._prefix(source, prefix_blocks or 0)
        blocks = prefix.blocks + (len(ids) if ids is not None else new_blocks or 0)
        self._check_block_count(input_tokens, blocks)
        if ids is None:
            return self._forest.fresh(prefix, new_blocks or 0, self._rows)
        try:
            return self._forest.named(ids, prefix, self._rows)
        except ChainViolation as violation:
            raise Bad(BadRecord.CHAIN_VIOLATION, str(violation)) from violation

    def _prefix(self, source: str, prefix_blocks: int) -> Prompt:
        self._check_reference(source, "")
        earlier = self._prompts[source]
        have = 0 if earlier is None else earlier.blocks
        if earlier is None or prefix_blocks > have:
            raise Bad(BadRecord.PREFIX_TOO_LONG, f"prefix_blocks {prefix_blocks}: {source!r} has {have} blocks")
        return earlier.head(prefix_blocks)

    def _check_block_count(self, input_tokens: int, blocks: int) -> None:
        size = self.block_size
        if size is not None:
            if size.blocks(input_tokens) != blocks:
                raise Bad(
                    BadRecord.BLOCK_COUNT,
                    f"{blocks} block ids for {input_tokens} tokens: blocks of {size.tokens} ({size.tail} tail) make "
                    f"{size.blocks(input_tokens)}",
                )
            return
        narrowed = self._candidates.narrowed(input_tokens, blocks)
        if narrowed.none_left:
            raise Bad(
                BadRecord.BLOCK_COUNT,
                f"{blocks} block ids for {input_tokens} tokens: earlier records allow blocks of {self._candidates}",
            )
        self._candidates = narrowed
        self.block_size = narrowed.only

    def _remember(self, request: TraceRequest) -> None:
        self._prompts[request.request_id] = request.prompt
        self._known.append(request.request_id)
        self._sessions[request.session_id] = (request.request_id, request.tree_id, request.row)
        if len(self._known) > self._history:
            del self._prompts[self._known.popleft()]
        self._rows += 1
        if self._rows % max(1, self._history // _FORGET_EVERY) == 0:
            oldest = self._rows - self._history
            self._forest.forget(oldest)
            self._sessions = {name: last for name, last in self._sessions.items() if last[2] >= oldest}


def _documents(source: Iterable[str] | Iterable[Document]) -> Iterator[Document]:
    """What a converter yields as it is; text decoded."""
    items = iter(source)
    for first in items:
        rest = chain([first], items)
        yield from rest if isinstance(first, Document) else documents(rest)  # type: ignore[arg-type]


def _references(fields: dict[str, Any]) -> tuple[str, ...]:
    named: list[Any] = []
    for name in ("wait_on", "wait_for", "joins", "prefix_from"):
        value = fields.get(name)
        named += value if isinstance(value, list) else [] if value is None else [value]
    return tuple(str(item) for item in named)


def _cycle(waits_on: dict[str, tuple[str, ...]], start: str) -> list[str]:
    """A way from ``start`` back to itself, or nothing."""
    stack, seen = [[start]], set()
    while stack:
        path = stack.pop()
        for name in waits_on.get(path[-1], ()):
            if name == start:
                return [*path, start]
            if name not in seen:
                seen.add(name)
                stack.append([*path, name])
    return []
