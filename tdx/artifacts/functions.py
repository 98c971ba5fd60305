"""Functions of a chain with explicit state, each exported as one graph.

``torch.export`` traces the hooks of the stages, so a chain has no second definition of its numbers.
What a stage keeps between calls becomes inputs and outputs of the functions:

- entries of the running episode (:attr:`~tdx.core.transforms.chain_member.ChainMember.\
episode_memory`), such as the frames of ``CatFrames``;
- buffers that a call changes in place, such as the count of ``TrajCounter``;
- entries that a step reads from the result of the previous call, such as ``step_count``.

An entry is state only if the graph of a function reads it.
"""

from __future__ import annotations

import hashlib
import io
import json
import keyword
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from tdx.artifacts.vectors import ReferenceCall, sample_inputs
from tdx.artifacts.verifier import compare
from tdx.core.chain import flatten_chain
from tdx.core.envs import EnvBase
from tdx.core.transforms import Transform
from tdx.foundation.errors import ChainError, TdxError, Where, get_first_line
from tdx.foundation.keys import NestedKey, format_key, normalize_key, split_key
from tdx.foundation.tensordicts import new_tensordict, read
from tdx.foundation.torch_internals import exporting
from tdx.specs.leaf import domain_text, leaf_spec
from tdx.specs.violations import spec_leaves

SPLIT_HINT = "export the part before it: --split"
_RANDOM = re.compile(r"aten\.(rand|normal|bernoulli|multinomial|exponential|uniform|poisson)")


