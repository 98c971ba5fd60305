"""Where a key comes from and where it goes, in a few lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from textual.content import Content

from tdx.inspection.chain import Direction
from tdx.inspection.lineage import FlowNode, KeyVersion, Lineage


def lineage_text(
    lineage: Lineage, key: str, lane: Direction, places: Sequence[int | None]
) -> Content:
    """The versions of a key, one a line, in the order in which the data flow.

    Args:
        lineage: the lineage of the whole chain.
        key: the key, with dots.
        lane: the direction.
        places: for each stage of the lineage, its place in the chain that the user sees; ``None``
            for a stage that the env itself has.
    """
    known = lineage.only([key]).versions if key in lineage.keys() else ()
    versions = [version for version in known if version.lane == lane]
    if not versions:
        return Content.assemble((f"{key} ", "bold"), ("comes from the step before", "dim"))
    return Content("\n").join(_line(version, places) for version in versions)


def _line(version: KeyVersion, places: Sequence[int | None]) -> Content:
    return Content.assemble(*_parts(version, places))


def _parts(version: KeyVersion, places: Sequence[int | None]) -> Iterator[tuple[str, str]]:
    yield (version.name, "bold $accent")
    yield ("  by ", "dim")
    yield (_named(version.writer, places), "")
    if version.source is not None:
        yield (" from ", "dim")
        yield (version.source, "")
    if version.readers:
        yield ("  → ", "dim")
        yield (", ".join(_named(reader, places) for reader in version.readers), "")
    if version.ended is not None:
        yield ("  ends in ", "dim")
        yield (_named(version.ended, places), "")


def _named(place: FlowNode, places: Sequence[int | None]) -> str:
    if place.kind != "stage" or place.stage is None:
        return place.kind
    at = places[place.stage] if place.stage < len(places) else place.stage
    name = f"env's {place.name}" if at is None else f"{at} {place.name}"
    return name + (" (next step)" if place.next_step else "")
