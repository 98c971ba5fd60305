"""What stages do, and the pairs of stages of two stacks that do the same."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import combinations, islice, pairwise, product

from tdx.compare.alignment import Status, match_stages
from tdx.compare.model import Contract, Lane, StageRecord
from tdx.compare.values import EXACT, Tolerance, digest, float_tolerance

PASSIVE = ("plumbing", "monitor", "limit")
"""Roles of stages that do not change what a policy reads or does."""
REWARD_ROLES = ("clip reward", "normalize reward")
"""Roles of stages that change rewards only."""
TRAINING = ("episodic life", "noop reset", *REWARD_ROLES)
"""Roles that belong to a training, so that an evaluation does well without them."""
STACK = "stack frames"
SKIP = "skip frames"
NORMALIZE = "normalize"
RESCALE_ACTION = "rescale action"

_ROLES: tuple[tuple[str, str], ...] = (
    (
        "plumbing",
        r"passiveenvchecker|orderenforcing|dummyvecenv|subprocvecenv|(a?sync)vectorenv|autoreset|"
        r"veccheckna?n|humanrendering|rendercollection|recordvideo|vecvideorecorder|"
        r"devicecasttransform|pinmemorytransform|videorecorder|atariwrapper",
    ),
    (
        "monitor",
        r"monitor|vecmonitor|recordepisodestatistics|rewardsum|stepcounter|trajcounter|timer",
    ),
    ("limit", r"timelimit|randomtruncationtransform"),
    (NORMALIZE, r"normalizeobservation|vecnormalize|vecnorm|vecnormv2|observationnorm"),
    (STACK, r"framestackobservation|vecframestack|catframes|framestack"),
    (RESCALE_ACTION, r"rescaleaction|actionscaling"),
    ("clip action", r"clipaction"),
    ("flatten", r"flattenobservation|cattensors"),
    ("grayscale", r"grayscaleobservation|grayscale|grayscalewrapper"),
    ("resize", r"resizeobservation|resize|warpframe"),
    ("transpose", r"vectransposeimage|permutetransform"),
    ("to tensor image", r"totensorimage"),
    ("cast", r"dtypeobservation|doubletofloat|dtypecasttransform"),
    (
        SKIP,
        r"(frameskip|skipframes?|actionrepeat|repeataction)(transform|wrapper|env)?|"
        r"maxandskip(observation|env|wrapper)",
    ),
    ("rescale observation", r"rescaleobservation"),
    ("episodic life", r"episodiclifeenv|episodiclife|endoflifetransform"),
    ("noop reset", r"noopresetenv|noopreset"),
    ("clip reward", r"cliprewardenv|clipreward|rewardclipping"),
    ("normalize reward", r"normalizereward"),
)


def role_of(name: str) -> str:
    """Return what a stage does by the name of its class; the name itself if it is not known.

    Example:
        >>> role_of("VecNormalize"), role_of("CatFrames"), role_of("MyWrapper")
        ('normalize', 'stack frames', 'MyWrapper')
    """
    folded = name.casefold()
    return next((role for role, names in _ROLES if re.fullmatch(names, folded)), name)


_EXACT = {STACK, "flatten", "transpose", "cast", "clip action", SKIP, *PASSIVE}


def tolerance_of(role: str, dtypes: Sequence[str], *, first: bool = False) -> Tolerance:
    """Return the tolerance of a stage by what it does and by the dtypes that it writes.

    ``first``: no stage before it rounds, so that moving values keeps them exactly.

    Example:
        >>> tolerance = tolerance_of("normalize", ["float32"])
        >>> tolerance.rtol, tolerance.atol
        (0.0001, 1e-05)
    """
    widest = float_tolerance(dtypes)
    if role in ("resize", "grayscale") and widest == EXACT:
        # Libraries round the same pixel up or down.
        return Tolerance(0.0, 1.0)
    if first and role in _EXACT:
        return EXACT
    if role == NORMALIZE:
        return _scaled(widest, 10, 10)
    if role in ("resize", "grayscale"):
        return _scaled(widest, 100, 1_000)
    return widest


def _scaled(tolerance: Tolerance, rtol: float, atol: float) -> Tolerance:
    """Multiply both parts; as short decimal numbers."""
    return Tolerance(float(f"{tolerance.rtol * rtol:.3g}"), float(f"{tolerance.atol * atol:.3g}"))


@dataclass(frozen=True, slots=True)
class Pair:
    """A stage of both sides, or of one.

    Args:
        status: ``missing`` if only the contract has it, ``extra`` if only the target has it.
        a: Stage of the contract.
        b: Stage of the target.
        is_passive: True if it does not change what a policy reads or does.
    """

    status: Status
    a: StageRecord | None
    b: StageRecord | None
    is_passive: bool = False


Tags = frozenset[tuple[int, int, str]]
"""What tells stages apart: 0 for the contract or 1 for the target, the index, and a text.

