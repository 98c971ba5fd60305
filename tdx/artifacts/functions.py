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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from tdx.artifacts.vectors import ReferenceCall, same_bits, sample_inputs
from tdx.core.chain import flatten_chain
from tdx.core.envs import EnvBase
from tdx.core.transforms import Transform
from tdx.foundation.errors import ChainError, TdxError, Where, get_first_line
from tdx.foundation.keys import NestedKey, format_key, normalize_key, split_key
from tdx.foundation.tensordicts import new_tensordict, read
from tdx.foundation.torch_internals import exporting

SPLIT_HINT = "export the part before it: --split"
_RANDOM = re.compile(r"aten\.(rand|normal|bernoulli|multinomial|exponential|uniform|poisson)")


@dataclass(frozen=True, slots=True)
class ArtifactEntry:
    """One tensor that goes into or out of a function.

    Args:
        name: Identifier in Python, C++ and ONNX. A state has the same name as input and output,
            other names are unique within the function.
        key: Key of tdx, such as ``observation`` or ``next.reward``.
        shape: Its shape, without a batch.
        dtype: Its dtype.
        is_state: True if it is carried from one call to the next.
        description: Stage and meaning in one line.
        is_observation: True for an output of the observation side that is neither a reward nor a
            done flag nor state.
        is_window: True for a state that is one entry of a window, as of ``CatFrames``.
        path: Parts of the key without ``next``, which may have dots; empty for a state.
    """

    name: str
    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_state: bool
    description: str
    is_observation: bool = False
    is_window: bool = False
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExportedFunction:
    """A pure function: every state is an input and an output, and nothing is mutated.

    Args:
        name: ``reset`` or ``step`` for the observation side; ``act`` from policy to env.
        program: Its graph, with user inputs, constants and user outputs only.
        inputs: In the order of the user inputs.
        outputs: In the order of the user outputs.
    """

    name: str
    program: torch.export.ExportedProgram
    inputs: tuple[ArtifactEntry, ...]
    outputs: tuple[ArtifactEntry, ...]

    def runner(self) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
        """Return a function that runs the graph by torch, on inputs by name; others are ignored."""
        # Not `program.module()`, which takes five times as long to check its inputs.
        held = dict(constants(self.program))
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
    """A chain as functions.

    Args:
        name: Identifier of the chain.
        digest: SHA-256 of stages, entries and constants, in hexadecimal digits.
        stages: One line per stage that is exported.
        functions: ``reset`` and ``step``; ``act`` if a stage maps actions.
        initial: State before the first reset, by name.
        unchanged: Keys of rewards and done flags that the chain passes on as they are; the
            functions leave them out.
        calls: Reference vectors: what the chain itself returns in a few episodes. The functions
            return the same bits.
    """

    name: str
    digest: str
    stages: tuple[str, ...]
    functions: tuple[ExportedFunction, ...]
    initial: Mapping[str, Tensor] = field(default_factory=dict)
    unchanged: tuple[str, ...] = ()
    calls: tuple[ReferenceCall, ...] = ()

    def function(self, name: str) -> ExportedFunction | None:
        """Return the function of a name; ``None``: the chain has none."""
        return next((part for part in self.functions if part.name == name), None)


def stage_of(node: Node) -> tuple[int, str] | None:
    """Return index and class name of the stage that a node of a graph comes from.

    ``None``: it copies an input, or removes nothing but a name.
    """
    for path, _ in reversed(list(node.meta.get("nn_module_stack", {}).values())):
        match = re.search(r"stage_(\d+)_(\w+)$", path)
        if match:
            return int(match[1]), match[2]
    return None


