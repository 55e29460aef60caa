"""Which weights to load: the checkpoint of the wanted format, or the maker's own with the engine quantising it."""

from predictor.cards import ModelCard
from predictor.types import Deployment, Dtype, Flag

PLACEHOLDER = "CHECKPOINT"  # written where no id is known; a note says what to put there
DRAFT_PLACEHOLDER = "DRAFT_MODEL"
MARKS = {("amd", Dtype.FP4): "MXFP4", ("nvidia", Dtype.FP4): "NVFP4"}  # else the format's own name
ONLINE = {  # formats an engine can make from a wider checkpoint while loading it
    ("vLLM", Dtype.FP8): "fp8",
    ("SGLang", Dtype.FP8): "fp8",
    ("ATOM", Dtype.FP8): "ptpc_fp8",
    ("ATOM", Dtype.FP4): "mxfp4",
}
NEEDS_DRAFT = ("eagle3",)


def weights(
    deployment: Deployment, card: ModelCard, vendor: str, given: str | None
) -> tuple[str, str | None, tuple[Flag, ...]]:
    """(checkpoint, format to quantise to while loading, notes)."""
    if given is not None:
        return given, None, ()
    wanted = deployment.precision.weight
    maker = card.hf_ids[0] if card.hf_ids else None
    if maker is not None and wanted is card.weight_dtypes[0]:
        return maker, None, ()
    mark = MARKS.get((vendor, wanted), str(wanted).upper())
    known = next((name for name in card.hf_ids if mark in name.upper()), None)
    if known is not None:
        return known, None, ()
    online = ONLINE.get((deployment.engine, wanted))
    if maker is not None and online is not None and card.weight_dtypes[0] is Dtype.BF16:
        note = f"{deployment.engine} quantises {maker} to {online} while loading; a {wanted} checkpoint loads faster"
        return maker, online, (Flag("quantised_on_load", note),)
    note = f"put the path or id of a {wanted} checkpoint of {card.name} in place of {PLACEHOLDER}, or give --checkpoint"
    return PLACEHOLDER, None, (Flag("checkpoint_unknown", note),)


def drafter(deployment: Deployment, given: str | None) -> tuple[str | None, tuple[Flag, ...]]:
    """(draft weights, notes): EAGLE-3 needs a drafter of its own; MTP heads come with the checkpoint."""
    if given is not None or deployment.speculation.method not in NEEDS_DRAFT or not deployment.speculation.active:
        return given if deployment.speculation.active else None, ()
    note = (
        f"put the path or id of an EAGLE-3 drafter for {deployment.model} in place of {DRAFT_PLACEHOLDER}, "
        "or give --draft-model"
    )
    return DRAFT_PLACEHOLDER, (Flag("drafter_unknown", note),)