Stages with the same text on both sides are paired; one without a counterpart is not.
"""
_MAX_CHOICES = 12
_MAX_OFFSET = 3


def trial_pairs(a: Contract, b: Contract) -> Iterator[Tags]:
    """Yield pairs of stages that may do the same, each in one of few replays.

    Stages without known arguments, such as those that call a function, can only be told apart by
    what they do. Each trial pairs every stage with the one that is as many places further.
    """
    ours, theirs = relevant_stages(a), relevant_stages(b)
    # A class that says what it does keeps its counterpart: without its inputs, it may fail.
    named = [
        (pair.a.index, pair.b.index)
        for pair in align(a, b)
        if pair.status == "paired" and pair.a is not None and pair.b is not None
        if _says_what_it_does(a, pair.a) and _identity(a, b, pair.a) == _identity(a, b, pair.b)
    ]
    known = [{pair[side] for pair in named} for side in (0, 1)]
    rest = [
        [stage for stage in stages if stage.index not in indices]
        for stages, indices in zip((ours, theirs), known, strict=True)
    ]
    if max(map(len, rest)) < 2:
        return
    for offset in range(-_MAX_OFFSET, _MAX_OFFSET + 1):
        shifted = [
            (one.index, other.index)
            for place, one in enumerate(rest[0])
            if 0 <= place + offset < len(rest[1])
            for other in (rest[1][place + offset],)
            if _may_pair(a, b, one, other)
        ]
        in_order = [pair for pair in shifted if _is_in_order(pair, named)]
        if in_order:
            yield _tags((ours, theirs), sorted((*named, *in_order)))
        if len(in_order) < len(shifted):
            # A stage may have moved past one that keeps its counterpart.
            kept = [pair for pair in named if _is_in_order(pair, shifted)]
            yield _tags((ours, theirs), sorted((*kept, *shifted)))


def _is_in_order(pair: tuple[int, int], others: Sequence[tuple[int, int]]) -> bool:
    return all((pair[0] < i) == (pair[1] < j) for i, j in others)


def equal_stages(a: Contract, b: Contract) -> set[tuple[int, int]]:
    """Return the stages of both that made the same values, or have the same known arguments."""
    ours, theirs = relevant_stages(a), relevant_stages(b)
    # Stages of a user may have the same arguments and do something else.
    counts = [
        Counter(_exact_identity("", contract, stage, with_values=False) for stage in stages)
        for contract, stages in ((a, ours), (b, theirs))
    ]

    def are_equal(one: StageRecord, other: StageRecord, *, with_values: bool) -> bool:
        identities = [
            _exact_identity("", contract, stage, with_values=with_values)
            for contract, stage in ((a, one), (b, other))
        ]
        is_telling = with_values or (
            bool(one.arguments) and all(count[identities[0]] == 1 for count in counts)
        )
        return is_telling and len(set(identities)) == 1

    return {
        (one.index, other.index)
        for one, other in pairs_of_one_class(a, b)
        if any(are_equal(one, other, with_values=with_values) for with_values in (True, False))
    }


def pairs_of_one_class(a: Contract, b: Contract) -> Iterator[tuple[StageRecord, StageRecord]]:
    """Yield the stages of both that may do the same by their class."""
    for one, other in product(relevant_stages(a), relevant_stages(b)):
        if _identity(a, b, one) == _identity(a, b, other):
            yield one, other


def _may_pair(a: Contract, b: Contract, one: StageRecord, other: StageRecord) -> bool:
    """Return True for stages of one class, or if recorded calls can tell that they do the same."""
    is_unknown = not (_says_what_it_does(a, one) and _says_what_it_does(b, other))
    is_recorded = a.recording is not None and a.kind == b.kind
    return (is_recorded and is_unknown) or _identity(a, b, one) == _identity(a, b, other)


def _tags(
    sides: tuple[list[StageRecord], list[StageRecord]], pairs: Sequence[tuple[int, int]]
) -> Tags:
    """Return the tags of pairs, and of the stages that have no counterpart."""
    paired = {
        (side, index): f"pair {place}"
        for place, pair in enumerate(pairs)
        for side, index in enumerate(pair)
    }
    return frozenset(
        (side, stage.index, paired.get((side, stage.index), f"only {side} {stage.index}"))
        for side, stages in enumerate(sides)
        for stage in stages
    )


def choices_of_pairs(a: Contract, b: Contract, same: Set[tuple[int, int]]) -> Iterator[Tags]:
    """Yield pairs of stages: those that do the same, and of the others those that may differ.

    ``same`` are the indices of stages of both that do the same with the recorded inputs.
    """
    ours, theirs = relevant_stages(a), relevant_stages(b)
    anchors = _longest_chain(a, b, ours, theirs, same)
    rest = [
        [stage for stage in stages if stage.index not in {pair[side] for pair in anchors}]
        for side, stages in enumerate((ours, theirs))
    ]
    moved: list[tuple[int, int]] = []
    for one in list(rest[0]):
        for other in rest[1]:
            if (one.index, other.index) in same or _is_named(a, b, one, other):
                moved.append((one.index, other.index))
                rest[0].remove(one)
                rest[1].remove(other)
                break
    # Between the pairs of equal stages, the others are paired in order.
    sections: list[Sequence[tuple[tuple[int, int], ...]]] = []
    for before, after in pairwise([(-1, -1), *anchors, (len(a.stages), len(b.stages))]):
        gaps = [
            [s for s in side if before[number] < s.index < after[number]]
            for number, side in enumerate(rest)
        ]
        count = min(map(len, gaps))
        sections.append(
            [
                tuple((one.index, other.index) for one, other in zip(*chosen, strict=True))
                for chosen in product(*(combinations(gap, count) for gap in gaps))
                if all(_may_pair(a, b, i, j) for i, j in zip(*chosen, strict=True))
            ]
            or [()]
        )
    for chosen in islice(product(*sections), _MAX_CHOICES):
        yield _tags((ours, theirs), [*anchors, *moved, *(pair for part in chosen for pair in part)])


def _longest_chain(
    a: Contract,
    b: Contract,
    ours: list[StageRecord],
    theirs: list[StageRecord],
    same: Set[tuple[int, int]],
) -> list[tuple[int, int]]:
    """Return the most pairs in order that do the same, or have a class that says what they do."""
    best: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for i, j in product(range(len(ours), -1, -1), range(len(theirs), -1, -1)):
        chains: list[list[tuple[int, int]]] = [[]]
        if i < len(ours) and j < len(theirs):
            one, other = ours[i], theirs[j]
            chains = [best[i + 1, j], best[i, j + 1]]
            if _is_named(a, b, one, other) or (one.index, other.index) in same:
                chains.insert(0, [(one.index, other.index), *best[i + 1, j + 1]])
        best[i, j] = max(chains, key=lambda chain: (len(chain), len(same & set(chain))))
    return best[0, 0]


def _is_named(a: Contract, b: Contract, one: StageRecord, other: StageRecord) -> bool:
    return _says_what_it_does(a, one) and _identity(a, b, one) == _identity(a, b, other)


def _says_what_it_does(contract: Contract, stage: StageRecord) -> bool:
    """Return True if the class of a stage says what it does, as the steps of LeRobot do."""
    return stage.has_known_role or contract.kind == "checkpoint"


def _identity(a: Contract, b: Contract, stage: StageRecord) -> str:
    return stage.name if a.kind == b.kind and not stage.has_known_role else stage.role


def align(a: Contract, b: Contract, tags: Tags = frozenset()) -> list[Pair]:
    """Pair the stages of a contract and a target that change what a policy reads or does.

    The pairs are in the order of the target; a missing stage is where the contract has it.
    """
    ours, theirs = relevant_stages(a), relevant_stages(b)

    def identity(stage: StageRecord) -> str:
        return _identity(a, b, stage)

    # A stage that has a counterpart at another place is not renamed.
    texts = [{text for side, _, text in tags if side == number} for number in (0, 1)]
    counterparts = [
        {index for side, index, text in tags if side == number and text in texts[1 - number]}
        for number in (0, 1)
    ]

    def pair_renamed(a_range: range, b_range: range) -> list[tuple[int, int]]:
        # Stages at the same position that write the same have another class name.
        pairs = list(zip(a_range, b_range, strict=False))
        is_renamed = len(a_range) == len(b_range) and all(
            _is_renamed(a, ours[i], theirs[j])
            and ours[i].index not in counterparts[0]
            and theirs[j].index not in counterparts[1]
            for i, j in pairs
        )
        return pairs if is_renamed else []

    identities = _told_apart((a, b), (ours, theirs), identity)
    known = {(side, index): text for side, index, text in tags}
    for side, (stages, names) in enumerate(zip((ours, theirs), identities, strict=True)):
        for place, stage in enumerate(stages):
            names[place] = known.get((side, stage.index), names[place])
    matches = match_stages(*identities, pair_renamed)
    return [
        Pair(
            match.status,
            None if match.a is None else ours[match.a],
            None if match.b is None else theirs[match.b],
        )
        for match in matches
    ]


def _told_apart(
    contracts: tuple[Contract, Contract],
    sides: tuple[list[StageRecord], list[StageRecord]],
    identity: Callable[[StageRecord], str],
) -> tuple[list[str], list[str]]:
    """Return the identities of both sides.

    Several equal ones are told apart by their arguments, state and values, then without the values.
    """
    counts = [Counter(map(identity, side)) for side in sides]
    names: tuple[dict[int, str], dict[int, str]] = ({}, {})
    for with_values in (True, False):
        found = [
            {
                place: _exact_identity(identity(stage), contract, stage, with_values=with_values)
                for place, stage in enumerate(side)
                if place not in named and max(count[identity(stage)] for count in counts) > 1
            }
            for contract, side, named in zip(contracts, sides, names, strict=True)
        ]
        known = set(found[0].values()) & set(found[1].values())
        for named, exact in zip(names, found, strict=True):
            named |= {place: name for place, name in exact.items() if name in known}
    ours, theirs = (
        [named.get(place, identity(stage)) for place, stage in enumerate(side)]
        for side, named in zip(sides, names, strict=True)
    )
    return ours, theirs


def _exact_identity(
    identity: str, contract: Contract, stage: StageRecord, *, with_values: bool
) -> str:
    state = [(tensor.name, tensor.digest) for tensor in stage.state]
    values = [
        (lane, key, digest(each.numbers))
        for (lane, index, key), each in contract.values.items()
        if with_values and index == stage.index
    ]
    return f"{identity} {dict(stage.arguments)!r} {state!r} {values!r}"


def align_all(a: Contract, b: Contract, tags: Tags) -> list[Pair]:
    """Pair the envs inside, the stages of :func:`align`, and the passive stages between them."""
    pairs = align(a, b, tags)
    ours, theirs = (
        [stage for stage in side.stages[1:] if not is_relevant(side, stage)] for side in (a, b)
    )
    passive: list[Pair] = []
    anchors = [(pair.a, pair.b) for pair in pairs if pair.status == "paired"]
    for limits in (*anchors, (None, None)):
        before = []
        for stages, limit in zip((ours, theirs), limits, strict=True):
            taken = [stage for stage in stages if limit is None or stage.index < limit.index]
            del stages[: len(taken)]
            before.append(taken)
        passive += _pair_passive(*before)

    def is_before(one: Pair, other: Pair) -> bool:
        sides = ((one.a, other.a), (one.b, other.b))
        return any(a is not None and b is not None and a.index < b.index for a, b in sides)

    result = [Pair("paired", a.stage(-1), b.stage(-1))]
    for pair in pairs:
        while passive and is_before(passive[0], pair):
            result.append(passive.pop(0))
        result.append(pair)
    return result + passive


def _pair_passive(ours: list[StageRecord], theirs: list[StageRecord]) -> Iterator[Pair]:
    one, other = (
        [stage.name if stage.role == "plumbing" else stage.role for stage in side]
        for side in (ours, theirs)
    )
    for match in match_stages(one, other, lambda *_: ()):
        a = None if match.a is None else ours[match.a]
        b = None if match.b is None else theirs[match.b]
        if match.status == "moved":
            yield Pair("missing", a, None, is_passive=True)
            yield Pair("extra", None, b, is_passive=True)
        else:
            yield Pair(match.status, a, b, is_passive=True)


def relevant_stages(contract: Contract) -> list[StageRecord]:
    """Return the stages that change what a policy reads or does, or may do so."""
    return [stage for stage in contract.stages[1:] if is_relevant(contract, stage)]


def is_relevant(contract: Contract, stage: StageRecord) -> bool:
    """Return True if a stage changes a compared key, or keeps a state."""
    if stage.role in PASSIVE or (stage.role in REWARD_ROLES and "reward" not in contract.compare):
        return False
    if any(is_compared(contract, *written) for written in stage.written):
        return True
    if stage.state and not stage.writes:
        return True
    before, after = (
        {spec.key: spec for spec in specs if spec.part in contract.compare}
        for specs in (contract.stage(stage.index - 1).specs, stage.specs)
    )
    if before != after:
        return True
    # A stage that is known to act may have had no reason to do so in a few steps.
    may_act = "reward" in contract.compare or "reward" not in stage.name.casefold()
    return stage.has_known_role or (not stage.writes and may_act)


def is_compared(contract: Contract, lane: Lane, key: str) -> bool:
    """Return True if the values of a key are compared: in the inverse direction all are actions."""
    part = "action" if lane == "inverse" else part_of(contract, key)
    return part in contract.compare


def part_of(contract: Contract, key: str) -> str:
    """Return the part that a key belongs to; an undeclared key counts as an observation."""
    for stage in contract.stages:
        spec = stage.spec(key)
        if spec is not None:
            return spec.part
    return "reward" if key.rpartition(".")[2] == "reward" else "observation"


def _is_renamed(a: Contract, one: StageRecord, other: StageRecord) -> bool:
    """Return True for stages at the same position that write the same, under other class names."""
    if _says_what_it_does(a, one) and _says_what_it_does(a, other) and one.role != other.role:
        return False
    shapes, other_shapes = (
        {(spec.key, spec.shape) for spec in stage.specs if spec.part in a.compare}
        for stage in (one, other)
    )
    writes, other_writes = set(one.writes), set(other.writes)
    return shapes == other_shapes and (writes <= other_writes or writes >= other_writes)