@dataclass(frozen=True, slots=True)
class ArtifactEntry:
    """One tensor that goes into or out of a function."""

    name: str
    """Identifier in Python, C++ and ONNX; a state has the same name as input and as output."""
    key: str
    """Key of tdx, such as ``observation`` or ``next.reward``."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_state: bool
    """True if it is carried from one call to the next."""
    description: str
    is_observation: bool = False
    """True for an output of the observation side, except rewards, done flags and state."""
    is_window: bool = False
    """True for a state that is one entry of a window, as of ``CatFrames``."""
    path: tuple[str, ...] = ()
    """Parts of the key without ``next``, which may have dots; empty for a state."""


@dataclass(frozen=True, slots=True)
class ExportedFunction:
    """A pure function: every state is an input and an output, and nothing is mutated."""

    name: str
    """``reset`` or ``step`` for the observation side; ``act`` from policy to env."""
    program: torch.export.ExportedProgram
    """Its graph, whose user inputs and outputs are ``inputs`` and ``outputs`` in their order."""
    inputs: tuple[ArtifactEntry, ...]
    outputs: tuple[ArtifactEntry, ...]

    @property
    def calls(self) -> list[Node]:
        """Nodes that call an operator."""
        return [node for node in self.program.graph.nodes if node.op == "call_function"]

    @property
    def constants(self) -> dict[str, Tensor]:
        """Constants, buffers and parameters by the names of their placeholders."""
        signature = self.program.graph_signature
        held = {**self.program.state_dict, **self.program.constants}
        targets = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        names = (node.name for node in _placeholders(self.program.graph))
        return {name: held[targets[name]] for name in names if name in targets}

    def behind(self, output: str) -> tuple[list[str], set[str]]:
        """Return the operators that an output depends on, and the names of the inputs."""
        place = [entry.name for entry in self.outputs].index(output)
        nodes = _ancestors(_outputs(self.program.graph)[place])
        held = self.constants
        given = [node for node in _placeholders(self.program.graph) if node.name not in held]
        inputs = {e.name for e, node in zip(self.inputs, given, strict=True) if node in nodes}
        return [str(node.target) for node in self.calls if node in nodes], inputs

    def runner(self) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
        """Return a function that runs the graph by torch, on inputs by name; others are ignored."""
        # Not `program.module()`, which takes five times as long to check its inputs.
        held = self.constants
        arguments = [held.get(node.name) for node in _placeholders(self.program.graph)]

        def run(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
            inputs = iter([values[entry.name] for entry in self.inputs])
            given = [next(inputs) if constant is None else constant for constant in arguments]
            with torch.no_grad():
                results = self.program.graph_module(*given)
            return dict(zip((entry.name for entry in self.outputs), results, strict=True))

        return run


@dataclass(frozen=True, slots=True)
class ChainFunctions:
    """A chain as functions."""

    name: str
    digest: str
    """SHA-256 of stages, entries and constants, in hexadecimal digits."""
    stages: tuple[str, ...]
    """One line per stage that is exported."""
    functions: tuple[ExportedFunction, ...]
    """``reset`` and ``step``; ``act`` if a stage maps actions."""
    initial: Mapping[str, Tensor] = field(default_factory=dict)
    """State before the first reset, by name."""
    unchanged: tuple[str, ...] = ()
    """Rewards and done flags that the chain passes on as they are, and the functions leave out."""
    calls: tuple[ReferenceCall, ...] = ()
    """What the chain itself returns in a few episodes; the functions return the same bits."""


def stage_of(node: Node) -> tuple[int, str] | None:
    """Return index and class name of the stage of a node; ``None``: it copies an input."""
    for path, _ in reversed(list(node.meta.get("nn_module_stack", {}).values())):
        match = re.search(r"stage_(\d+)_(\w+)$", path)
        if match:
            return int(match[1]), match[2]
    return None


def chain_functions(env: EnvBase, name: str, stages: Sequence[str]) -> ChainFunctions:
    """Export the first stages of the chain of an env, which is not stepped and stays unchanged.

    ``stages`` has one line for each stage to export, nested chains in their place.

    Raises:
        ChainError: A stage cannot be exported; the error names it.
    """
    env.output_spec  # noqa: B018 - binds the stages to the specs
    base, flat = flatten_chain(env)
    if base.batch_size:
        raise ChainError(
            f"a chain is exported for one env, but the env has the batch {tuple(base.batch_size)}",
            hint="export the chain of a single env",
        )
    parts = flat[: len(stages)]
    for index, stage in enumerate(parts):
        reason = stage.why_not_exported or ("it steps the env" if stage.steps_env else None)
        if reason is None and stage.changes_batch:
            reason = "it changes the batch"
        if reason is not None:
            raise _refused(index, stage, reason)
    return _Chain(base, parts).build(name, tuple(stages))


@contextmanager
def silenced(logger: str) -> Iterator[None]:
    """Run an exporter of torch without its messages and its warnings about itself."""
    log = logging.getLogger(logger)
    level = log.level
    with (
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
        torch.no_grad(),
    ):
        warnings.simplefilter("ignore")
        log.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            log.setLevel(level)


def _refused(index: int, stage: Transform, reason: str) -> ChainError:
    where = Where(stage=index, transform=type(stage).__name__)
    return ChainError(f"cannot be exported: {reason}", where=where, hint=SPLIT_HINT)


# State of the stages


class _Slot(NamedTuple):
    """A tensor that a stage keeps: in a dict of its episode memory, or as a buffer."""

    stage: int
    attribute: str
    key: NestedKey | None = None
    position: int | None = None

    def load(self, stage: Transform, value: Tensor) -> None:
        if self.key is None:
            stage.__dict__[self.attribute] = value
        elif self.position is None:
            getattr(stage, self.attribute)[self.key] = value
        else:
            getattr(stage, self.attribute).setdefault(self.key, []).append(value)

    def store(self, stage: Transform) -> Tensor:
        held: Any = getattr(stage, self.attribute)
        for part in (self.key, self.position):
            held = held if part is None else held[part]
        value: Tensor = held
        return value


def _memory_slots(stages: Sequence[Transform]) -> list[_Slot]:
    """Return the tensors of the running episode that stages hold now."""
    slots = []
    for index, stage in enumerate(stages):
        for attribute in stage.episode_memory:
            for key, held in getattr(stage, attribute).items():
                places = [None] if isinstance(held, Tensor) else range(len(held))
                slots += [_Slot(index, attribute, key, place) for place in places]
    return slots


def _buffer_versions(stages: Sequence[Transform]) -> dict[_Slot, tuple[int, int]]:
    return {
        _Slot(index, name): (id(value), value._version)
        for index, stage in enumerate(stages)
        for name, value in stage.named_buffers(recurse=False)
    }


# The graphs


class _StageCall(nn.Module):
    """Calls a hook of a stage; nodes of a graph carry the name of the module that made them."""

    def __init__(self, chain: _Chain, index: int, stage: Transform) -> None:
        super().__init__()
        self.chain, self.index, self.stage = chain, index, stage

    def forward(self, hook: str, *arguments: TensorDictBase) -> TensorDictBase:
        self.chain.current = self.index
        with torch.no_grad():
            result: TensorDictBase = getattr(self.stage, hook)(*arguments)
        self.chain.current = None
        return result


class _Graph(nn.Module):
    """One function as a module of its inputs."""

    def __init__(self, chain: _Chain, part: str, inputs: Sequence[str], outputs: Sequence[str]):
        super().__init__()
        for name, call in chain.calls.items():
            self.add_module(name, call)
        self._chain, self._part = chain, part
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(self._inputs, values, strict=True))
        # The calls are those of this module, so that nodes get their names.
        results = self._chain.run(self._part, given, list(self.children()))
        return tuple(results[name] for name in self._outputs)


class _Dependency(NamedTuple):
    """Inputs that an output depends on, and the one that it is a copy of."""

    inputs: set[str]
    source: str | None


class _Chain:
    """The stages of a chain, cloned from their env, and their functions."""

    def __init__(self, base: EnvBase, stages: Sequence[Transform]) -> None:
        self.stages = [_frozen(deepcopy(stage)) for stage in stages]
        untraced = [_frozen(deepcopy(stage)) for stage in stages]
        self.current: int | None = None
        """Stage that is called, or that raised an error."""
        self.calls = {
            f"stage_{index}_{type(stage).__name__}": _StageCall(self, index, stage)
            for index, stage in enumerate(self.stages)
        }
        self.untraced = [_StageCall(self, index, stage) for index, stage in enumerate(untraced)]
        observations, rewards, flags = (
            spec_leaves(base.output_spec[f"full_{part}_spec"])
            for part in ("observation", "reward", "done")
        )
        self.flags = [*rewards, *flags]
        specs = base.input_spec, base.output_spec
        for stage, other in zip(self.stages, untraced, strict=True):
            other.transform_specs(*specs)
            specs = stage.transform_specs(*specs)
        # A copy, as a mask in it changes with the stages.
        actions = spec_leaves(deepcopy(specs[0]["full_action_spec"]))
        self.policy = _names(actions, "policy")
        self.inputs = {"act": self.policy}
        self.specs = {"act": {name: actions[key] for name, key in self.policy.items()}}
        given = {"reset": {**observations, **flags}, "step": {**observations, **rewards, **flags}}
        for part, own in given.items():
            self.inputs[part] = _names(own, "env")
            self.specs[part] = {name: own[key] for name, key in self.inputs[part].items()}
        self.inputs["step"] |= self.policy
        self.specs["step"] |= self.specs["act"]
        self.declared = {"act": spec_leaves(base.input_spec["full_action_spec"])}
        """Specs of what the functions return, by key."""
        self.declared["reset"] = self.declared["step"] = {
            key: spec for whole in specs[1].values() for key, spec in spec_leaves(whole).items()
        }
        self.outputs = {"act": _names(self.declared["act"])}
        for stage in (*self.stages, *untraced):
            stage.__dict__.update({memory: {} for memory in stage.episode_memory})
        self.slots: dict[str, _Slot] = {}
        self.carried: dict[str, NestedKey] = {}
        """Entries of the last call that a step may read."""
        self.initial: dict[str, Tensor] = {}
        with self._naming_stages("it fails on zeros"):
            self._find_state()

    def _find_state(self) -> None:
        """Run each function once by torch, and record what the stages keep."""
        calls = [*self.calls.values()]
        versions = _buffer_versions(self.stages)
        initial = {slot: slot.store(self.stages[slot.stage]).clone() for slot in versions}
        root = _leaves(self._apply("reset", *self._keyed("reset", {}), calls))
        slots = _memory_slots(self.stages)
        actions, entries = self._keyed("step", {})
        step = self._apply("step", {**root, **actions}, entries, calls)
        results, after = _leaves(step), _buffer_versions(self.stages)
        changed = [slot for slot in versions if after.get(slot) != versions[slot]]
        for new in set(_memory_slots(self.stages)) ^ set(slots):
            stage = self.stages[new.stage]
            raise _refused(new.stage, stage, "a step keeps other entries than a reset")
        for slot in (*slots, *changed):
            stage = self.stages[slot.stage]
            snake_case = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(stage).__name__).lower()
            parts = [snake_case, str(slot.stage)]
            parts += [slot.attribute.strip("_")] if slot.key is None else split_key(slot.key)
            parts += [] if slot.position is None else [str(slot.position)]
            name = self._unique(_identifier(parts))
            self.slots[name] = slot
            self.initial[name] = initial.get(slot, torch.zeros_like(slot.store(stage)))
        for slot in changed:  # from here on, a call gets them as inputs
            del self.stages[slot.stage]._buffers[slot.attribute]
        for key, value in root.items():
            later = results.get(key)
            if later is not None and (later.dtype, later.shape) == (value.dtype, value.shape):
                name = self._unique(_identifier(["last", *split_key(key)]))
                self.carried[name] = key
                self.initial[name] = torch.zeros_like(value)
        self.outputs |= {"reset": _names(root), "step": _names(results)}

    def _unique(self, name: str) -> str:
        return name if name not in self.initial else f"{name}_{len(self.initial)}"

    def _apply(
        self,
        part: str,
        root: Mapping[NestedKey, Tensor],
        entries: Mapping[NestedKey, Tensor],
        calls: Sequence[nn.Module],
    ) -> TensorDictBase:
        """Run the hooks of all stages; return the output of the env, or the input for it.

        ``root`` is what the previous call returned, and the action of the policy; ``entries`` are
        the output of the env; ``calls`` are a :class:`_StageCall` for each stage.
        """
        current, before = _tensordict(entries), _tensordict(root)
        if part != "reset":
            for call in reversed(calls):
                before = call("_inv_call", before)
        if part == "act":
            return before
        for call in calls:
            arguments = ("_reset", _tensordict({})) if part == "reset" else ("_step", before)
            current = call(*arguments, current)
        return current

    def run(
        self, part: str, values: Mapping[str, Tensor], calls: Sequence[nn.Module]
    ) -> dict[str, Tensor]:
        """Run a function on inputs by name; return its outputs and every state by name."""
        # A stage may write to what it gets, which belongs to the caller.
        given = {key: value.clone() for key, value in values.items()}
        for state, slot in self.slots.items():
            held = given[state] if state in given else torch.zeros_like(self.initial[state])
            slot.load(self.stages[slot.stage], held)
        root = {key: given[state] for state, key in self.carried.items() if state in given}
        actions, entries = self._keyed(part, given)
        root = {} if part == "reset" else {**root, **actions}
        try:
            result = _leaves(self._apply(part, root, entries, calls))
            outputs = {
                name: result[key] for name, key in self.outputs[part].items() if key in result
            }
            for state, slot in self.slots.items():
                outputs[state] = slot.store(self.stages[slot.stage])
        finally:
            self._forget()
        for state, key in self.carried.items():
            if part == "act":  # the action does not change what a step has returned
                result[key] = values.get(state, self.initial[state])
            outputs[state] = result[key]
        return outputs

    def _keyed(
        self, part: str, values: Mapping[str, Tensor]
    ) -> tuple[dict[NestedKey, Tensor], dict[NestedKey, Tensor]]:
        """Return actions of the policy and entries of the env by key; what is missing is zero."""
        actions: dict[NestedKey, Tensor] = {}
        entries: dict[NestedKey, Tensor] = {}
        for name, key in self.inputs[part].items():
            value = values[name] if name in values else self._example(part, name)
            (actions if name in self.policy else entries)[key] = value
        return actions, entries

    def _forget(self) -> None:
        for slot in self.slots.values():
            stage = self.stages[slot.stage]
            if slot.key is None:
                stage.__dict__.pop(slot.attribute, None)
            else:
                getattr(stage, slot.attribute).clear()

    # Building

    def build(self, name: str, stages: tuple[str, ...]) -> ChainFunctions:
        """Export each function, without the inputs and states that no result depends on."""
        parts = ["reset", "step"]
        if any(stage.invertible for stage in self.stages):
            parts.append("act")
        depends = {part: self._trace(part) for part in parts}
        changed = {
            key
            for part in ("reset", "step")
            for name, key in self.outputs[part].items()
            if self.inputs[part].get(depends[part][name].source or "") != key
        }
        unchanged = [key for key in self.flags if key not in changed]
        outputs = {
            part: [name for name, key in self.outputs[part].items() if key not in unchanged]
            for part in parts
        }
        # States that a result depends on, directly or through another state.
        used, known = set[str](), None
        while used != known:
            known = used
            names = [(part, name) for part in parts for name in (*outputs[part], *used)]
            read = {source for part, name in names for source in depends[part][name].inputs}
            used = read & self.initial.keys()
        functions = tuple(
            self._function(part, depends[part], outputs[part], used) for part in parts
        )
        initial = {state: value for state, value in self.initial.items() if state in used}
        digest = _digest(stages, functions, initial)
        with self._naming_stages("it fails on the reference vectors"):
            calls = self._prove(functions, initial)
        flags = tuple(map(format_key, unchanged))
        return ChainFunctions(name, digest, stages, functions, initial, flags, calls)

    def _prove(
        self, functions: Sequence[ExportedFunction], initial: Mapping[str, Tensor]
    ) -> tuple[ReferenceCall, ...]:
        """Run the stages and the functions on the same inputs, and compare their bits.

        Those of a stage that reads a clock or counts in Python differ.
        """
        by_name = {function.name: function for function in functions}
        runners = {function.name: function.runner() for function in functions}
        specs = {part: dict(self.specs[part]) for part in by_name}
        for name in self.policy if "act" in by_name else ():
            del specs["step"][name]  # a step gets the action of the call before it
        state, action = dict(initial), dict[str, Tensor]()
        root: dict[NestedKey, Tensor] = {}
        calls: list[ReferenceCall] = []
        for call in sample_inputs(specs):
            part, function = call.function, by_name[call.function]
            inputs = {**call.inputs, **(action if part == "step" else {})}
            # A stage may write to what it gets.
            actions, entries = self._keyed(part, {key: x.clone() for key, x in inputs.items()})
            before = {} if part == "reset" else {**root, **actions}
            result = _leaves(self._apply(part, before, entries, self.untraced))
            if part == "act":
                action = dict(call.inputs)
            else:
                root = result
            outputs = runners[part]({**state, **inputs})
            for entry in function.outputs:
                if entry.is_state:
                    state[entry.name] = outputs[entry.name]
                    continue
                key = self.outputs[part][entry.name]
                value, own = outputs[entry.name], result.get(key)
                if own is None or compare(value.numpy(), own.numpy(), 0.0) is not None:
                    raise ChainError(
                        f"the exported {part} does not return the {format_key(key)!r} of the chain"
                        f" in call {len(calls)}",
                        hint="a stage reads a clock, a random number or a counter in Python: "
                        "declare why_not_exported in its class",
                    )
            names = (entry.name for entry in function.inputs if not entry.is_state)
            calls.append(ReferenceCall(part, {name: inputs[name] for name in names}, outputs))
        return tuple(calls)

    def _example(self, part: str, name: str) -> Tensor:
        if name in self.initial:
            return self.initial[name].clone()
        value: Tensor = self.specs[part][name].zero()
        return value.cpu()

    def _trace(self, part: str) -> dict[str, _Dependency]:
        """Return what each output and state depends on; an export takes ten times as long."""
        inputs, outputs = ([*names[part], *self.initial] for names in (self.inputs, self.outputs))
        examples = (self._example(part, name) for name in inputs)
        with self._tracing(part):
            module = _Graph(self, part, inputs, outputs)
            traced: GraphModule = make_fx(torch.func.functionalize(module))(*examples)
        names = dict(zip(_placeholders(traced.graph), inputs, strict=True))
        depends = {}
        for name, source in zip(outputs, _outputs(traced.graph), strict=True):
            read = {names[node] for node in _ancestors(source) if node in names}
            while str(source.target) == "aten.clone.default":
                source = source.all_input_nodes[0]
            depends[name] = _Dependency(read, names.get(source))
        return depends

    def _export(
        self, part: str, inputs: Sequence[str], outputs: Sequence[str]
    ) -> torch.export.ExportedProgram:
        examples = tuple(self._example(part, name) for name in inputs)
        with self._tracing(part):
            module = _Graph(self, part, inputs, outputs)
            program = torch.export.export(module, examples, strict=False)
            program = program.run_decompositions({})
        for node in list(program.graph.nodes):
            node.meta.pop("stack_trace", None)  # paths of this machine
            node.meta.pop("from_node", None)  # addresses in this process
            if str(node.target) == "aten._assert_tensor_metadata.default":
                program.graph.erase_node(node)  # the dtypes of the inputs are static
            elif _RANDOM.match(str(node.target)):
                index = (stage_of(node) or (0, ""))[0]
                raise _refused(index, self.stages[index], "it draws random numbers")
        program.graph_module.recompile()
        return program

    @contextmanager
    def _tracing(self, part: str) -> Iterator[None]:
        # A graph that cannot be traced is printed, and the error says it all.
        quiet = silenced("torch.fx.experimental.symbolic_shapes")
        try:
            with self._naming_stages(f"torch.export cannot trace its {part}"), quiet, exporting():
                yield
        finally:
            self._forget()

    @contextmanager
    def _naming_stages(self, problem: str) -> Iterator[None]:
        """Name the stage that raises an error."""
        try:
            yield
        except TdxError as error:
            if self.current is not None:
                error.at(stage=self.current, transform=type(self.stages[self.current]).__name__)
            raise
        except Exception as error:
            reason = f"{problem}: {get_first_line(error)}"
            if self.current is None:
                raise ChainError(reason) from error
            raise _refused(self.current, self.stages[self.current], reason) from error

    def _function(
        self,
        part: str,
        depends: Mapping[str, _Dependency],
        outputs: Sequence[str],
        used: set[str],
    ) -> ExportedFunction:
        kept = [state for state in self.initial if state in used]
        if part == "act":
            for state, slot in self.slots.items():
                if depends[state].source != state:
                    stage = self.stages[slot.stage]
                    raise _refused(slot.stage, stage, "its inverse keeps state")
            kept = [
                state for state in kept if any(state in depends[name].inputs for name in outputs)
            ]
        results = [*outputs, *kept]
        live = set().union(*(depends[name].inputs for name in results))
        inputs = [name for name in (*self.inputs[part], *self.initial) if name in live]
        program = self._export(part, inputs, results)
        values = [node.meta["val"] for node in _outputs(program.graph)]
        return ExportedFunction(
            part,
            program,
            tuple(self._entry(part, name, self._example(part, name), True) for name in inputs),
            tuple(
                self._entry(part, name, value, False)
                for name, value in zip(results, values, strict=True)
            ),
        )

    def _entry(self, part: str, name: str, value: Tensor, is_input: bool) -> ArtifactEntry:
        shape, dtype, slot = tuple(value.shape), value.dtype, self.slots.get(name)
        if dtype is torch.bfloat16:
            raise ChainError(
                f"{name} is bfloat16, which the reference vectors cannot have",
                hint="cast it to float32 or float16",
            )
        if slot is not None:
            stage = type(self.stages[slot.stage]).__name__
            key = slot.attribute.strip("_") if slot.key is None else format_key(slot.key)
            text = f"kept by stage {slot.stage} ({stage})"
            if slot.position is not None:
                text += f", entry {slot.position + 1} of its window, oldest first"
            is_window = slot.position is not None
            return ArtifactEntry(name, key, shape, dtype, True, text, is_window=is_window)
        if name in self.carried:
            key = format_key(self.carried[name])
            return ArtifactEntry(name, key, shape, dtype, True, "as the last call returned it")
        path = (self.inputs if is_input else self.outputs)[part][name]
        key, text = format_key(path), "after the chain"
        if is_input:
            text = "action of the policy" if name in self.policy else f"from the env's {part}"
        elif part == "act":
            text = "action for the env"
        key = f"next.{key}" if part == "step" and name not in self.policy else key
        spec = self.specs[part][name] if is_input else self.declared[part].get(path)
        if spec is not None:
            values = domain_text(leaf_spec("observation", path, spec), whole=True)
            text += "" if values == "any" else f", {values}"
        is_observation = not is_input and part != "act" and path not in self.flags
        return ArtifactEntry(
            name, key, shape, dtype, False, text, is_observation, path=split_key(path)
        )


def _frozen(stage: Transform) -> Transform:
    """Return a stage in eval mode whose running statistics are fixed."""
    freeze = getattr(stage, "freeze", None)
    if freeze is not None:
        freeze()
    return stage.eval()


def _names(keys: Iterable[NestedKey], *prefix: str) -> dict[str, NestedKey]:
    names: dict[str, NestedKey] = {}
    for key in keys:
        name = _identifier([*prefix, *split_key(key)])
        names[name if name not in names else f"{name}_{len(names)}"] = key
    return names


def _leaves(tensordict: TensorDictBase) -> dict[NestedKey, Tensor]:
    keys = sorted(map(normalize_key, tensordict.keys(True, True)), key=split_key)
    values = {key: read(tensordict, key) for key in keys}
    return {key: value for key, value in values.items() if isinstance(value, Tensor)}


def _tensordict(entries: Mapping[NestedKey, Tensor]) -> TensorDictBase:
    tensordict: TensorDictBase = new_tensordict({}, torch.Size(()), None)
    for key, value in entries.items():
        tensordict.set(key, value)
    return tensordict


def _outputs(graph: Graph) -> list[Node]:
    last: Any = next(iter(reversed(graph.nodes)))
    return list(last.args[0])


def _placeholders(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def _ancestors(last: Node) -> set[Node]:
    """Return a node and all nodes that it depends on."""
    pending, seen = [last], set[Node]()
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            pending += node.all_input_nodes
    return seen


def _digest(
    stages: Sequence[str], functions: Sequence[ExportedFunction], initial: Mapping[str, Tensor]
) -> str:
    content = hashlib.sha256(json.dumps(list(stages)).encode())
    for function in functions:
        for entry in (*function.inputs, *function.outputs):
            row = [function.name, entry.name, entry.key, list(entry.shape), str(entry.dtype)]
            content.update(json.dumps(row).encode())
    values = [pair for function in functions for pair in function.constants.items()]
    for name, value in (*values, *initial.items()):
        content.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        content.update(value.detach().cpu().contiguous().numpy().tobytes())
    return content.hexdigest()


def _identifier(parts: Sequence[str]) -> str:
    """Return an identifier of Python, C++ and ONNX for the parts of a key."""
    name = re.sub(r"\W+", "_", "_".join(parts), flags=re.ASCII).strip("_")
    name = re.sub(r"__+", "_", name)
    return f"entry_{name}" if not name or not name[0].isalpha() or keyword.iskeyword(name) else name
