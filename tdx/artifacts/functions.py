"""Functions of a chain with explicit state, each exported as one graph.

``torch.export`` traces the hooks of the stages, so a chain has no second definition of its numbers.
What a stage keeps between calls becomes inputs and outputs of the functions: entries of the running
episode (``episode_memory``), such as the frames of ``CatFrames``; buffers that a call changes, such
as the count of ``TrajCounter``; and entries that a step reads from the result of the previous call,
such as ``step_count``. An entry is state only if the graph of a function reads it.
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
from tdx.foundation.torch_internals import exporting, is_exporting, version_of
from tdx.specs.composite import all_leaves, spec_leaves
from tdx.specs.leaf import domain_text, leaf_spec

SPLIT_HINT = "export the part before it: --split"
_RANDOM = re.compile(r"aten\.(rand|normal|bernoulli|multinomial|exponential|uniform|poisson)")


@dataclass(frozen=True, slots=True)
class ArtifactEntry:
    """One tensor that goes into or out of a function."""

    name: str  # an identifier; a state has the same name as input and as output
    key: str  # such as ``observation`` or ``next.reward``
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_state: bool  # carried from one call to the next
    description: str
    is_observation: bool = False  # an output of reset or step, except rewards, flags and state
    is_window: bool = False  # a state that is one entry of a window, as of ``CatFrames``
    path: tuple[str, ...] = ()  # parts of the key without ``next``; empty for a state


@dataclass(frozen=True, slots=True)
class ExportedFunction:
    """A pure function: every state is an input and an output, and nothing is mutated."""

    name: str  # ``reset`` or ``step`` for the observation side; ``act`` from policy to env
    program: torch.export.ExportedProgram
    inputs: tuple[ArtifactEntry, ...]
    outputs: tuple[ArtifactEntry, ...]

    @property
    def calls(self) -> list[Node]:
        """Nodes that call an operator."""
        return [node for node in self.program.graph.nodes if node.op == "call_function"]

    @property
    def constants(self) -> dict[str, Tensor]:
        """Constants, buffers and parameters by the names of their placeholders."""
        held = {**self.program.state_dict, **self.program.constants}
        specs = self.program.graph_signature.input_specs
        return {spec.arg.name: held[spec.target] for spec in specs if spec.target is not None}

    def behind(self, output: str) -> tuple[list[str], set[str]]:
        """Return the operators that an output depends on, and the names of the inputs."""
        place = [entry.name for entry in self.outputs].index(output)
        nodes = _ancestors(_outputs(self.program.graph)[place])
        held, graph = self.constants, self.program.graph
        given = [node in nodes for node in _placeholders(graph) if node.name not in held]
        inputs = {entry.name for entry, is_read in zip(self.inputs, given, strict=True) if is_read}
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
    digest: str  # SHA-256 of stages, entries and constants, in hexadecimal digits
    stages: tuple[str, ...]
    functions: tuple[ExportedFunction, ...]  # ``act`` only if a stage maps actions
    initial: Mapping[str, Tensor] = field(default_factory=dict)  # state before the first reset
    unchanged: tuple[str, ...] = ()  # rewards and done flags that the functions leave out
    calls: tuple[ReferenceCall, ...] = ()  # what the chain itself returns in a few episodes


def stage_of(node: Node) -> tuple[int, str] | None:
    """Return index and class name of the stage of a node; ``None``: it copies an input."""
    for path, _ in reversed(list(node.meta.get("nn_module_stack", {}).values())):
        match = re.search(r"stage_(\d+)_(\w+)$", path)
        if match:
            return int(match[1]), match[2]
    return None


def chain_functions(env: EnvBase, name: str, stages: Sequence[str]) -> ChainFunctions:
    """Export as many stages of an env as ``stages`` has lines; the env is not stepped."""
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
        reason = reason or ("it changes the batch" if stage.changes_batch else None)
        if reason is not None:
            raise _refused(index, stage, reason)
    try:
        return _Chain(base, parts).build(name, tuple(stages))
    except TdxError:
        raise
    except Exception as error:
        raise ChainError(f"torch.export cannot trace it: {get_first_line(error)}") from error


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


class _Slot(NamedTuple):
    """A tensor that a stage keeps: in a dict of its episode memory, or as a buffer."""

    stage: int
    attribute: str
    key: NestedKey | None = None
    position: int | None = None


class _StageCall(nn.Module):
    """Calls a hook of a stage; nodes of a graph carry the name of the module that made them."""

    def __init__(self, index: int, stage: Transform) -> None:
        super().__init__()
        self.index, self.stage = index, stage

    def forward(self, hook: str, *arguments: TensorDictBase) -> TensorDictBase:
        try:
            with torch.no_grad():
                result: TensorDictBase = getattr(self.stage, hook)(*arguments)
        except TdxError as error:
            error.at(stage=self.index, transform=type(self.stage).__name__)
            raise
        except Exception as error:
            phase = "when it is traced" if is_exporting() else "on zeros or the reference vectors"
            reason = f"it fails {phase}: {get_first_line(error)}"
            raise _refused(self.index, self.stage, reason) from error
        return result


class _Graph(nn.Module):
    """A function of inputs and of calls of the stages, as a module."""

    def __init__(
        self, calls: Mapping[str, nn.Module], function: Callable[..., tuple[Tensor, ...]]
    ) -> None:
        super().__init__()
        for name, call in calls.items():
            self.add_module(name, call)
        self._function = function

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        # The calls are those of this module, so that nodes get their names.
        return self._function(values, list(self.children()))


class _Dependency(NamedTuple):
    """Inputs that an output depends on, and the one that it is a copy of."""

    inputs: set[str]
    source: str | None


class _Chain:
    """The stages of a chain, cloned from their env, and their functions."""

    def __init__(self, base: EnvBase, stages: Sequence[Transform]) -> None:
        self.stages, untraced = ([deepcopy(stage) for stage in stages] for _ in range(2))
        self.calls = {
            f"stage_{index}_{type(stage).__name__}": _StageCall(index, stage)
            for index, stage in enumerate(self.stages)
        }
        self.untraced = [_StageCall(index, stage) for index, stage in enumerate(untraced)]
        observations, rewards, flags = (
            spec_leaves(base.output_spec[f"full_{part}_spec"])
            for part in ("observation", "reward", "done")
        )
        self.flags = [*rewards, *flags]
        specs = base.input_spec, base.output_spec
        for stage, other in zip(self.stages, untraced, strict=True):
            for copied in (stage, other):
                freeze = getattr(copied.eval(), "freeze", None)
                if freeze is not None:
                    freeze()  # running statistics
                copied.__dict__.update({memory: {} for memory in copied.episode_memory})
            other.transform_specs(*specs)
            specs = stage.transform_specs(*specs)
        # A copy, as a mask in it changes with the stages.
        actions = spec_leaves(deepcopy(specs[0]["full_action_spec"]))
        entries = {**observations, **rewards, **flags}
        self.policy, env = _names(actions, ["policy"]), _names(entries, ["env"])
        self.keys = {**env, **self.policy}  # of the inputs by name
        self.specs = {name: entries[key] for name, key in env.items()}
        self.specs |= {name: actions[key] for name, key in self.policy.items()}
        self.inputs = {
            "reset": [name for name, key in env.items() if key not in rewards],
            "step": [*self.keys],
            "act": [*self.policy],
        }
        # Specs of what the functions return, by key.
        self.declared = {"act": spec_leaves(base.input_spec["full_action_spec"])}
        self.declared["reset"] = self.declared["step"] = all_leaves(specs[1])
        self.outputs = {"act": _names(self.declared["act"], taken=self.keys)}
        self.slots: dict[str, _Slot] = {}
        self.carried: dict[str, NestedKey] = {}  # entries of the last call that a step may read
        self.initial: dict[str, Tensor] = {}
        self._find_state()

    def _find_state(self) -> None:
        """Run each function once by torch, and record what the stages keep."""
        calls = [*self.calls.values()]
        buffers = {
            _Slot(index, name): (value, version_of(value), value.clone())
            for index, stage in enumerate(self.stages)
            for name, value in stage.named_buffers(recurse=False)
        }
        root = self._apply("reset", {}, {}, calls)
        slots = self._memory().keys()
        results = self._apply("step", {}, root, calls)
        memory = self._memory()
        for slot in slots ^ memory.keys():
            stage = self.stages[slot.stage]
            raise _refused(slot.stage, stage, "a step keeps other entries than a reset")
        initial = {slot: torch.zeros_like(value) for slot, value in memory.items()}
        for slot, (value, version, first) in buffers.items():
            stage = self.stages[slot.stage]
            if getattr(stage, slot.attribute) is not value or version_of(value) != version:
                delattr(stage, slot.attribute)  # from here on, a call gets it as an input
                initial[slot] = first
        names = _names(sorted({**root, **results}, key=split_key), taken=self.keys)
        for part, entries in (("reset", root), ("step", results)):
            self.outputs[part] = {name: key for name, key in names.items() if key in entries}
        taken = {*self.keys, *names, *self.outputs["act"]}
        for slot, value in initial.items():
            stage = self.stages[slot.stage]
            snake_case = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(stage).__name__).lower()
            parts = [slot.attribute] if slot.key is None else split_key(slot.key)
            parts = [snake_case, str(slot.stage), *parts]
            parts += [] if slot.position is None else [str(slot.position)]
            name = unique_name(_identifier(parts), taken)
            self.slots[name], self.initial[name] = slot, value
        for key, value in root.items():
            later = results.get(key)
            if later is not None and (later.dtype, later.shape) == (value.dtype, value.shape):
                name = unique_name(_identifier(["last", *split_key(key)]), taken)
                self.carried[name], self.initial[name] = key, torch.zeros_like(value)

    def _memory(self) -> dict[_Slot, Tensor]:
        """Return the tensors of the running episode that stages hold now."""
        return {
            _Slot(index, attribute, key, position): value
            for index, stage in enumerate(self.stages)
            for attribute in stage.episode_memory
            for key, held in getattr(stage, attribute).items()
            for position, value in ([(None, held)] if isinstance(held, Tensor) else enumerate(held))
        }

    def _apply(
        self,
        part: str,
        values: Mapping[str, Tensor],
        last: Mapping[NestedKey, Tensor],
        calls: Sequence[nn.Module],
    ) -> dict[NestedKey, Tensor]:
        """Run the hooks of all stages on inputs by name, zero if missing, and the last results."""
        before, current = _tensordict(), _tensordict()
        # Copies: a stage may write to what it gets.
        for key, value in last.items():
            before.set(key, value.clone())
        for name in self.inputs[part]:
            value = values[name].clone() if name in values else self._example(name)
            (before if name in self.policy else current).set(self.keys[name], value)
        if part != "reset":
            for call in reversed(calls):
                before = call("_inv_call", before)
        if part == "act":
            return _leaves(before)
        for call in calls:
            arguments = ("_reset", _tensordict()) if part == "reset" else ("_step", before)
            current = call(*arguments, current)
        return _leaves(current)

    def run(
        self, part: str, values: Mapping[str, Tensor], calls: Sequence[nn.Module]
    ) -> dict[str, Tensor]:
        """Run a function on inputs by name; return its outputs and every state by name."""
        last = {key: values[state] for state, key in self.carried.items() if state in values}
        try:
            for state, slot in self.slots.items():
                held = values[state] if state in values else torch.zeros_like(self.initial[state])
                stage, held = self.stages[slot.stage], held.clone()
                if slot.key is None:
                    stage.__dict__[slot.attribute] = held
                elif slot.position is None:
                    getattr(stage, slot.attribute)[slot.key] = held
                else:
                    getattr(stage, slot.attribute).setdefault(slot.key, []).append(held)
            result = self._apply(part, values, last, calls)
            outputs = {name: result[key] for name, key in self.outputs[part].items()}
            kept = self._memory()
            for state, slot in self.slots.items():
                buffers = self.stages[slot.stage].__dict__
                outputs[state] = kept[slot] if slot in kept else buffers[slot.attribute]
        finally:
            for slot in self.slots.values():
                attributes = self.stages[slot.stage].__dict__
                attributes.pop(slot.attribute, None)
                if slot.key is not None:
                    attributes[slot.attribute] = {}
        for state, key in self.carried.items():
            # An action does not change what a step has returned.
            outputs[state] = result[key] if part != "act" else last.get(key, self.initial[state])
        return outputs

    def build(self, name: str, stages: tuple[str, ...]) -> ChainFunctions:
        """Export each function, without the inputs and states that no result depends on."""
        parts = ["reset", "step"]
        if any(stage.invertible for stage in self.stages):
            parts.append("act")
        depends = {part: self._dependencies(part) for part in parts}
        changed = {
            key
            for part in ("reset", "step")
            for name, key in self.outputs[part].items()
            if self.keys.get(depends[part][name].source or "") != key
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
        initial = {state: value for state, value in self.initial.items() if state in used}
        results = {part: [*names, *initial] for part, names in outputs.items()}
        if "act" in parts:
            for state, slot in self.slots.items():
                if depends["act"][state].source != state:
                    stage = self.stages[slot.stage]
                    raise _refused(slot.stage, stage, "its inverse keeps state")
            read = set().union(*(depends["act"][name].inputs for name in outputs["act"]))
            results["act"] = [*outputs["act"], *(state for state in initial if state in read)]
        functions = [self._export(part, names, depends[part]) for part, names in results.items()]
        digest = _digest(stages, functions, initial)
        calls = self._prove(functions, initial)
        flags = tuple(map(format_key, unchanged))
        return ChainFunctions(name, digest, stages, tuple(functions), initial, flags, calls)

    def _prove(
        self, functions: Sequence[ExportedFunction], initial: Mapping[str, Tensor]
    ) -> tuple[ReferenceCall, ...]:
        """Run the stages and the functions on the same inputs, and compare their bits."""
        by_name = {function.name: function for function in functions}
        runners = {function.name: function.runner() for function in functions}
        specs = {part: {name: self.specs[name] for name in self.inputs[part]} for part in by_name}
        for name in self.policy if "act" in by_name else ():
            del specs["step"][name]  # a step gets the action of the call before it
        values, last = dict(initial), dict[NestedKey, Tensor]()
        calls: list[ReferenceCall] = []
        for call in sample_inputs(specs):
            part, function = call.function, by_name[call.function]
            values |= call.inputs
            result = self._apply(part, values, {} if part == "reset" else last, self.untraced)
            last = last if part == "act" else result
            names = [entry.name for entry in function.inputs if not entry.is_state]
            inputs, outputs = {name: values[name] for name in names}, runners[part](values)
            for entry in function.outputs:
                value = outputs[entry.name]
                if entry.is_state:
                    values[entry.name] = value
                    continue
                key = self.outputs[part][entry.name]
                own = result.get(key)
                if own is None or compare(value.numpy(), own.numpy(), 0.0) is not None:
                    raise ChainError(
                        f"the exported {part} does not return the {format_key(key)!r} of the chain"
                        f" in call {len(calls)}",
                        hint="a stage reads a clock, a random number or a counter in Python: "
                        "declare why_not_exported in its class",
                    )
            calls.append(ReferenceCall(part, inputs, outputs))
        return tuple(calls)

    def _example(self, name: str) -> Tensor:
        """Return the initial value of a state, or zeros for an input."""
        if name in self.initial:
            return self.initial[name].clone()
        value: Tensor = self.specs[name].zero()
        return value.cpu()

    def _trace(
        self, part: str, inputs: Sequence[str], outputs: Sequence[str], trace: Callable[..., Any]
    ) -> Any:
        """Trace a function of inputs and outputs by name."""

        def function(values: Sequence[Tensor], calls: Sequence[nn.Module]) -> tuple[Tensor, ...]:
            results = self.run(part, dict(zip(inputs, values, strict=True)), calls)
            return tuple(results[name] for name in outputs)

        # A graph that cannot be traced is printed, and the error says it all.
        with silenced("torch.fx.experimental.symbolic_shapes"), exporting():
            return trace(_Graph(self.calls, function), tuple(map(self._example, inputs)))

    def _dependencies(self, part: str) -> dict[str, _Dependency]:
        """Return what each output and state depends on; an export takes ten times as long."""
        inputs, outputs = ([*names[part], *self.initial] for names in (self.inputs, self.outputs))
        traced: GraphModule = self._trace(
            part, inputs, outputs, lambda graph, x: make_fx(torch.func.functionalize(graph))(*x)
        )
        names = dict(zip(_placeholders(traced.graph), inputs, strict=True))
        depends = {}
        for name, source in zip(outputs, _outputs(traced.graph), strict=True):
            read = {names[node] for node in _ancestors(source) if node in names}
            while str(source.target) == "aten.clone.default":
                source = source.all_input_nodes[0]
            depends[name] = _Dependency(read, names.get(source))
        return depends

    def _export(
        self, part: str, results: Sequence[str], depends: Mapping[str, _Dependency]
    ) -> ExportedFunction:
        live = set().union(*(depends[name].inputs for name in results))
        inputs = [name for name in (*self.inputs[part], *self.initial) if name in live]
        program: torch.export.ExportedProgram = self._trace(
            part,
            inputs,
            results,
            lambda graph, x: torch.export.export(graph, x, strict=False).run_decompositions({}),
        )
        for node in list(program.graph.nodes):
            node.meta.pop("stack_trace", None)  # paths of this machine
            node.meta.pop("from_node", None)  # addresses in this process
            if str(node.target) == "aten._assert_tensor_metadata.default":
                program.graph.erase_node(node)  # the dtypes of the inputs are static
            elif _RANDOM.match(str(node.target)):
                index = (stage_of(node) or (0, ""))[0]
                raise _refused(index, self.stages[index], "it draws random numbers")
        program.graph_module.recompile()
        values = [node.meta["val"] for node in _outputs(program.graph)]
        return ExportedFunction(
            part,
            program,
            tuple(self._entry(part, name, self._example(name), True) for name in inputs),
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
        if name in self.carried:
            key = format_key(self.carried[name])
            return ArtifactEntry(name, key, shape, dtype, True, "as the last call returned it")
        if slot is not None:
            key = slot.attribute.strip("_") if slot.key is None else format_key(slot.key)
            text = f"kept by stage {slot.stage} ({type(self.stages[slot.stage]).__name__})"
            is_window = slot.position is not None
            if slot.position is not None:
                text += f", entry {slot.position + 1} of its window, oldest first"
            return ArtifactEntry(name, key, shape, dtype, True, text, is_window=is_window)
        path = self.keys[name] if is_input else self.outputs[part][name]
        key, is_action = format_key(path), part == "act" or name in self.policy
        if is_input:
            text = "action of the policy" if is_action else f"from the env's {part}"
        else:
            text = "action for the env" if is_action else "after the chain"
        spec = self.specs[name] if is_input else self.declared[part].get(path)
        if spec is not None:
            values = domain_text(leaf_spec("observation", path, spec), whole=True)
            text += "" if values == "any" else f", {values}"
        key = f"next.{key}" if part == "step" and not is_action else key
        is_observation = not (is_input or is_action or path in self.flags)
        return ArtifactEntry(
            name, key, shape, dtype, False, text, is_observation, path=split_key(path)
        )


def unique_name(name: str, taken: set[str]) -> str:
    """Return a name that is not taken yet, and take it."""
    number, result = 1, name
    while result in taken:
        number += 1
        result = f"{name}_{number}"
    taken.add(result)
    return result


def _names(
    keys: Iterable[NestedKey], prefix: Sequence[str] = (), *, taken: Iterable[str] = ()
) -> dict[str, NestedKey]:
    used = set(taken)
    return {unique_name(_identifier([*prefix, *split_key(key)]), used): key for key in keys}


def _leaves(tensordict: TensorDictBase) -> dict[NestedKey, Tensor]:
    keys = sorted(map(normalize_key, tensordict.keys(True, True)), key=split_key)
    values = {key: read(tensordict, key) for key in keys}
    return {key: value for key, value in values.items() if isinstance(value, Tensor)}


def _tensordict() -> TensorDictBase:
    tensordict: TensorDictBase = new_tensordict({}, torch.Size(()), None)
    return tensordict


def _outputs(graph: Graph) -> list[Node]:
    results: Any = graph.output_node().args[0]
    return list(results)


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
    rows = [
        [function.name, entry.name, entry.key, list(entry.shape), str(entry.dtype)]
        for function in functions
        for entry in (*function.inputs, *function.outputs)
    ]
    content = hashlib.sha256("".join(map(json.dumps, [list(stages), *rows])).encode())
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