def chain_functions(env: EnvBase, name: str, stages: Sequence[str]) -> ChainFunctions:
    """Export the first stages of the chain of an env.

    Args:
        env: Env with its chain, for one env. It is not stepped, and stays unchanged.
        name: Identifier of the chain.
        stages: One line for each stage to export, nested chains in their place.

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
        reason = stage.why_not_exported
        if reason is None and stage.steps_env:
            reason = "it steps the env"
        if reason is None and stage.changes_batch:
            reason = "it changes the batch"
        if reason is not None:
            raise _refused(index, stage, reason)
    return _Chain(base, parts).build(name, tuple(stages))


def _refused(index: int, stage: Transform, reason: str) -> ChainError:
    where = Where(stage=index, transform=type(stage).__name__)
    return ChainError(f"cannot be exported: {reason}", where=where, hint=SPLIT_HINT)


# State of the stages


@dataclass(frozen=True, slots=True)
class _Slot:
    """A tensor that a stage keeps: in a dict of its episode memory, or as a buffer."""

    stage: int
    attribute: str
    key: NestedKey | None
    position: int | None

    def load(self, stage: Transform, value: Tensor) -> None:
        if self.key is None:
            stage.__dict__[self.attribute] = value
        elif self.position is None:
            getattr(stage, self.attribute)[self.key] = value
        else:
            getattr(stage, self.attribute).setdefault(self.key, []).append(value)

    def store(self, stage: Transform) -> Tensor:
        held: Any = getattr(stage, self.attribute)
        held = held if self.key is None else held[self.key]
        value: Tensor = held if self.position is None else held[self.position]
        return value


def _memory_slots(stages: Sequence[Transform]) -> list[_Slot]:
    """Return the tensors of the running episode that stages hold now."""
    slots = []
    for index, stage in enumerate(stages):
        for attribute in stage.episode_memory:
            for key, held in getattr(stage, attribute).items():
                if isinstance(held, Tensor):
                    slots.append(_Slot(index, attribute, key, None))
                    continue
                slots += [_Slot(index, attribute, key, place) for place in range(len(held))]
    return slots


def _buffer_versions(stages: Sequence[Transform]) -> dict[_Slot, tuple[int, int]]:
    return {
        _Slot(index, name, None, None): (id(value), value._version)
        for index, stage in enumerate(stages)
        for name, value in stage.named_buffers(recurse=False)
    }


# The graphs


class _StageCall(nn.Module):
    """Calls a hook of a stage; nodes of a graph carry the name of the module that made them."""

    def __init__(self, stage: Transform) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, hook: str, *arguments: Any) -> TensorDictBase:
        result: TensorDictBase = getattr(self.stage, hook)(*arguments)
        return result


class _Graph(nn.Module):
    """One function as a module of its inputs."""

    def __init__(self, chain: _Chain, name: str, inputs: Sequence[str], outputs: Sequence[str]):
        super().__init__()
        for call_name, call in chain.calls.items():
            self.add_module(call_name, call)
        self._run: Callable[[dict[str, Tensor]], dict[str, Tensor]]
        self._run = lambda values: chain.run(name, values, self)
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        results = self._run(dict(zip(self._inputs, values, strict=True)))
        return tuple(results[name] for name in self._outputs)


class _Chain:
    """The stages of a chain, cloned from their env, and their functions.

    Args:
        base: The env before the chain.
        stages: Its stages.

    Raises:
        ChainError: A stage cannot be exported.
    """

    def __init__(self, base: EnvBase, stages: Sequence[Transform]) -> None:
        self.stages = [_frozen(deepcopy(stage)) for stage in stages]
        self._untraced = [_frozen(deepcopy(stage)) for stage in stages]
        self.calls = {
            f"stage_{index}_{type(stage).__name__}": _StageCall(stage)
            for index, stage in enumerate(self.stages)
        }
        parts = base.output_spec
        self._parts = {
            normalize_key(key): part
            for part in ("full_observation_spec", "full_reward_spec", "full_done_spec")
            for key in parts[part].keys(True, True)
        }
        self._spec_of = {key: parts[part][key] for key, part in self._parts.items()}
        self._examples: dict[str, dict[NestedKey, Tensor]] = {
            "step": {key: _zero(parts[part][key]) for key, part in self._parts.items()},
            "act": {},
        }
        self._examples["reset"] = {
            key: value
            for key, value in self._examples["step"].items()
            if self._parts[key] != "full_reward_spec"
        }
        specs = base.input_spec, base.output_spec
        for index, (stage, other) in enumerate(zip(self.stages, self._untraced, strict=True)):
            with _named(index, stage):
                other.transform_specs(*specs)
                specs = stage.transform_specs(*specs)
        actions = specs[0]["full_action_spec"]
        for key in actions.keys(True, True):
            self._examples["act"][normalize_key(key)] = _zero(actions[key])
        self._policy_names = {
            _identifier(["policy", *split_key(key)]): key for key in self._examples["act"]
        }
        self._env_actions = [
            normalize_key(key) for key in base.input_spec["full_action_spec"].keys(True, True)
        ]
        self._actions = deepcopy(actions)  # a mask in it changes with the stages
        for stage in (*self.stages, *self._untraced):
            stage.__dict__.update({memory: {} for memory in stage.episode_memory})
        self._find_state()

    def _find_state(self) -> None:
        """Run each function once by torch, and record what the stages keep."""
        versions = _buffer_versions(self.stages)
        initial = {slot: slot.store(self.stages[slot.stage]).clone() for slot in versions}
        first = self._apply("reset", {}, self._examples["reset"], None)
        root = _leaves(first)
        slots = _memory_slots(self.stages)
        step = self._apply("step", {**root, **self._examples["act"]}, self._examples["step"], None)
        results = _leaves(step)
        after = _buffer_versions(self.stages)
        changed = [slot for slot in versions if after.get(slot) != versions[slot]]
        if set(_memory_slots(self.stages)) != set(slots):
            new = next(iter(set(_memory_slots(self.stages)) ^ set(slots)))
            raise _refused(
                new.stage, self.stages[new.stage], "a step keeps other entries than a reset"
            )
        self._slots: dict[str, _Slot] = {}
        self._initial: dict[str, Tensor] = {}
        self._carried: dict[str, NestedKey] = {}
        for slot in (*slots, *changed):
            stage = self.stages[slot.stage]
            parts = [_snake(type(stage).__name__), str(slot.stage)]
            parts += [slot.attribute.strip("_")] if slot.key is None else split_key(slot.key)
            parts += [] if slot.position is None else [str(slot.position)]
            name = self._unique(_identifier(parts))
            self._slots[name] = slot
            value = initial.get(slot, slot.store(stage))
            self._initial[name] = value if slot in initial else torch.zeros_like(value)
        for slot in changed:  # from here on, a call gets them as inputs
            del self.stages[slot.stage]._buffers[slot.attribute]
        # What the next step sees of this one.
        for key, value in root.items():
            later = results.get(key)
            if later is None or (later.dtype, later.shape) != (value.dtype, value.shape):
                continue
            name = self._unique(_identifier(["last", *split_key(key)]))
            self._carried[name] = key
            self._initial[name] = torch.zeros_like(value)
        self._reset_keys, self._step_keys = list(root), list(results)

    def _unique(self, name: str) -> str:
        known = {*self._slots, *self._carried}
        return name if name not in known else f"{name}_{len(known)}"

    def _apply(
        self,
        name: str,
        root: Mapping[NestedKey, Tensor],
        entries: Mapping[NestedKey, Tensor],
        module: nn.Module | None,
        stages: Sequence[Transform] | None = None,
    ) -> TensorDictBase:
        """Run the hooks of all stages; return the output of the env, or the input for it.

        Args:
            name: Name of the function.
            root: What the previous call returned, and the action of the policy.
            entries: Output of the env.
            module: Module whose submodules are called. ``None``: the stages themselves.
            stages: Other stages to run than those that are traced.
        """
        if stages is not None:
            calls = [(index, _StageCall(stage)) for index, stage in enumerate(stages)]
        else:
            calls = [
                (index, held if module is None else getattr(module, call_name))
                for index, (call_name, held) in enumerate(self.calls.items())
            ]
        current = _tensordict(entries)
        before = _tensordict(root)
        if name != "reset":
            for index, call in reversed(calls):
                with _named(index, self.stages[index]), torch.no_grad():
                    before = call("_inv_call", before)
        if name == "act":
            return before
        for index, call in calls:
            with _named(index, self.stages[index]), torch.no_grad():
                if name == "reset":
                    current = call("_reset", _tensordict({}), current)
                else:
                    current = call("_step", before, current)
        return current

    def run(
        self, name: str, values: Mapping[str, Tensor], module: nn.Module | None
    ) -> dict[str, Tensor]:
        """Run a function on inputs by name; return its outputs and every state by name.

        Args:
            name: Name of the function.
            values: Its inputs. A state that is missing is zero.
            module: See :meth:`_apply`.
        """
        # A stage may write to what it gets, which belongs to the caller.
        given = {key: value.clone() for key, value in values.items()}
        for state, slot in self._slots.items():
            held = given.get(state)
            if held is None:
                held = torch.zeros_like(self._initial[state])
            slot.load(self.stages[slot.stage], held)
        carried = {key: given[state] for state, key in self._carried.items() if state in given}
        entries: dict[NestedKey, Tensor] = {}
        root = {} if name == "reset" else carried
        for entry, key in self._input_names(name).items():
            value = given.get(entry)
            if value is None:
                value = torch.zeros_like(self._example(name, entry))
            (root if entry in self._policy_names else entries)[key] = value
        try:
            result = _leaves(self._apply(name, root, entries, module))
            outputs = {
                entry: result[key]
                for entry, key in self._output_names(name).items()
                if key in result
            }
            for state, slot in self._slots.items():
                outputs[state] = slot.store(self.stages[slot.stage])
        finally:
            self._forget()
        for state, key in self._carried.items():
            if name == "act":  # the action does not change what a step has returned
                result[key] = values.get(state, self._initial[state])
            outputs[state] = result[key]
        return outputs

    def _forget(self) -> None:
        for slot in self._slots.values():
            stage = self.stages[slot.stage]
            if slot.key is None:
                stage.__dict__.pop(slot.attribute, None)
            else:
                getattr(stage, slot.attribute).clear()

    # Names

    def _input_names(self, name: str) -> dict[str, NestedKey]:
        actions = {} if name == "reset" else self._policy_names
        if name == "act":
            return actions
        entries = {_identifier(["env", *split_key(key)]): key for key in self._examples[name]}
        return {**entries, **actions}

    def _output_names(self, name: str) -> dict[str, NestedKey]:
        keys = {
            "reset": self._reset_keys if hasattr(self, "_reset_keys") else [],
            "step": self._step_keys if hasattr(self, "_step_keys") else [],
            "act": self._env_actions,
        }[name]
        return {_identifier(split_key(key)): key for key in keys}

    # Building

    def build(self, name: str, stages: tuple[str, ...]) -> ChainFunctions:
        """Export each function, without the inputs and states that no result depends on."""
        names = ["reset", "step"]
        if any(stage.invertible for stage in self.stages):
            names.append("act")
        outputs = {part: [*self._output_names(part)] for part in names}
        states = [*self._slots, *self._carried]
        full = {
            part: self._trace(part, [*self._input_names(part), *states], [*outputs[part], *states])
            for part in names
        }
        unchanged = self._unchanged(full, outputs)
        for part in names:
            outputs[part] = [
                entry for entry in outputs[part] if self._output_names(part)[entry] not in unchanged
            ]
        used = self._used_states(full, outputs, states)
        functions = tuple(self._function(part, full[part], outputs[part], used) for part in names)
        for function in functions:
            self._check_random(function)
        flags = tuple(format_key(key) for key in unchanged)
        initial = {state: self._initial[state] for state in states if state in used}
        digest = _digest(stages, functions, initial)
        calls = self._prove(functions, initial)
        return ChainFunctions(name, digest, stages, functions, initial, flags, calls)

    def _prove(
        self, functions: Sequence[ExportedFunction], initial: Mapping[str, Tensor]
    ) -> tuple[ReferenceCall, ...]:
        """Run the stages and the functions on the same inputs, and compare their bits.

        Raises:
            ChainError: They differ, as those of a stage do that reads a clock or counts in Python.
        """
        by_name = {function.name: function for function in functions}
        runners = {function.name: function.runner() for function in functions}
        specs = {
            part: {
                name: self._actions[key] if name in self._policy_names else self._spec_of[key]
                for name, key in self._input_names(part).items()
            }
            for part in by_name
        }
        state: Mapping[str, Tensor] = initial
        root: dict[NestedKey, Tensor] = {}
        calls: list[ReferenceCall] = []
        action: dict[NestedKey, Tensor] = {}
        for call in sample_inputs(specs, list(by_name)):
            part = call.function
            names = self._input_names(part)
            given = {key: call.inputs[name].clone() for name, key in names.items()}
            if part == "act":
                action = given
            elif "act" in by_name and part == "step":
                given = {**given, **action}  # a step gets the action of the call before it
            inputs = {name: given[key] for name, key in names.items() if name in call.inputs}
            inputs |= {name: given[key] for name, key in self._policy_names.items() if key in given}
            entries = {key: given[key] for name, key in names.items()}
            own = {key: value.clone() for key, value in entries.items()}
            policy = {key: own.pop(key) for key in self._actions_in(own)} if part != "reset" else {}
            before = {} if part == "reset" else {**root, **policy}
            result = _leaves(self._apply(part, before, own, None, self._untraced))
            if part != "act":
                root = dict(result)
            function = by_name[part]
            outputs = runners[part]({**state, **inputs})
            for entry in function.outputs:
                if entry.is_state:
                    continue
                key = self._output_names(part)[entry.name]
                if key not in result or not same_bits(result[key], outputs[entry.name]):
                    raise ChainError(
                        f"the exported {part} does not return the {format_key(key)!r} of the chain"
                        f" in call {len(calls)}",
                        hint="a stage reads a clock, a random number or a counter in Python: "
                        "declare why_not_exported in its class",
                    )
            state = {
                **state,
                **{entry.name: outputs[entry.name] for entry in function.outputs if entry.is_state},
            }
            needed = {entry.name for entry in function.inputs if not entry.is_state}
            kept = {name: value for name, value in inputs.items() if name in needed}
            calls.append(ReferenceCall(part, kept, outputs))
        return tuple(calls)

    def _actions_in(self, entries: Mapping[NestedKey, Tensor]) -> list[NestedKey]:
        return [key for key in self._policy_names.values() if key in entries]

    def _example(self, part: str, name: str) -> Tensor:
        if name in self._policy_names:
            return self._examples["act"][self._policy_names[name]]
        key = self._input_names(part).get(name)
        return self._initial[name] if key is None else self._examples[part][key]

    def _trace(self, part: str, inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
        """Return a graph that says what depends on what; an export takes ten times as long."""
        module = _Graph(self, part, inputs, outputs)
        examples = (self._example(part, name).clone() for name in inputs)
        with self._tracing(part):
            traced: GraphModule = make_fx(torch.func.functionalize(module))(*examples)
        return traced.graph

    def _export(
        self, part: str, inputs: Sequence[str], outputs: Sequence[str]
    ) -> torch.export.ExportedProgram:
        module = _Graph(self, part, inputs, outputs)
        examples = tuple(self._example(part, name).clone() for name in inputs)
        with self._tracing(part):
            program = torch.export.export(module, examples, strict=False)
            program = program.run_decompositions({})
        for node in list(program.graph.nodes):
            node.meta.pop("stack_trace", None)  # paths of this machine
            node.meta.pop("from_node", None)  # addresses in this process
            if str(node.target) == "aten._assert_tensor_metadata.default":
                program.graph.erase_node(node)  # the dtypes of the inputs are static
        program.graph_module.recompile()
        return program

    @contextmanager
    def _tracing(self, part: str) -> Iterator[None]:
        # A graph that cannot be traced is printed, and the error says it all.
        log = logging.getLogger("torch.fx.experimental.symbolic_shapes")
        with ExitStack() as quiet:
            quiet.enter_context(redirect_stderr(io.StringIO()))
            quiet.callback(log.setLevel, log.level)
            log.setLevel(logging.CRITICAL)
            quiet.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")  # of torch, about its own deprecations
            quiet.enter_context(torch.no_grad())
            quiet.enter_context(exporting())
            try:
                yield
            except TdxError:
                raise
            except Exception as error:
                index = getattr(error, "tdx_stage", None)
                if index is None:
                    raise ChainError(
                        f"torch.export cannot trace {part}: {get_first_line(error)}"
                    ) from error
                reason = f"torch.export cannot trace its {part}: {get_first_line(error)}"
                raise _refused(index, self.stages[index], reason) from error
            finally:
                self._forget()

    def _unchanged(
        self, full: Mapping[str, Graph], outputs: Mapping[str, list[str]]
    ) -> list[NestedKey]:
        """Return the rewards and done flags that each function returns as it got them."""
        kept: set[NestedKey] = set()
        for part in ("reset", "step"):
            inputs = {key: name for name, key in self._input_names(part).items()}
            sources = _output_sources(full[part])
            for place, name in enumerate(outputs[part]):
                key = self._output_names(part)[name]
                source = sources[place]
                position = [*self._input_names(part)].index(inputs[key]) if key in inputs else -1
                if position < 0 or source != position:
                    kept.add(key)
        parts = ("full_reward_spec", "full_done_spec")
        return [key for key, part in self._parts.items() if part in parts and key not in kept]

    def _used_states(
        self,
        full: Mapping[str, Graph],
        outputs: Mapping[str, list[str]],
        states: Sequence[str],
    ) -> set[str]:
        """Return the states that a result depends on, directly or through another state."""
        used: set[str] = set()
        while True:
            more = set(used)
            for part, graph in full.items():
                names = [*self._input_names(part), *states]
                all_outputs = [*self._output_names(part), *states]
                places = [all_outputs.index(name) for name in (*outputs[part], *used)]
                more |= {names[place] for place in _live_inputs(graph, places)} & set(states)
            if more == used:
                return used
            used = more

    def _function(
        self,
        part: str,
        full: Graph,
        outputs: Sequence[str],
        used: set[str],
    ) -> ExportedFunction:
        states = [*self._slots, *self._carried]
        names = [*self._input_names(part), *states]
        all_outputs = [*self._output_names(part), *states]
        kept_states = [state for state in states if state in used]
        if part == "act":
            sources = _output_sources(full)
            for state in self._slots:
                if sources[all_outputs.index(state)] != names.index(state):
                    index = self._slots[state].stage
                    raise _refused(index, self.stages[index], "its inverse keeps state")
            needed = _live_inputs(full, [all_outputs.index(name) for name in outputs])
            kept_states = [state for state in kept_states if names.index(state) in needed]
        results = [*outputs, *kept_states]
        live = _live_inputs(full, [all_outputs.index(name) for name in results])
        inputs = [name for place, name in enumerate(names) if place in live]
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
        slot = self._slots.get(name)
        is_state = slot is not None or name in self._carried
        path: tuple[str, ...] = ()
        if slot is not None:
            stage = type(self.stages[slot.stage]).__name__
            key = slot.attribute.strip("_") if slot.key is None else format_key(slot.key)
            description = f"kept by stage {slot.stage} ({stage}): {key}"
            if slot.position is not None:
                description += f", entry {slot.position + 1} of its window, oldest first"
        elif is_state:
            key = format_key(self._carried[name])
            description = f"{key} as the last call returned it"
        else:
            names = self._input_names(part) if is_input else self._output_names(part)
            path, key = split_key(names[name]), format_key(names[name])
            if part == "act":
                description = "action of the policy" if is_input else "action for the env"
            else:
                description = f"from the env's {part}" if is_input else "after the chain"
                if name in self._policy_names:
                    description = "action of the policy"
                key = f"next.{key}" if part == "step" else key
        is_observation = not (is_input or is_state or part == "act") and (
            self._parts.get(self._output_names(part)[name], "full_observation_spec")
            == "full_observation_spec"
        )
        is_window = slot is not None and slot.position is not None
        shape = tuple(value.shape)
        return ArtifactEntry(
            name, key, shape, value.dtype, is_state, description, is_observation, is_window, path
        )

    def _check_random(self, function: ExportedFunction) -> None:
        for node in function.program.graph.nodes:
            if node.op == "call_function" and _RANDOM.match(str(node.target)):
                index = (stage_of(node) or (0, ""))[0]
                raise _refused(index, self.stages[index], "it draws random numbers")


def _frozen(stage: Transform) -> Transform:
    """Return a stage in eval mode whose running statistics are fixed."""
    freeze = getattr(stage, "freeze", None)
    if freeze is not None:
        freeze()
    return stage.eval()


class _named:  # noqa: N801 - used like a function
    """Note the stage that raised an error, which torch.export wraps."""

    def __init__(self, index: int, stage: Transform) -> None:
        self._index, self._stage = index, stage

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, TdxError):
            error.at(stage=self._index, transform=type(self._stage).__name__)
        elif error is not None and not hasattr(error, "tdx_stage"):
            error.tdx_stage = self._index  # type: ignore[attr-defined]


def _zero(spec: Any) -> Tensor:
    value: Tensor = spec.zero()
    return value.cpu()


def _leaves(tensordict: TensorDictBase) -> dict[NestedKey, Tensor]:
    keys = sorted(map(normalize_key, tensordict.keys(True, True)), key=split_key)
    found = {key: read(tensordict, key) for key in keys}
    return {key: value for key, value in found.items() if isinstance(value, Tensor)}


def _tensordict(entries: Mapping[NestedKey, Tensor]) -> TensorDictBase:
    tensordict: TensorDictBase = new_tensordict({}, torch.Size(()), None)
    for key, value in entries.items():
        tensordict.set(key, value)
    return tensordict


def _outputs(graph: Graph) -> list[Node]:
    last = next(node for node in reversed(graph.nodes) if node.op == "output")
    return list(last.args[0])


def _placeholders(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def _user_inputs(program: torch.export.ExportedProgram) -> list[Node]:
    nodes = {node.name: node for node in _placeholders(program.graph)}
    return [nodes[str(name)] for name in program.graph_signature.user_inputs]


def _live_inputs(graph: Graph, places: Sequence[int]) -> set[int]:
    """Return the positions of the inputs that some outputs depend on."""
    outputs = _outputs(graph)
    seen = _ancestors([outputs[place] for place in places])
    return {place for place, node in enumerate(_placeholders(graph)) if node in seen}


def _ancestors(nodes: list[Node]) -> set[Node]:
    pending, seen = list(nodes), set()
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            pending += node.all_input_nodes
    return seen


def _output_sources(graph: Graph) -> list[int | None]:
    """Return for each output the position of the input that it is a copy of."""
    inputs = {node: place for place, node in enumerate(_placeholders(graph))}
    sources: list[int | None] = []
    for node in _outputs(graph):
        while node.op == "call_function" and str(node.target) == "aten.clone.default":
            node = node.args[0]  # type: ignore[assignment]
        sources.append(inputs.get(node))
    return sources


def constants(program: torch.export.ExportedProgram) -> Iterator[tuple[str, Tensor]]:
    """Yield the placeholder and the value of each constant, buffer and parameter of a graph."""
    signature = program.graph_signature
    held = {**program.state_dict, **program.constants}
    targets = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    for node in program.graph.nodes:
        if node.name in targets:
            yield node.name, held[targets[node.name]]


def _digest(
    stages: Sequence[str], functions: Sequence[ExportedFunction], initial: Mapping[str, Tensor]
) -> str:
    content = hashlib.sha256()
    content.update(json.dumps(list(stages)).encode())
    for function in functions:
        for entry in (*function.inputs, *function.outputs):
            row = [function.name, entry.name, entry.key, list(entry.shape), str(entry.dtype)]
            content.update(json.dumps(row).encode())
        for name, value in constants(function.program):
            content.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            content.update(value.detach().cpu().contiguous().numpy().tobytes())
    for name, value in initial.items():
        content.update(name.encode() + value.contiguous().numpy().tobytes())
    return content.hexdigest()


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _identifier(parts: Sequence[str]) -> str:
    """Return an identifier of Python, C++ and ONNX for the parts of a key."""
    name = re.sub(r"\W+", "_", "_".join(parts), flags=re.ASCII).strip("_")
    name = re.sub(r"__+", "_", name)
    return f"entry_{name}" if not name or not name[0].isalpha() or keyword.iskeyword(name) else name


def operators_behind(
    chain: ChainFunctions, function: ExportedFunction, output: str
) -> tuple[list[str], list[str]]:
    """Return the operators that an output depends on: in its own call, and in earlier ones.

    Args:
        chain: The chain.
        function: A function of it.
        output: Name of the output.
    """

    def walk(part: ExportedFunction, name: str) -> tuple[list[str], set[str]]:
        place = [entry.name for entry in part.outputs].index(name)
        seen = _ancestors([_outputs(part.program.graph)[place]])
        inputs = zip(_user_inputs(part.program), part.inputs, strict=True)
        states = {entry.name for node, entry in inputs if entry.is_state and node in seen}
        return [str(node.target) for node in seen if node.op == "call_function"], states

    direct, pending_states = walk(function, output)
    carried: list[str] = []
    known: set[str] = set()
    while pending_states - known:
        state = min(pending_states - known)
        known.add(state)
        for part in chain.functions:
            if part.name != "act" and state in {entry.name for entry in part.outputs}:
                operators, more = walk(part, state)
                carried += operators
                pending_states |= more
    return direct, carried


def window_sizes(function: ExportedFunction) -> dict[str, int]:
    """Return the number of earlier entries that a function keeps of each key with a window."""
    keys = [entry.key for entry in function.inputs if entry.is_window]
    return {key: keys.count(key) for key in keys}
