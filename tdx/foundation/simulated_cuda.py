"""A CUDA device that exists only in name: tensors that say they are on it compute on the host.

It shows what a program would do to a GPU on a machine that has none: launches, copies and the lines
where the host would wait. It reports no times. Tensors stay plain CPU tensors, since a subclass
changes which code of torch, TensorDict and tdx runs. The flag is an attribute of the Python object
of their storage, which views, ``detach()`` and ``Parameter`` share and which lives as long as the
storage.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple, Self

import torch
from torch.overrides import TorchFunctionMode

from tdx.foundation.patches import Patches
from tdx.foundation.torch_internals import (
    TorchDispatchMode,
    argument_names,
    by_device,
    import_compiler,
    unwrap_function_level,
)

DEVICE = torch.device("cuda", 0)
_CPU = torch.device("cpu")
_FLAG, _PINNED = "_tdx_simulated_device", "_tdx_pinned"


CallKind = Literal["launch", "to device", "to host", "wait"]


class DeviceCall(NamedTuple):
    """What a line of code, ``file:line`` outside torch and TensorDict, does to the device.

    A ``launch`` is an operator of one kernel or more, and in a ``wait`` the host waits until the
    device has finished its queue. ``name`` is the call, such as ``item()`` or ``add``.
    """

    kind: CallKind
    name: str
    location: str
    nbytes: int = 0


_LIBRARIES = Path(torch.__file__).parents[1]
_REPOSITORY = Path(__file__).parents[2]
_SKIPPED_FILES = (
    # With a separator at the end, or `torchrl` would be skipped as a part of `torch`.
    *(f"{_LIBRARIES / name}{os.sep}" for name in ("torch", "torchvision", "tensordict")),
    str(Path(__file__)),
    warnings.__file__,
    "<",
)


def calling_line(skipped: Sequence[str] = ()) -> str:
    """Return ``file:line`` of the innermost caller outside torch, TensorDict and other files.

    The path is relative to the repository or the current folder, if it is inside one. Files with a
    prefix in ``skipped`` are skipped too; the line is empty if every caller is.
    """
    prefixes = (*_SKIPPED_FILES, *skipped)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(prefixes):
        frame = frame.f_back
    if frame is None:
        return ""
    path = Path(frame.f_code.co_filename)
    for root in (_REPOSITORY, Path.cwd()):
        if path.is_relative_to(root):
            path = path.relative_to(root)
            break
    return f"{path.as_posix()}:{frame.f_lineno}"


def is_on_device(tensor: torch.Tensor) -> bool:
    """Return True if a tensor says that it is on the simulated device."""
    try:
        storage = tensor.untyped_storage()
    except NotImplementedError:
        storage = unwrap_function_level(tensor).untyped_storage()
    return hasattr(storage, _FLAG)


def _flag(result: object, is_here: bool = True) -> None:
    for tensor in _tensors(result):
        storage = tensor.untyped_storage()
        if is_here:
            setattr(storage, _FLAG, True)
        elif hasattr(storage, _FLAG):
            delattr(storage, _FLAG)


def _tensors(*values: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in arguments or results, also those in lists and tuples."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(*value)
        elif isinstance(value, dict):
            yield from _tensors(*value.values())


def _as_device(value: torch.device | str | int | None) -> torch.device | None:
    """Return a device given as an argument; ``None`` for none. An integer is an index of CUDA."""
    if value is None:
        return None
    return torch.device("cuda", value) if isinstance(value, int) else torch.device(value)


def _is_simulated(device: torch.device | None) -> bool:
    return device is not None and device.type == "cuda"


class SimulatedCuda:
    """Pretends inside its block that ``cuda:0`` exists, and reports what is done to it.

    Threads that the block starts and child processes have no simulated device.

    Args:
        report: Called with each :class:`DeviceCall`.
        skipped: Prefixes of files that are never the location of a call.

    Example:
        >>> calls = []
        >>> with SimulatedCuda(calls.append):
        ...     x = torch.ones(3, device="cuda")
        ...     loss = (x * 2).sum()
        ...     value = loss.item()
        >>> [(call.kind, call.name) for call in calls]
        [('launch', 'ones'), ('launch', 'mul'), ('launch', 'sum'), ('wait', 'item()')]
        >>> value
        6.0
    """

    def __init__(
        self, report: Callable[[DeviceCall], object], *, skipped: Sequence[str] = ()
    ) -> None:
        self._report, self._skipped = report, tuple(skipped)
        self._patches = Patches()
        self._modes = ExitStack()
        self.python_call = ""
        """Name of the innermost call of Python that torch passed to the mode."""
        self.is_quiet = False

    def __enter__(self) -> Self:
        # The compiler, which the modes import when they are first used, registers the functions of
        # `torch.cuda` by identity: it must see those of torch.
        import_compiler()
        _patch_torch(self._patches, self)
        self._modes.enter_context(_Functions(self))
        self._modes.enter_context(_Operators(self))
        return self

    def __exit__(self, *error: object) -> None:
        self._modes.close()
        self._patches.undo()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Run operators on the host without reporting them."""
        before, self.is_quiet = self.is_quiet, True
        try:
            yield
        finally:
            self.is_quiet = before

    def report(self, kind: CallKind, name: str, nbytes: int = 0) -> None:
        """Report a call at the line that makes it."""
        if not self.is_quiet:
            self._report(DeviceCall(kind, name, calling_line(self._skipped), nbytes))

    def copy(self, kind: CallKind, name: str, nbytes: int, *, waits: bool = True) -> None:
        """Report a copy; the host waits for it unless it is told not to."""
        self.report(kind, name, nbytes)
        if waits:
            self.report("wait", name)

    def move(
        self,
        tensor: torch.Tensor,
        device: torch.device | None,
        dtype: torch.dtype | None,
        name: str,
        *,
        non_blocking: bool = False,
        copy: bool = False,
    ) -> torch.Tensor:
        """Do what ``tensor.to`` does."""
        here = is_on_device(tensor)
        there = here if device is None else _is_simulated(device)
        if device is not None and device.type not in ("cpu", "cuda"):
            return tensor.to(device=device, dtype=dtype)
        dtype = tensor.dtype if dtype is None else dtype
        if here == there:
            if dtype == tensor.dtype and not copy:
                return tensor
            return tensor.to(dtype, copy=copy)
        with self.quiet():
            moved = tensor.to(dtype, copy=True)
        kind: CallKind = "to device" if there else "to host"
        self.copy(kind, name, tensor.nbytes, waits=not non_blocking)
        _flag(moved, there)
        return moved


