"""Parse policy names, as ``--policy`` and the ``policy`` of a pipeline file give them."""

from __future__ import annotations

import json
import re
import shlex
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal, get_args

from tdx.foundation.errors import CodeNotAllowedError, PipelineError, TdxError, did_you_mean
from tdx.pipeline.grammar import format_arguments, format_value, parse_stage, quote
from tdx.pipeline.values import CodeReference, DictKey, Value, code_not_allowed_error

PolicyKind = Literal["random", "zero", "sequence", "mlp", "module", "sb3", "lerobot", "code"]
Activation = Literal["relu", "tanh", "sigmoid", "elu", "gelu", "silu", "leaky_relu", "softplus"]
OutputActivation = Literal["clamp", "tanh", "argmax"]
ACTIVATIONS: tuple[str, ...] = get_args(Activation)
OUTPUT_ACTIVATIONS: tuple[str, ...] = get_args(OutputActivation)
MLP_SETTINGS = ("weights", "activation", "output", "in_keys")
"""Arguments of ``mlp(...)``."""

_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "mlp": MLP_SETTINGS,
    "sb3": ("file", "deterministic", "in_keys"),
    "lerobot": ("folder", "in_keys"),
}
"""Arguments of the kinds that have some, first the one with the file or folder."""
_FILE_KINDS = ("sequence", "mlp", "module", "sb3", "lerobot")
_POLICY_FORMS = (
    "random, zero, sequence:FILE, mlp:FILE, module:FILE, sb3:FILE, lerobot:FOLDER or module:name "
    "of Python code"
)
_PICKLE_SUFFIXES = (".pt", ".pth")
_FORMS = {
    "mlp": 'write mlp:FILE, or mlp("FILE", activation="tanh")',
    "sb3": 'write sb3:FILE, or sb3("FILE", deterministic=False)',
    "lerobot": 'write lerobot:FOLDER, or lerobot("FOLDER", in_keys=["observation"])',
}


@dataclass(frozen=True, slots=True)
class PolicySource:
    """A policy as named by a user or a pipeline file; no file has been opened yet."""

    # code: a Python object; module: a saved module; sb3, lerobot: a model or checkpoint of theirs.
    kind: PolicyKind
    file: str | None = None  # Path of its file or folder.
    reference: CodeReference | None = None  # The Python object, for code.
    # Given with the name; the architecture of an mlp takes precedence over its file.
    settings: Mapping[str, Value] = field(default_factory=dict)

    @property
    def is_code(self) -> bool:
        """True if loading it can execute code: pickles, TorchScript, ``torch.export``, Python."""
        pickled = self.kind == "sequence" and PurePath(self.file or "").suffix in _PICKLE_SUFFIXES
        return pickled or self.kind in ("module", "sb3", "lerobot", "code")

    def with_file(self, file: str) -> PolicySource:
        """Return the same policy with another file."""
        return PolicySource(self.kind, file, self.reference, self.settings)

    def check_allowed(self, allow_code: bool) -> None:
        """Raise an error if the policy is code and code is not allowed."""
        if allow_code or not self.is_code:
            return
        if self.kind == "code":
            raise code_not_allowed_error(self)
        if self.kind == "sequence":
            message = f"{self.file} is a pickle, which can run code when it is loaded"
            hint = "save the actions as .npy or .json, or add --allow-code if you trust it"
            raise CodeNotAllowedError(message, hint=hint)
        what = {"sb3": "model of Stable-Baselines3", "lerobot": "policy of LeRobot"}
        message = (
            f"{self.file} is a {what.get(self.kind, 'saved module')}, which can run code when it "
            "is loaded"
        )
        hint = "add --allow-code if you trust it, or use mlp:FILE.safetensors, which needs none"
        raise CodeNotAllowedError(message, hint=hint)

    def __str__(self) -> str:
        if self.kind == "code":
            return str(self.reference)
        if self.file is None:
            return self.kind
        if not self.settings:
            return f"{self.kind}:{self.file}"
        return f"{self.kind}({quote(self.file)}, {format_arguments((), self.settings)})"


def parse_policy(text: str) -> PolicySource:
    """Parse the name of a policy.

    Its forms are ``random``, ``zero``, ``sequence:FILE``, ``mlp:FILE``, ``mlp("FILE",
    activation="tanh")``, ``module:FILE``, ``sb3:FILE``, ``sb3("FILE", deterministic=False)``,
    ``lerobot:FOLDER`` and ``package.module:name``.

    Example:
        >>> parse_policy("mlp:policy.safetensors").kind
        'mlp'
        >>> parse_policy("my_package.policies:push").is_code
        True
    """
    if text == "random":
        return PolicySource("random")
    if text == "zero":
        return PolicySource("zero")
    kind, _, rest = text.partition(":")
    if kind in _FILE_KINDS and rest:
        return PolicySource(kind, rest)  # type: ignore[arg-type]
    called, bracket, _ = text.lstrip().partition("(")
    if bracket and called in _SETTINGS:
        stage = parse_stage(text)
        first = _SETTINGS[called][0]
        if len(stage.args) > 1 or (stage.args and first in stage.kwargs):
            raise PipelineError(f"{called} takes one {_noun(called)}", hint=_FORMS[called])
        given = {first: stage.args[0]} if stage.args else {}
        return make_policy(called, {**given, **stage.kwargs})  # type: ignore[arg-type]
    reference = CodeReference.of(text)
    if reference is not None:
        return PolicySource("code", reference=reference)
    if kind in _FILE_KINDS:
        missing = f"the policy {text!r} has no {_noun(kind)}"
        raise PipelineError(missing, hint=_FORMS.get(kind, f"write {kind}:FILE"))
    if text.endswith(".zip"):
        message = f"{text} is a file without the kind of the policy"
        raise PipelineError(message, hint=f"for a model of Stable-Baselines3, write sb3:{text}")
    hint = did_you_mean(kind, ["random", "zero", *_FILE_KINDS], f"write {_POLICY_FORMS}")
    raise PipelineError(f"unknown policy {text!r}", hint=hint)


