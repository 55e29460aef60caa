"""Anchor files of earlier schema versions, brought forward one version at a time.

A step is a pure function from one version's JSON to the next's. Files on disk are never rewritten by reading them.
"""

from collections.abc import Callable, Mapping
from typing import Any

from predictor.errors import BadFile

Raw = dict[str, Any]


def _to_2(raw: Raw) -> Raw:
    """Version 2 adds readings, errors, checks and sources. All may be absent, so old figures stand as they are."""
    return raw


MIGRATIONS: Mapping[int, Callable[[Raw], Raw]] = {1: _to_2}


def migrated(raw: Mapping[str, Any], wanted: int, origin: str) -> Raw:
    """The file's JSON at version ``wanted``.

    Raises BadFile for a version that no step leads from, and for one that is newer than this release.
    """
    version = raw.get("schema_version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise BadFile(f"{origin}: field schema_version is {version!r}, expected {wanted} or an earlier version")
    if version > wanted:
        raise BadFile(
            f"{origin}: field schema_version is {version}, expected {wanted} or earlier: written by a newer release"
        )
    result = dict(raw)
    while version < wanted:
        if version not in MIGRATIONS:
            raise BadFile(
                f"{origin}: field schema_version is {version}, which nothing leads on from; expected {wanted}"
            )
        result = MIGRATIONS[version](result)
        version += 1
    result["schema_version"] = wanted
    return result
