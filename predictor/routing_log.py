"""Routing logs: which experts a checkpoint's own router chose, token by token and layer by layer (paper App. B.3).

Two readers. SGLang's expert-distribution recorder in ``per_token`` mode writes a PyTorch file with one record a forward
pass (``topk_ids_of_layer`` of shape layers × tokens × 8, −1 where unused, ``forward_mode``, ``extend_seq_lens``); it is
read here without PyTorch, and nothing but tensors and plain containers is ever unpickled. A plain NumPy array of shape
tokens × layers × top-k serves every other source.

A decode pass holds one token of each running request. A prefill run is the contiguous tokens of one prompt in one pass.
"""

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.errors import BadFile
from predictor.expert_load import Phase

IdArray = npt.NDArray[np.int32]

# SGLang's ForwardMode (python/sglang/srt/model_executor/forward_batch_info.py): EXTEND 1, DECODE 2, MIXED 3; the others
# (idle, verification, drafting) are not steps of the main model over distinct requests and are skipped.
_EXTEND, _DECODE, _MIXED = 1, 2, 3


@dataclass(frozen=True, slots=True)
class RoutingLog:
    """Top-k choices of a checkpoint, by pass. Arrays have shape (tokens, layers, topk), −1 where nothing was routed.

    ``decode_steps``: one array a pass, every token of another request. ``prefill_runs``: one array a prompt chunk.
    """

    experts: int
    topk: int
    decode_steps: tuple[IdArray, ...]
    prefill_runs: tuple[IdArray, ...]
    source: str

    def windows(self, phase: Phase, tokens: int, limit: int = 64) -> tuple[IdArray, ...]:
        """Up to ``limit`` disjoint windows of ``tokens`` tokens: parts of one decode step, or runs of one prompt."""
        parts = self.decode_steps if phase == "decode" else self.prefill_runs
        found = [p[at : at + tokens] for p in parts for at in range(0, len(p) - tokens + 1, tokens)]
        if len(found) <= limit:
            return tuple(found)
        return tuple(found[index * len(found) // limit] for index in range(limit))

    def loads(self) -> npt.NDArray[np.float64]:
        """Routings of each expert over the whole log, shape (layers, experts): the long-run load EPLB balances."""
        total = np.zeros((self.layers, self.experts))
        for part in (*self.decode_steps, *self.prefill_runs):
            total += counts(part, self.experts)
        return total

    @property
    def layers(self) -> int:
        """MoE layers in the log."""
        return int((*self.decode_steps, *self.prefill_runs)[0].shape[1])


def counts(ids: IdArray, experts: int) -> npt.NDArray[np.int64]:
    """Routings of each expert in each layer: ids (tokens, layers, topk) to (layers, experts)."""
    layers = ids.shape[1]
    cells = ids + np.arange(layers, dtype=np.int64)[None, :, None] * experts
    return np.bincount(cells[ids >= 0], minlength=layers * experts).reshape(layers, experts)


def read_array(path: Path, experts: int, phase: Phase) -> RoutingLog:
    """Read a plain ``.npy`` array of shape tokens × layers × top-k.

    ``phase`` says what its rows are: ``prefill``, the tokens of one prompt in order; ``decode``, tokens of as many
    different requests, so that any consecutive rows stand for one step.
    """
    try:
        ids = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise BadFile(f"{path}: not a NumPy array file ({error})") from error
    if ids.ndim != 3 or not np.issubdtype(ids.dtype, np.integer):
        raise BadFile(f"{path}: expected integers of shape tokens × layers × top-k, found {ids.dtype} {ids.shape}")
    part = _checked(ids.astype(np.int32), experts, str(path))
    return _log((part,) if phase == "decode" else (), (part,) if phase == "prefill" else (), experts, str(path))


def read_sglang(path: Path, experts: int) -> RoutingLog:
    """Read one rank's ``expert_distribution_recorder_*.pt`` of SGLang's recorder in ``per_token`` mode."""
    content = read_torch(path)
    records = content.get("records") if isinstance(content, Mapping) else None
    if not isinstance(records, Sequence) or not records:
        raise BadFile(
            f"{path}: no records; dump with --expert-distribution-recorder-mode per_token (stat modes keep sums only)"
        )
    to_logical = content.get("last_physical_to_logical_map")
    decode: list[IdArray] = []
    prefill: list[IdArray] = []
    for number, record in enumerate(records):
        ids = _record_ids(record, to_logical, f"{path}: record {number}")
        checked = _checked(ids, experts, f"{path}: record {number}")
        if record["forward_mode"] == _DECODE:
            decode.append(checked)
        elif record["forward_mode"] in (_EXTEND, _MIXED):
            lengths = record.get("extend_seq_lens") or [len(checked)]
            # A mixed pass lists its decode requests as extensions of one token.
            prefill += [run for run in _split(checked, lengths) if len(run) > 1]
    return _log(tuple(decode), tuple(prefill), experts, str(path))


def _record_ids(record: Mapping[str, Any], to_logical: Any, where: str) -> IdArray:
    """Logical expert ids of one pass, shape (tokens, layers, 8)."""
    try:
        ids = np.asarray(record["topk_ids_of_layer"], dtype=np.int32)
        record["forward_mode"]
    except (KeyError, TypeError) as error:
        raise BadFile(f"{where}: missing {error}") from error
    if to_logical is not None:
        table = np.asarray(to_logical, dtype=np.int32)
        mapped = np.take_along_axis(table, np.maximum(ids, 0).reshape(len(ids), -1), axis=1).reshape(ids.shape)
        ids = np.where(ids >= 0, mapped, -1).astype(np.int32)
    return np.ascontiguousarray(ids.transpose(1, 0, 2))


def _split(ids: IdArray, lengths: Iterable[int]) -> Iterator[IdArray]:
    start = 0
    for length in lengths:
        yield ids[start : start + length]
        start += length


def _checked(ids: IdArray, experts: int, where: str) -> IdArray:
    if ids.size and (ids.max() >= experts or ids.min() < -1):
        raise BadFile(f"{where}: expert ids span {ids.min()} to {ids.max()}; the model has {experts} experts")
    return ids


def _log(decode: tuple[IdArray, ...], prefill: tuple[IdArray, ...], experts: int, source: str) -> RoutingLog:
    """Drop layers without a router and unused top-k columns, alike in every part."""
    parts = (*decode, *prefill)
    if not parts:
        raise BadFile(f"{source}: no decode step and no prompt in the log")
    used = np.any([np.any(part >= 0, axis=0) for part in parts], axis=0)  # (layers, topk columns)
    layers, columns = used.any(axis=1), used.any(axis=0)
    if not layers.any():
        raise BadFile(f"{source}: nothing was routed in the log")

    def keep(part: IdArray) -> IdArray:
        return np.ascontiguousarray(part[:, layers][:, :, columns])

    return RoutingLog(
        experts, int(columns.sum()), tuple(keep(p) for p in decode), tuple(keep(p) for p in prefill), source
    )


# ---- PyTorch's zip format ------------------------------------------------------------------------------------------

_STORAGE_DTYPES = {
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
}


def read_torch(path: Path) -> Any:
    """Tensors (as NumPy arrays) and plain containers of a file written by ``torch.save``; anything else is refused."""
    try:
        with zipfile.ZipFile(path) as archive:
            pickled = next((name for name in archive.namelist() if name.endswith("/data.pkl")), None)
            if pickled is None:
                raise BadFile(f"{path}: not a PyTorch file (no data.pkl)")
            with archive.open(pickled) as stream:
                return _TensorUnpickler(stream, archive, pickled.removesuffix("data.pkl"), path).load()
    except (OSError, zipfile.BadZipFile, pickle.UnpicklingError, EOFError, KeyError) as error:
        raise BadFile(f"{path}: not a readable PyTorch file ({error})") from error


class _TensorUnpickler(pickle.Unpickler):
    """Unpickler that knows tensors and their storages, and no other class."""

    def __init__(self, stream: Any, archive: zipfile.ZipFile, prefix: str, path: Path) -> None:
        super().__init__(stream)
        self._archive, self._prefix, self._path = archive, prefix, path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild_tensor
        if module == "torch" and name in _STORAGE_DTYPES:
            return _STORAGE_DTYPES[name]
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        raise BadFile(f"{self._path}: holds a {module}.{name}; only tensors and plain containers are read")

    def persistent_load(self, pid: Any) -> Any:
        _, dtype, key, _, elements = pid
        return np.frombuffer(self._archive.read(f"{self._prefix}data/{key}"), dtype=dtype, count=elements)


def _rebuild_tensor(
    storage: npt.NDArray[Any], offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any
) -> npt.NDArray[Any]:
    step = storage.dtype.itemsize
    return np.lib.stride_tricks.as_strided(
        storage[offset:], shape=size, strides=tuple(s * step for s in stride), writeable=False
    ).copy()