def model_hint(file: str) -> str:
    """Return the hint for a file of Stable-Baselines3 that is named instead of an env."""
    command = f"tdx tui ENV --policy {shlex.quote(f'sb3:{file}')} --allow-code"
    return f"for a model of Stable-Baselines3, name its env: {command}"


_MAX_MODEL_DATA = 4 * 2**20


def describe_model(file: str) -> str | None:
    """Return the spaces of a model of Stable-Baselines3; ``None`` if the file does not tell.

    The file is untrusted: its text is parsed, and nothing is unpickled.
    """
    try:
        with zipfile.ZipFile(file) as archive, archive.open("data") as stream:
            data = json.loads(stream.read(_MAX_MODEL_DATA))
        observation, action = (
            _describe_space(data[f"{name}_space"]) for name in ("observation", "action")
        )
    # A damaged archive raises what its decompressor does.
    except Exception:
        return None
    return f"observations in {observation} and actions in {action}"


def _describe_space(space: Mapping[str, object]) -> str:
    """Return the class of a space with its size: ``Box [4] float32`` or ``Discrete(2)``."""
    kind = re.search(r"(\w+)'>$", str(space[":type:"]))
    if kind is None:
        raise ValueError(space)
    if kind[1] == "Discrete":
        return f"Discrete({int(str(space['n']))})"
    shape, dtype = space.get("_shape"), str(space.get("dtype"))
    if kind[1] != "Box" or not isinstance(shape, list) or not dtype.isalnum():
        return kind[1]
    return f"Box {list(map(int, shape))} {dtype}"


def make_policy(kind: PolicyKind, settings: Mapping[str, Value]) -> PolicySource:
    """Create the policy that settings describe, as in a call or in a pipeline file.

    ``kind`` is ``mlp``, ``sb3`` or ``lerobot``. The file is ``weights`` of an ``mlp``, ``file`` of
    ``sb3`` and ``folder`` of ``lerobot``; ``in_keys``, and ``activation`` and ``output`` or
    ``deterministic``, are optional.
    """
    known_settings = _SETTINGS[kind]
    for name in settings:
        if name not in known_settings:
            listed = f"{kind} has {', '.join(known_settings)}"
            hint = did_you_mean(str(name), known_settings, listed)
            raise PipelineError(f"{kind} has no setting {name}", hint=hint)
    file = settings.get(known_settings[0])
    if not isinstance(file, str) or not file:
        what = "its weights" if kind == "mlp" else "the model"
        raise PipelineError(f"{kind} needs the {_noun(kind)} of {what}", hint=_FORMS[kind])
    given: dict[str, Value] = {}
    for name, known in (("activation", ACTIVATIONS), ("output", OUTPUT_ACTIVATIONS)):
        value = settings.get(name)
        if value is not None and value not in known:
            listed = f"it is one of {', '.join(known)}"
            hint = did_you_mean(value, known, listed) if isinstance(value, str) else listed
            raise PipelineError(f"{name} of an mlp is unknown: {format_value(value)}", hint=hint)
        given |= {} if value is None else {name: value}
    if (value := settings.get("deterministic")) is not None:
        if not isinstance(value, bool):
            raise PipelineError(
                f"deterministic of {kind} must be True or False, got {format_value(value)}",
                hint=_FORMS[kind],
            )
        given["deterministic"] = value
    if (value := settings.get("in_keys")) is not None:
        keys = (value,) if isinstance(value, str) else value
        if not isinstance(keys, tuple) or not keys or not all(map(_is_key, keys)):
            raise PipelineError(
                f"in_keys of {kind} must be keys, got {format_value(keys)}",
                hint='write in_keys=["observation"]',
            )
        given["in_keys"] = keys
    return PolicySource(kind, file, settings=given)


def parse_mlp_settings(policy: str) -> dict[DictKey, Value] | None:
    """Return the settings of a policy written as ``mlp(...)``; ``None`` for any other policy."""
    try:
        source = parse_policy(policy)
    except TdxError:
        return None
    if source.kind != "mlp" or not source.settings:
        return None
    return dict([("weights", source.file), *source.settings.items()])


def _noun(kind: str) -> str:
    return "folder" if kind == "lerobot" else "file"


def _is_key(value: Value) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(isinstance(part, str) for part in value)
    return isinstance(value, str)