_NAMES = {
    "__bool__": "bool(tensor), as in `if`",
    "__float__": "float(tensor)",
    "__int__": "int(tensor)",
    "__index__": "a tensor as an index",
    "__contains__": "value in tensor",
    "__getitem__": "a tensor as an index",
    "__setitem__": "assignment to an index",
    "item": "item()",
}
_READS = "_local_scalar_dense"
_WAITING = {
    _READS,
    "nonzero",
    "masked_select",
    "_unique",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "unique_dim_consecutive",
    "bincount",
    "equal",
    "allclose",
    "is_nonzero",
    # The status of a decomposition is read, within the kernel or by a check of its own.
    "_linalg_check_errors",
    "_linalg_eigh",
    "_linalg_svd",
    "cholesky",
    "linalg_eig",
    "linalg_eigvals",
    "linalg_lstsq",
    "linalg_matrix_exp",
}
"""Operators whose CUDA kernels wait for the device: their result, its shape or a check is read."""
_WITHOUT_KERNEL = (
    *("empty", "new_empty", "_unsafe_view", "_reshape_alias", "resize_", "set_"),
    *(_READS, "is_nonzero", "item"),
)
"""Beginnings of the names of operators that launch nothing."""
_MIXED = (
    *("copy_", "_to_copy", "index", "index_put", "index_put_", "_index_put_impl_", "fill_"),
    "_pack_padded_sequence",
)
"""Operators that take tensors on both devices."""
_FROM_HOST_DATA = ("tensor", "as_tensor", "asarray", "new_tensor")
_FROM_NUMBERS = (
    *("arange", "empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randint"),
    *("randn", "randperm", "zeros"),
)
"""Functions whose arguments are numbers, so that tensors among these are read."""
_CHECKED_ON_HOST = ("one_hot", "quantile", "nanquantile")
"""Functions that check the values of tensors only if these are on the host."""
_T = torch.Tensor
_QUERIES: dict[object, Callable[[bool], object]] = {
    _T.device.__get__: lambda here: DEVICE if here else _CPU,
    _T.is_cuda.__get__: lambda here: here,  # type: ignore[attr-defined]
    _T.is_cpu.__get__: lambda here: not here,  # type: ignore[attr-defined]
    _T.get_device: lambda here: 0 if here else -1,
}
_PRINTS = {_T.__repr__, _T.__str__, _T.__format__}


