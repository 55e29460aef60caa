"""The anchor artefact: one JSON file for one kernel set at one width (paper App. I).

Files come from people, so every field is validated and a malformed one is named with what was expected. What code
assembles goes through :func:`checked` for the same reason.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from hashlib import sha256
from typing import Annotated, Any, Literal, TypeVar

from predictor.anchors.migrate import migrated
from predictor.errors import BadFile, BadInput
from predictor.profiles.decode import decode
from predictor.types import Dtype, Layout, Precision

SCHEMA_VERSION = 2

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a transfer relies on. Every field but the widths is anchor-defining."""

    gpu: str
    engine: str
    engine_version: str = ""
    model: str
    weight_dtype: Dtype = Dtype.BF16
    linear_dtype: Dtype = Dtype.BF16
    expert_dtype: Dtype = Dtype.BF16
    kv_dtype: Dtype = Dtype.BF16
    attention_backend: str = "auto"
    sparse_topk: int = 0
    moe_backend: str = "auto"
    a2a_backend: str = "none"
    graph_mode: Literal["none", "piecewise", "full"] = "full"
    capture_sizes: tuple[int, ...] = ()  # empty: not recorded, so the engine's default list is assumed
    fusions: tuple[str, ...] = ()
    spec_method: str = "none"
    spec_depth: Annotated[int, (">=", 0)] = 0
    tp: Annotated[int, (">", 0)] = 1
    ep: Annotated[int, (">", 0)] = 1
    attn_dp: Annotated[int, (">", 0)] = 1
    dcp: Annotated[int, (">", 0)] = 1

    @property
    def layout(self) -> Layout:
        """Layout the anchor was measured on; anchors never have pipeline stages."""
        return Layout(tp=self.tp, ep=self.ep, attn_dp=self.attn_dp, dcp=self.dcp)

    @property
    def precision(self) -> Precision:
        """Number formats of the anchor."""
        return Precision(self.weight_dtype, self.linear_dtype, self.expert_dtype, self.kv_dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Three readings of one step that do not share a fault: the median gap between tokens, (last − first)/(n − 1) of
    the requests, and the server's own counters."""

    median_gap_ms: Annotated[float | None, (">=", 0)] = None
    span_ms: Annotated[float | None, (">", 0)] = None
    server_ms: Annotated[float | None, (">", 0)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePoint:
    """Median decode step at one batch; ``served_tpot_ms`` keeps what a served run reported, where steps were solved.

    ``error_pct`` is the standard error of a solved step, or the spread over repeats of a measured one.
    """

    batch: Annotated[int, (">", 0)]
    step_ms: Annotated[float, (">", 0)]
    served_tpot_ms: Annotated[float | None, (">", 0)] = None
    error_pct: Annotated[float | None, (">=", 0)] = None
    readings: Readings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduced:
    """One run the steps were solved from: measured over predicted mean TPOT and TTFT, and what a request spent outside
    decode beyond the predicted time, by the recorded throughput."""

    clients: Annotated[int, (">", 0)]
    tpot_ratio: Annotated[float, (">", 0)]
    ttft_ratio: Annotated[float | None, (">", 0)] = None
    outside_decode_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSweep:
    """Steps over batch sizes at one prompt length.

    ``single_wave`` reads the engine's step directly; ``served`` was solved from runs under continuous batching and has
    ``residual_pct``, how well the solved steps reproduce the runs, and ``determined``, whether the runs tell each step.
    ``scaled`` is the kernel models' sweep times the factor that reproduces one measured run: its shape is not measured.
    """

    prompt_tokens: Annotated[int, (">", 0)]
    output_tokens: Annotated[int, (">", 0)]
    kind: Literal["single_wave", "served", "scaled"] = "single_wave"
    points: Annotated[tuple[DecodePoint, ...], ("length >=", 1)]
    residual_pct: float | None = None
    determined: bool | None = None
    reproduced: tuple[Reproduced, ...] = ()  # by rising load; what the step model leaves is carried to targets
    held_requests: Annotated[int | None, (">", 0)] = None  # ran at once in a measured run, so the KV pool holds them

    def __post_init__(self) -> None:
        batches = [point.batch for point in self.points]
        if batches != sorted(set(batches)):
            raise BadInput(f"points: batches must rise strictly, got {batches}")
        loads = [run.clients for run in self.reproduced]
        if loads != sorted(set(loads)):
            raise BadInput(f"reproduced: loads must rise strictly, got {loads}")

    @property
    def context_tokens(self) -> float:
        """Mean context of a sequence while the sweep was taken."""
        return self.prompt_tokens + self.output_tokens / 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPoint:
    """Time to process ``tokens`` prompt tokens in one step."""

    tokens: Annotated[int, (">", 0)]
    step_ms: Annotated[float, (">", 0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillSweep:
    """``T(n) = fixed_ms + per_token_ms·n + per_token2_ms·n²`` and the points it was fitted on.

    ``per_request_ms`` is paid once a prompt, ``mixed_fixed_ms`` by a step that decodes and prefills; both are told by
    served runs only.
    """

    points: Annotated[tuple[PrefillPoint, ...], ("length >=", 1)]
    fixed_ms: Annotated[float, (">=", 0)]
    per_token_ms: Annotated[float, (">", 0)]
    per_token2_ms: Annotated[float, (">=", 0)] = 0.0
    per_request_ms: Annotated[float, (">=", 0)] = 0.0
    mixed_fixed_ms: Annotated[float, (">=", 0)] = 0.0
    rms_residual_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedProbe:
    """Several prompts of the billed length in one step, with the token budget that had to admit them."""

    sequences: Annotated[int, (">", 1)]
    tokens_each: Annotated[int, (">", 0)]
    step_ms: Annotated[float, (">", 0)]
    token_budget: Annotated[int, (">", 0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """CPU time of a request that overlaps the GPU and is added to TTFT and end-to-end latency only."""

    per_request_ms: Annotated[float, (">=", 0)] = 0.0
    per_prompt_token_us: Annotated[float, (">=", 0)] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One harvest check (paper App. E) with its numbers."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file the anchor was made from."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where the numbers come from and how far the harvest can be trusted."""

    harvested_at: str = ""
    node: str = ""
    real_weights: bool
    prefix_cache_off: bool
    command: str = ""
    source: str
    coarse: bool = False  # few points of a published table rather than a harvest
    inputs: tuple[Source, ...] = ()  # benchmark files it was solved from
    checks: tuple[Check, ...] = ()  # of the harvest, in the order they ran
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """One measured kernel set."""

    schema_version: Literal[2]
    name: str
    signature: Signature
    decode: Annotated[tuple[DecodeSweep, ...], ("length >=", 1)]
    prefill: PrefillSweep
    packed_probe: PackedProbe | None = None
    tokens_per_step: Annotated[float, (">=", 1.0)] = 1.0
    kv_pool_tokens: Annotated[int | None, (">", 0)] = None  # from the engine's start log
    host: Host = Host()
    provenance: Provenance

    @property
    def content_hash(self) -> str:
        """Identity of what was measured: SHA-256 of the canonical JSON of every field that is not at its default.

        The schema's version is left out, so that a migrated file keeps its identity.
        """
        stated = stated_fields(self)
        del stated["schema_version"]
        canonical = json.dumps(stated, sort_keys=True, separators=(",", ":"))
        return sha256(canonical.encode()).hexdigest()

    @property
    def max_batch(self) -> int:
        """Largest measured batch over all sweeps."""
        return max(sweep.points[-1].batch for sweep in self.decode)

    @property
    def min_batch(self) -> int:
        """Smallest measured batch over all sweeps."""
        return min(sweep.points[0].batch for sweep in self.decode)

    def sweep_for(self, prompt_tokens: int, output_tokens: int | None = None) -> DecodeSweep:
        """The sweep measured nearest in prompt length (in ratio), then in answer length; the shorter one on a tie."""

        def apart(one: int, other: int) -> float:
            return max(one, other) / min(one, other)

        return min(
            self.decode,
            key=lambda sweep: (
                apart(sweep.prompt_tokens, prompt_tokens),
                apart(sweep.output_tokens, output_tokens) if output_tokens else 1.0,
                sweep.prompt_tokens,
            ),
        )


def parse_anchor(text: str, origin: str) -> Anchor:
    """Read one artefact; ``origin`` (a file name) leads every error.

    >>> parse_anchor("{", "a.json")
    Traceback (most recent call last):
    predictor.errors.BadFile: a.json: line 1 column 2: not JSON (Expecting property name enclosed in double quotes)
    """
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadFile(f"{origin}: line {error.lineno} column {error.colno}: not JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists in lists without end
        raise BadFile(f"{origin}: not an anchor ({error})") from None
    if not isinstance(raw, dict):
        raise BadFile(f"{origin}: expected one JSON object, found {type(raw).__name__}")
    raw = migrated(raw, SCHEMA_VERSION, origin)
    return decode(Anchor, raw, origin)


def checked(record: type[Record], values: Mapping[str, Any]) -> Record:
    """Build a record of this module from values that code computed; raises BadFile naming the first bad field."""
    return decode(record, values, f"the {record.__name__.lower()}")


def stated_fields(record: Any) -> dict[str, Any]:
    """A record as plain JSON values, without the fields that are at their defaults."""
    given = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if field.default is MISSING or value != field.default:
            given[field.name] = _plain(value)
    return given


def all_fields(record: Any) -> dict[str, Any]:
    """A record as plain JSON values, whole."""
    return {name: _listed(value) for name, value in asdict(record).items()}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return stated_fields(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _listed(item) for name, item in value.items()}
    return [_listed(item) for item in value] if isinstance(value, tuple | list) else value
