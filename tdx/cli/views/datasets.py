"""Statistics of the data of a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from tdx.cli.views import Block, Cell, Heading, Table, View, dim, fact, first_that_fits
from tdx.foundation.text import count_text
from tdx.inspection.dataset_check import ComponentStatistics, DatasetFacts, FeatureStatistics
from tdx.specs.leaf import shape_text

MAX_ROWS = 16
"""Rows of a feature, unless it is the only one that is shown."""
_NUMBERS = {
    "mean": "mean",
    "std": "std",
    "min": "minimum",
    "q01": "q01",
    "q50": "q50",
    "q99": "q99",
    "max": "maximum",
}
"""Attribute of each column."""
_OPTIONAL = ("q01", "q99", "q50")
"""Columns that a narrow terminal may lack."""
_STORED = {"agree": "stored statistics agree", "missing": "no stored statistics"}


def dataset_view(facts: DatasetFacts, *, whole: bool) -> View:
    """Lay out the statistics of each feature, and how those that the dataset stores differ."""
    dataset, features = facts.dataset, facts.features
    aside = f"{dataset.title}  {count_text(dataset.steps, 'step')}"
    aside += "" if dataset.fps is None else f"  {dataset.fps:g} per second"
    aside += f"  {_STORED['missing']}" if dataset.stored is None else ""

    def blocks() -> list[Block]:
        title = Heading(str(dataset.path), aside, level=1)
        if not features:
            return [title, dim("no numeric observations or actions, and no images")]
        # Together, so that all tables have the same number of digits.
        layouts = (partial(_features, features, digits, whole=whole) for digits in (4, 3))
        return [title, first_that_fits(*layouts)]

    return View("dataset", facts, blocks, lambda: _records(features))


def _features(
    features: Sequence[FeatureStatistics], digits: int, *, whole: bool
) -> Iterator[Block]:
    for feature in features:
        asides = [f"{shape_text(feature.shape)} {feature.dtype}"]
        noun = "frame" if feature.is_image else "step"
        if feature.read < feature.total:
            asides.append(f"{feature.read:,} of {count_text(feature.total, noun)}")
        if feature.stored in _STORED:
            asides.append(_STORED[feature.stored])
        yield Heading(feature.key, "  ".join(asides))
        if feature.difference is not None:
            yield fact("stored statistics differ", feature.difference, title_style="bad")
        if feature.nonfinite:
            left_out = "whose pixels are left out" if feature.is_image else "left out"
            text = f"{count_text(feature.nonfinite, noun)}, {left_out}"
            yield fact("NaN or infinite", text, title_style="bad")
        if feature.skipped is not None:
            yield fact("not decoded", feature.skipped)
        if feature.components:
            shown = feature.components[: None if whole else MAX_ROWS]
            yield _table(feature, shown, digits)
            if hidden := len(feature.components) - len(shown):
                yield dim(f"{hidden:,} more: --key {feature.key} shows all")


def _table(
    feature: FeatureStatistics, components: Sequence[ComponentStatistics], digits: int
) -> Table:
    # Images have no quantiles.
    numbers = [name for name in _NUMBERS if not (feature.is_image and name in _OPTIONAL)]
    rows = []
    for component in components:
        label = str(component.index) if component.name is None else component.name
        values = (getattr(component, _NUMBERS[name]) for name in numbers)
        rows.append([Cell(label, "name"), *(Cell(f"{value:.{digits}g}") for value in values)])
    titles = ["channel" if feature.is_image else "", *numbers]
    return Table.of(titles, rows, fixed=True, numbers=numbers, optional=_OPTIONAL)


def _records(features: Sequence[FeatureStatistics]) -> Iterator[dict[str, object]]:
    """Yield a record for each number and channel, and one for a feature without any."""
    for feature in features:
        whole = feature.to_dict()
        components = whole.pop("components")
        for component in components or [{}]:
            yield {**whole, **component}
