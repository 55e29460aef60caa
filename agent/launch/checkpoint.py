"""Which weights to load: the checkpoint of the wanted format, or the maker's own with the engine quantising it."""

from dataclasses import dataclass, replace

from agent.launch.types import Options
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


@dataclass(frozen=True, slots=True)
class Weights:
    """What servers load. ``quantize`` is the format the engine has to make of the checkpoint while loading it."""

    checkpoint: str
    quantize: str | None = None
    draft: str | None = None
    notes: tuple[Flag, ...] = ()


def weights(deployment: Deployment, card: ModelCard, vendor: str, options: Options) -> Weights:
    """Checkpoint and drafter as the operator names them, else by the model card."""
    main = Weights(options.checkpoint) if options.checkpoint else _checkpoint(deployment, card, vendor)
    if not deployment.speculation.active:
        return main
    if options.draft is not None or deployment.speculation.method not in NEEDS_DRAFT:
        return replace(main, draft=options.draft)
    note = (
        f"put the path or id of an EAGLE-3 drafter for {deployment.model} in place of {DRAFT_PLACEHOLDER}, "
        "or give --draft-model"
    )
    return replace(main, draft=DRAFT_PLACEHOLDER, notes=(*main.notes, Flag("drafter_unknown", note)))


def _checkpoint(deployment: Deployment, card: ModelCard, vendor: str) -> Weights:
    wanted = deployment.precision.weight
    maker = card.hf_ids[0] if card.hf_ids else None
    if maker is not None and wanted is card.weight_dtypes[0]:
        return Weights(maker)
    mark = MARKS.get((vendor, wanted), str(wanted).upper())
    known = next((name for name in card.hf_ids if mark in name.upper()), None)
    if known is not None:
        return Weights(known)
    online = ONLINE.get((deployment.engine, wanted))
    if maker is not None and online is not None and card.weight_dtypes[0] is Dtype.BF16:
        note = f"{deployment.engine} quantises {maker} to {online} while loading; a {wanted} checkpoint loads faster"
        return Weights(maker, online, notes=(Flag("quantised_on_load", note),))
    note = f"put the path or id of a {wanted} checkpoint of {card.name} in place of {PLACEHOLDER}, or give --checkpoint"
    return Weights(PLACEHOLDER, notes=(Flag("checkpoint_unknown", note),))
