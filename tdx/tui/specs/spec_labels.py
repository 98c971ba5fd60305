"""How one key of the spec tree is written, with what changed in colour."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from textual.content import Content

from tdx.inspection.leaf import LeafSpec, domain_text, shape_text
from tdx.inspection.spec_report import KeyChange

_SIGNS = {"added": "+", "gone": "-", "changed": "~", "same": " "}
_COLOURS = {
    "added": "$success",
    "gone": "$error",
    "changed": "$warning",
    "same": "",
}


@dataclass(frozen=True, slots=True)
class Widths:
    """The widths of the columns.

    Args:
        key: of the keys, with their indentation.
        shape: of the shapes.
        dtype: of the dtypes.
        device: of the devices; nothing where they are all the same.
    """

    key: int
    shape: int
    dtype: int
    device: int

    @classmethod
    def of(cls, keys: Iterable[int], leaves: Iterable[LeafSpec]) -> Widths:
        """Wide enough for everything."""
        known = list(leaves)
        devices = {leaf.device for leaf in known}
        return cls(
            max(keys, default=0),
            max((len(shape_text(leaf.shape)) for leaf in known), default=0),
            max((len(leaf.dtype) for leaf in known), default=0),
            max(map(len, devices)) if len(devices) > 1 else 0,
        )


def key_label(
    name: str, change: KeyChange, widths: Widths, indent: int, *, found: bool = False
) -> Content:
    """One key: its sign, its name, its spec; a changed one with what it was before.

    Args:
        name: what stands for the key.
        change: its specs on both sides.
        widths: the widths of the columns.
        indent: how far the name stands to the right.
        found: whether it is among what is searched for.
    """
    colour = _COLOURS[change.change]
    struck = " strike" if change.change == "gone" else ""
    line = " bold underline" if found else ""
    pad = " " * max(0, widths.key - indent - len(name))
    head = Content.assemble(
        (f"{_SIGNS[change.change]} ", f"bold {colour}".strip()),
        (name, f"{colour or '$foreground'}{struck}{line}"),
        f"{pad}  ",
    )
    leaf = change.after or change.before
    assert leaf is not None
    if change.change != "changed":
        style = colour or "dim"
        return Content.assemble(head, (" ".join(_columns(leaf, widths)).rstrip(), style + struck))
    return Content.assemble(head, *_changed(change, widths))


def _changed(change: KeyChange, widths: Widths) -> Iterable[Content | tuple[str, str]]:
    """The new spec with what differs in colour, and behind it what that was before."""
    before, after = change.before, change.after
    assert before is not None
    assert after is not None
    fields = ("shape", "dtype", "device", "domain")
    old: list[str] = []
    for field, new, was in zip(fields, _columns(after, widths), _plain(before), strict=True):
        differs = getattr(before, field) != getattr(after, field)
        yield (f"{new} ", "bold $warning" if differs else "dim")
        if differs and was:
            old.append(was)
    if change.fields == ("kind",):
        old.append(before.kind)
    yield ("← " + " ".join(old), "dim")


def _columns(leaf: LeafSpec, widths: Widths) -> tuple[str, str, str, str]:
    shape, dtype, device, domain = _plain(leaf)
    device = device.ljust(widths.device) if widths.device else ""
    return shape.ljust(widths.shape), dtype.ljust(widths.dtype), device, domain


def _plain(leaf: LeafSpec) -> tuple[str, str, str, str]:
    domain = domain_text(leaf, whole=False)
    return shape_text(leaf.shape), leaf.dtype, leaf.device, domain