class _Functions(TorchFunctionMode):
    """Calls of torch from Python: devices in arguments, and what reads a tensor's memory."""

    def __init__(self, device: SimulatedCuda) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        device = self._device
        subject = args[0] if args and isinstance(args[0], torch.Tensor) else None
        query = _QUERIES.get(func)
        if query is not None and subject is not None:
            return query(is_on_device(subject))
        name = getattr(func, "__name__", str(func))
        before, device.python_call = device.python_call, name
        try:
            if subject is not None:
                if func in (_T.to, _T.cuda, _T.cpu):
                    return self._move(func, name, subject, args[1:], kwargs)
                if func is _T.pin_memory:
                    pinned = subject.clone()
                    setattr(pinned.untyped_storage(), _PINNED, True)
                    return pinned
                if func is _T.is_pinned:
                    return hasattr(subject.untyped_storage(), _PINNED)
                if name == "where":
                    self._copy_host_values(args, kwargs)
                if is_on_device(subject):
                    if func is _T.numpy and kwargs.get("force"):
                        device.copy("to host", "numpy(force=True)", subject.nbytes)
                        with device.quiet():
                            # A copy, as of a device, so that the two do not share memory.
                            return func(*args, **kwargs).copy()
                    if func in (_T.numpy, _T.__array__):
                        raise TypeError(
                            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() "
                            "to copy the tensor to host memory first."
                        )
                    if func is _T.tolist or func in _PRINTS:
                        is_print = name.startswith("__")
                        call = "print or format of a tensor" if is_print else f"{name}()"
                        device.copy("to host", call, subject.nbytes)
                        with device.quiet():
                            return func(*args, **kwargs)
                    if name == "__deepcopy__":
                        with device.quiet():
                            copied = func(*args, **kwargs)
                        device.report("launch", "deepcopy")
                        _flag(copied)
                        return copied
                    if name in _CHECKED_ON_HOST:
                        classes = kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
                        if name == "one_hot" and classes < 0:
                            device.report("wait", "one_hot without num_classes")
                        with device.quiet():
                            checked = func(*args, **kwargs)
                        device.report("launch", name)
                        _flag(checked)
                        return checked
                    if name == "new_tensor" and kwargs.get("device") is None:
                        kwargs["device"] = DEVICE
            if name in _FROM_HOST_DATA:
                data = _host_data(name, args, kwargs)
                # Each number of a list is read by itself.
                for _ in filter(
                    is_on_device, () if isinstance(data, torch.Tensor) else _tensors(data)
                ):
                    device.report("wait", f"{name}() of a list of tensors")
            # `_parse_to` only reads the arguments of `nn.Module.to`.
            if kwargs.get("device") is not None and name != "_parse_to":
                return self._create(func, name, args, kwargs)
            return func(*args, **kwargs)
        finally:
            device.python_call = before

    def _move(
        self,
        func: Any,
        name: str,
        tensor: torch.Tensor,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> torch.Tensor:
        rest = list(args)
        target, dtype = _as_device(kwargs.get("device")), kwargs.get("dtype")
        if func is _T.cpu:
            target = _CPU
        elif func is _T.cuda:
            target = _as_device(rest.pop(0) if rest else kwargs.get("device")) or DEVICE
        elif rest and isinstance(rest[0], torch.Tensor):
            other = rest.pop(0)
            target, dtype = DEVICE if is_on_device(other) else _CPU, other.dtype
        elif isinstance(other := kwargs.get("other"), torch.Tensor):
            target, dtype = DEVICE if is_on_device(other) else _CPU, other.dtype
        else:
            if rest and not isinstance(rest[0], (torch.dtype, bool)):
                target = _as_device(rest.pop(0))
            if rest and (rest[0] is None or isinstance(rest[0], torch.dtype)):
                dtype = rest.pop(0)
        # `cpu(memory_format)` has no flags.
        flags = [] if func is _T.cpu else [bool(flag) for flag in rest]
        non_blocking = flags[0] if flags else bool(kwargs.get("non_blocking", False))
        copy = flags[1] if len(flags) > 1 else bool(kwargs.get("copy", False))
        return self._device.move(
            tensor, target, dtype, f"{name}()", non_blocking=non_blocking, copy=copy
        )

    def _copy_host_values(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Report the copies of single values of the host that are selected with those of a device.

        Numbers of Python are not copied: a kernel fills a tensor with them.
        """
        tensors = list(_tensors(*args, *kwargs.values()))
        if any(map(is_on_device, tensors)):
            for tensor in tensors:
                if not tensor.dim() and not is_on_device(tensor):
                    self._device.copy("to device", "where with a tensor of the host", tensor.nbytes)

    def _create(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        """Call a function that takes the device of its result."""
        device = self._device
        target = _as_device(kwargs["device"])
        if target is None or target.type not in ("cpu", "cuda"):
            return func(*args, **kwargs)
        kwargs["device"] = _CPU
        if name in _FROM_HOST_DATA:
            data = _host_data(name, args, kwargs)
            if isinstance(data, torch.Tensor):
                copy = name in ("tensor", "new_tensor")
                return device.move(data, target, kwargs.get("dtype"), f"{name}()", copy=copy)
            with device.quiet():
                made: torch.Tensor = func(*args, **kwargs)
            if _is_simulated(target):
                # Otherwise it would share the memory of an array of NumPy.
                made = made.clone()
                device.copy("to device", f"{name}()", made.nbytes)
                _flag(made)
            return made
        if name in _FROM_NUMBERS and any(map(is_on_device, _tensors(*args, *kwargs.values()))):
            device.report("wait", "a tensor as a number")
        with device.quiet():
            result = func(*args, **kwargs)
        _flag(result, _is_simulated(target))
        if _is_simulated(target) and not name.startswith(_WITHOUT_KERNEL):
            device.report("launch", name)
        return result


def _host_data(name: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
    """Return the data that a function creates a tensor from."""
    rest = args[1:] if name == "new_tensor" else args
    return rest[0] if rest else kwargs.get("data", kwargs.get("obj"))


class _Operators(TorchDispatchMode):
    """Operators on tensors: the lowest level that Python sees, below autograd."""

    def __init__(self, device: SimulatedCuda) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        device = self._device
        tensors = list(_tensors(*args, *kwargs.values()))
        here = [is_on_device(tensor) for tensor in tensors]
        if not any(here) or device.is_quiet:
            return func(*args, **kwargs)
        name = func.__name__.split(".")[0]
        if name == "copy_":
            return self._copy(func, args, kwargs)
        if name not in _MIXED:
            for tensor, is_here in zip(tensors, here, strict=True):
                if not is_here and tensor.dim():
                    raise RuntimeError(
                        "Expected all tensors to be on the same device, but found at least two "
                        "devices, cuda:0 and cpu!"
                    )
        self._report_indices(name, args, kwargs)
        result = func(*args, **kwargs)
        # The sizes of a packed batch stay on the host.
        _flag(result[0] if name == "_pack_padded_sequence" else result)
        if name in _WAITING or _waits_for(name, func, args, kwargs):
            device.report("wait", _NAMES.get(device.python_call, device.python_call or name))
        if not func.is_view and not name.startswith(_WITHOUT_KERNEL):
            device.report("launch", name)
        return result

    def _copy(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        target, source = args[0], args[1]
        non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        to, from_ = is_on_device(target), is_on_device(source)
        result = func(*args, **kwargs)
        if to and from_:
            self._device.report("launch", "copy_")
        elif to or from_:
            name = _NAMES.get(self._device.python_call, "copy_()")
            kind: CallKind = "to device" if to else "to host"
            self._device.copy(kind, name, source.nbytes, waits=not non_blocking)
        return result

    def _report_indices(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if name not in ("index", "index_put", "index_put_", "_index_put_impl_"):
            return
        device, target = self._device, args[0]
        indices = [index for index in args[1] if index is not None]
        masks = [index for index in indices if index.dtype in (torch.bool, torch.uint8)]
        for index in indices:
            if is_on_device(target) and not is_on_device(index):
                device.copy("to device", "an index on the host", index.nbytes)
        if name == "index":
            if masks:
                device.report("wait", "indexing with a mask")
            return
        values = args[2]
        accumulate = bool(args[3] if len(args) > 3 else kwargs.get("accumulate", False))
        fills = bool(masks) and values.numel() == 1 and not accumulate and len(indices) == 1
        # A mask and one value of the host are a `masked_fill`, for which nothing is read.
        if fills and not is_on_device(values):
            return
        if not is_on_device(values):
            device.copy("to device", "assignment of a host value to indices", values.nbytes)
        if masks:
            device.report("wait", "assignment to a mask")


def _waits_for(name: str, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return True if an operator waits with these arguments, but not with all."""
    if name in ("masked_fill", "masked_fill_"):
        # The value is an argument of the kernel, so a tensor is read.
        return isinstance(args[2], torch.Tensor) and is_on_device(args[2])
    if name not in ("repeat_interleave", "normal", "multinomial", "histc", "isin"):
        return False
    given = dict(zip(argument_names(func), args, strict=False))
    given.update(kwargs)
    if name == "repeat_interleave":
        return given.get("output_size") is None
    if name == "normal":
        # The standard deviations are checked to be positive.
        return isinstance(given.get("std"), torch.Tensor)
    if name == "multinomial":
        # The probabilities are checked, unless several numbers are drawn with replacement.
        return not given.get("replacement", False) or given["num_samples"] == 1
    if name == "histc":
        return bool(given.get("min", 0) == given.get("max", 0))
    # Many elements are sorted, and the number of unique ones is read.
    sizes = [
        value.numel() if isinstance(value, torch.Tensor) else 1
        for value in (given.get("elements"), given.get("test_elements"))
    ]
    return "Tensor_Tensor" in func.__name__ and sizes[1] >= 10 * sizes[0] ** 0.145


def _patch_torch(patches: Patches, device: SimulatedCuda) -> None:
    """Replace what asks torch for CUDA devices, their queues and their memory."""

    def wait(*_: object, **__: object) -> None:
        device.report("wait", "synchronize()")

    def nothing(*_: object, **__: object) -> None:
        return None

    save = torch.save

    def save_from_device(obj: object, *args: Any, **kwargs: Any) -> None:
        for tensor in filter(is_on_device, _tensors(obj)):
            device.copy("to host", "save()", tensor.nbytes)
        save(obj, *args, **kwargs)

    class Event:
        """An event of a queue that is always empty."""

        def __init__(self, *_: object, **__: object) -> None:
            pass

        record = wait_event = wait = nothing

        def query(self) -> bool:
            return True

        def synchronize(self) -> None:
            device.report("wait", "Event.synchronize()")

        def elapsed_time(self, end_event: object) -> float:
            return 0.0

    class Stream(nullcontext[None]):
        """A queue that is always empty."""

        device, device_index, priority, cuda_stream = DEVICE, 0, 0, 0

        def __init__(self, *_: object, **__: object) -> None:
            super().__init__()

        wait_stream = wait_event = nothing

        def record_event(self, event: Event | None = None) -> Event:
            return event or Event()

        def query(self) -> bool:
            return True

        def is_capturing(self) -> bool:
            return False

        def synchronize(self) -> None:
            device.report("wait", "Stream.synchronize()")

    stream = Stream()
    shared = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "synchronize": wait,
        "current_stream": lambda *_, **__: stream,
        "set_stream": nothing,
        "memory_stats": lambda *_, **__: {},
        "reset_peak_memory_stats": nothing,
        "memory_allocated": lambda *_, **__: 0,
        "max_memory_allocated": lambda *_, **__: 0,
        "empty_cache": nothing,
    }
    cuda = {
        "is_initialized": lambda: True,
        "is_current_stream_capturing": lambda: False,
        "current_device": lambda: 0,
        "get_device_name": lambda *_: "simulated CUDA device",
        "set_device": nothing,
        "init": nothing,
        "default_stream": lambda *_, **__: stream,
        "stream": lambda given: given or stream,
        "mem_get_info": lambda *_, **__: (0, 0),
        "manual_seed": nothing,
        "manual_seed_all": nothing,
        "Event": Event,
        "Stream": Stream,
    }
    for name, value in {**shared, **cuda}.items():
        patches.put(torch.cuda, name, value)
    if hasattr(torch, "accelerator"):
        accelerator = {
            "current_accelerator": lambda *_, **__: torch.device("cuda"),
            "current_device_index": lambda: 0,
        }
        for name, value in {**shared, **accelerator}.items():
            if hasattr(torch.accelerator, name):
                patches.put(torch.accelerator, name, value)
    patches.put(*by_device(lambda tensor: DEVICE if is_on_device(tensor) else _CPU))
    # A recurrent layer would lay out its weights for a kernel of the driver.
    patches.put(torch.backends.cudnn, "is_acceptable", lambda *_: False)
    patches.put(torch, "Generator", _Generator)
    patches.put(torch, "save", save_from_device)
    if hasattr(torch, "Event"):
        patches.put(torch, "Event", Event)


class _AnyGenerator(type(torch.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _REAL_GENERATOR)


_REAL_GENERATOR = torch.Generator


class _Generator(torch.Generator, metaclass=_AnyGenerator):
    """A generator of the host that says it belongs to the simulated device."""

    _device: torch.device

    def __new__(cls, device: torch.device | str | int | None = None) -> Self:
        made = super().__new__(cls, device="cpu")  # type: ignore[call-arg]
        made._device = DEVICE if _is_simulated(_as_device(device)) else _CPU
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._device
