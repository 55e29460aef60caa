"""The anchor artefact: one JSON file for one kernel set at one width (paper App. I).

Files come from people, so every field is validated and a malformed one is named with what was expected.
"""

import json
from hashlib import sha256
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from predictor.anchors.migrate import migrated
from predictor.errors import BadFile
from predictor.types import Dtype, Layout, Precision

SCHEMA_VERSION = 2


class Record(BaseModel):
    """Settings common to all parts of the artefact."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Signature(Record):
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
    spec_depth: int = Field(default=0, ge=0)
    tp: int = Field(default=1, gt=0)
    ep: int = Field(default=1, gt=0)
    attn_dp: int = Field(default=1, gt=0)
    dcp: int = Field(default=1, gt=0)

    @property
    def layout(self) -> Layout:
        """Layout the anchor was measured on; anchors never have pipeline stages."""
        return Layout(tp=self.tp, ep=self.ep, attn_dp=self.attn_dp, dcp=self.dcp)

    @property
    def precision(self) -> Precision:
        """Number formats of the anchor."""
        return Precision(self.weight_dtype, self.linear_dtype, self.expert_dtype, self.kv_dtype)


class Readings(Record):
    """Three readings of one step that do not share a fault: the median gap between tokens, (last − first)/(n − 1) of
    the requests, and the server's own counters."""

    median_gap_ms: float | None = Field(default=None, ge=0)
    span_ms: float | None = Field(default=None, gt=0)
    server_ms: float | None = Field(default=None, gt=0)


class DecodePoint(Record):
    """Median decode step at one batch; ``served_tpot_ms`` keeps what a served run reported, where steps were solved.

    ``error_pct`` is the standard error of a solved step, or the spread over repeats of a measured one.
    """

    batch: int = Field(gt=0)
    step_ms: float = Field(gt=0)
    served_tpot_ms: float | None = Field(default=None, gt=0)
    error_pct: float | None = Field(default=None, ge=0)
    readings: Readings | None = None


class DecodeSweep(Record):
    """Steps over batch sizes at one prompt length.

    ``single_wave`` reads the engine's step directly; ``served`` was solved from runs under continuous batching and has
    ``residual_pct``, how well the solved steps reproduce the runs, and ``determined``, whether the runs tell each step.
    ``scaled`` is the kernel models' sweep times the factor that reproduces one measured run: its shape is not measured.
    """

    prompt_tokens: int = Field(gt=0)
    output_tokens: int = Field(gt=0)
    kind: Literal["single_wave", "served", "scaled"] = "single_wave"
    points: tuple[DecodePoint, ...] = Field(min_length=1)
    residual_pct: float | None = None
    determined: bool | None = None

    @model_validator(mode="after")
    def _batches_rise(self) -> "DecodeSweep":
        batches = [point.batch for point in self.points]
        if batches != sorted(set(batches)):
            raise ValueError("batches must rise strictly")
        return self

    @property
    def context_tokens(self) -> float:
        """Mean context of a sequence while the sweep was taken."""
        return self.prompt_tokens + self.output_tokens / 2.0


class PrefillPoint(Record):
    """Time to process ``tokens`` prompt tokens in one step."""

    tokens: int = Field(gt=0)
    step_ms: float = Field(gt=0)


class PrefillSweep(Record):
    """``T(n) = fixed_ms + per_token_ms·n + per_token2_ms·n²`` and the points it was fitted on."""

    points: tuple[PrefillPoint, ...] = Field(min_length=1)
    fixed_ms: float = Field(ge=0)
    per_token_ms: float = Field(gt=0)
    per_token2_ms: float = Field(default=0.0, ge=0)
    rms_residual_ms: float | None = None


class PackedProbe(Record):
    """Several prompts of the billed length in one step, with the token budget that had to admit them."""

    sequences: int = Field(gt=1)
    tokens_each: int = Field(gt=0)
    step_ms: float = Field(gt=0)
    token_budget: int = Field(gt=0)


class Host(Record):
    """CPU time of a request that overlaps the GPU and is added to TTFT and end-to-end latency only."""

    per_request_ms: float = Field(default=0.0, ge=0)
    per_prompt_token_us: float = Field(default=0.0, ge=0)


class Check(Record):
    """One harvest check (paper App. E) with its numbers."""

    name: str
    passed: bool
    detail: str


class Source(Record):
    """A file the anchor was made from."""

    name: str
    sha256: str


class Provenance(Record):
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


class Anchor(Record):
    """One measured kernel set."""

    schema_version: Literal[2]
    name: str
    signature: Signature
    decode: tuple[DecodeSweep, ...] = Field(min_length=1)
    prefill: PrefillSweep
    packed_probe: PackedProbe | None = None
    tokens_per_step: float = Field(default=1.0, ge=1.0)
    kv_pool_tokens: int | None = Field(default=None, gt=0)  # from the engine's start log
    host: Host = Host()
    provenance: Provenance

    @property
    def content_hash(self) -> str:
        """Identity of what was measured: SHA-256 of the canonical JSON of every field that is not at its default.

        The schema's version is left out, so that a migrated file keeps its identity.
        """
        stated = self.model_dump(mode="json", exclude_defaults=True, exclude={"schema_version"})
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

    def sweep_for(self, prompt_tokens: int) -> DecodeSweep:
        """The sweep measured nearest in prompt length (in ratio); the shorter one on a tie."""
        return min(
            self.decode,
            key=lambda sweep: (
                max(sweep.prompt_tokens, prompt_tokens) / min(sweep.prompt_tokens, prompt_tokens),
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
    if not isinstance(raw, dict):
        raise BadFile(f"{origin}: expected one JSON object, found {type(raw).__name__}")
    raw = migrated(raw, SCHEMA_VERSION, origin)
    try:
        return Anchor.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole object"
        given = "" if first["type"] == "missing" else f", given {_short(first['input'])}"
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise BadFile(f"{origin}: field {where}: {first['msg']}{given}{more}") from None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
