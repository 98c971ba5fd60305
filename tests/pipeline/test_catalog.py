"""Declarations of transforms are read from source files."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tdx.foundation.errors import UnknownNameError
from tdx.foundation.serialization import to_plain
from tdx.pipeline import load_catalog
from tdx.pipeline.aliases import ALIASES
from tdx.pipeline.catalog import format_catalog
from tdx.pipeline.declarations import read_declarations
from tdx.pipeline.generate import main, update_stub
from tdx.pipeline.transform_info import TransformInfo, Type
from tdx.stacks.counterparts import TABLE
from tests.programs import exhaustive

FILES = {
    "foundation/keys.py": """
        NestedKey = str | tuple[str, ...]
    """,
    "specs/__init__.py": "class TensorSpec: ...",
    "transforms/base/__init__.py": "from .transform import Base as Base",
    "transforms/base/transform.py": '''
        from collections.abc import Sequence
        from pack.foundation.keys import NestedKey

        class Base:
            """The base.

            Args:
                in_keys: the keys read.
            """

            time_behavior = TimeBehavior.POINTWISE
            default_in_keys = ("observation", ("a", "b"))

            def __init__(self, in_keys: Sequence[NestedKey] | None = None) -> None: ...
    ''',
    "transforms/reward/__init__.py": "",
    "transforms/reward/_shared.py": "class Shared: ...",
    "transforms/reward/scale_it.py": '''
        import torch
        from collections.abc import Callable, Mapping, Sequence
        from typing import Any, ClassVar, Literal, Optional
        from torch import Tensor
        from pack.foundation.keys import NestedKey
        from pack.specs import TensorSpec
        from pack.transforms.base import Base

        Mode = Literal["fast", "exact"]
        SMALLEST = 1e-6

        class Helper: ...

        class ScaleIt(Base):
            """Scale
            everything.

            More words.

            Args:
                factor: the factor,
                    never zero.
                mode (str): how.
                **specs: the specs.

            Raises:
                ValueError: always.
            """

            time_behavior: ClassVar[TimeBehavior] = TimeBehavior.SCAN

            def __init__(
                self,
                factor: "float | Tensor",
                /,
                count: int | Sequence[int] = -1,
                mode: Mode = "fast",
                key: NestedKey | None = None,
                dtype: Optional[torch.dtype] = None,
                eps: float = SMALLEST,
                *names: str,
                stop: Callable[[Any], bool] | None = None,
                device: torch.device | str = "cpu",
                options: Mapping[str, tuple[int, ...]] = {},
                inner: Base | None = None,
                untyped=None,
                **specs: TensorSpec,
            ) -> None: ...
    ''',
    "transforms/reward/keep_it.py": '''
        from pack.transforms.base import Base

        class KeepIt(Base):
            """Keep everything."""
    ''',
    "transforms/reward/abstract_one.py": """
        from abc import abstractmethod

        class AbstractOne:
            @abstractmethod
            def go(self): ...
    """,
}


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "pack" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return tmp_path / "pack"


@pytest.fixture
def scale_it(pack: Path) -> TransformInfo:
    return next(info for info in read_declarations(pack) if info.name == "ScaleIt")


def test_each_file_declares_one_transform(pack: Path) -> None:
    assert [info.name for info in read_declarations(pack)] == ["KeepIt", "ScaleIt"]


def test_declared_attributes(scale_it: TransformInfo) -> None:
    assert scale_it.module == "pack.transforms.reward.scale_it"
    assert scale_it.category == "reward"
    assert scale_it.time_behavior == "scan"
    assert scale_it.summary == "Scale everything."
    assert "More words." in scale_it.doc
    assert scale_it.default_in_keys == ("observation", ("a", "b"))


def test_inherited_attributes(pack: Path) -> None:
    info = read_declarations(pack)[0]
    assert info.time_behavior == "pointwise"
    assert [(each.name, each.help) for each in info.parameters] == [("in_keys", "the keys read.")]


def test_the_signature(scale_it: TransformInfo) -> None:
    assert [(each.name, each.kind, each.default) for each in scale_it.parameters] == [
        ("factor", "positional", None),
        ("count", "positional", "-1"),
        ("mode", "positional", "'fast'"),
        ("key", "positional", "None"),
        ("dtype", "positional", "None"),
        ("eps", "positional", "1e-06"),
        ("names", "var_positional", None),
        ("stop", "keyword", "None"),
        ("device", "keyword", "'cpu'"),
        ("options", "keyword", "{}"),
        ("inner", "keyword", "None"),
        ("untyped", "keyword", "None"),
        ("specs", "var_keyword", None),
    ]
    assert [each.name for each in scale_it.parameters if each.required] == ["factor"]
    helps = {each.name: each.help for each in scale_it.parameters if each.help}
    assert helps == {"factor": "the factor, never zero.", "mode": "how.", "specs": "the specs."}


def test_the_types(scale_it: TransformInfo) -> None:
    words = {each.name: each.type.words() for each in scale_it.parameters}
    assert words == {
        "factor": "a number or a tensor (a number, or lists of numbers)",
        "count": "a whole number or a list of whole numbers",
        "mode": 'one of "fast" or "exact"',
        "key": "a key (a string or a tuple of strings) or None",
        "dtype": "a dtype such as torch.float32 or None",
        "eps": "a number",
        "names": "a string",
        "stop": "a Python object written module:name or None",
        "device": "a device such as cuda:0 or a string",
        "options": "a dict of values that are a list of whole numbers",
        "inner": "a transform or None",
        "untyped": "any value",
        "specs": "a spec such as Unbounded(shape=(3,))",
    }


def test_plain_data_round_trips(pack: Path) -> None:
    for info in read_declarations(pack):
        assert TransformInfo.from_json(to_plain(info)) == info


def test_the_stub_lists_every_transform(pack: Path) -> None:
    stub = "a\n# transforms: generated\nold\n# transforms: end\nb\n"
    block = update_stub(stub, read_declarations(pack), "pack")
    assert block.splitlines()[2:4] == [
        "from .transforms.reward.keep_it import KeepIt as KeepIt",
        "from .transforms.reward.scale_it import ScaleIt as ScaleIt",
    ]
    assert update_stub("no markers", read_declarations(pack)) == "no markers"


@exhaustive
def test_generated_files_are_up_to_date() -> None:
    assert main(["--check"]) == 0, "run python -m tdx.pipeline.generate"


def test_every_transform_is_documented() -> None:
    for info in load_catalog().transforms:
        assert info.summary, info.name
        assert info.time_behavior in ("pointwise", "scan", "control"), info.name
        undocumented = [each.name for each in info.parameters if not each.help]
        assert undocumented == [], info.name


def test_every_declaration_matches_its_class() -> None:
    import inspect
    from importlib import import_module

    for info in load_catalog().transforms:
        kind = getattr(import_module(info.module), info.name)
        signature = inspect.signature(kind.__init__)
        assert [each.name for each in info.parameters] == list(signature.parameters)[1:]
        assert kind.time_behavior.name.lower() == info.time_behavior


def test_finding() -> None:
    found = load_catalog()
    assert found["StepCounter"].signature.startswith("StepCounter(max_steps: int | None = None, ")
    assert "StepCounter" in [info.name for info in found.search("episode step")]
    assert found.search("no such thing") == []
    assert set(found.categories) == {info.category for info in found.transforms}
    with pytest.raises(UnknownNameError) as caught:
        found["StepCouter"]
    assert caught.value.hint == "did you mean StepCounter?"


def test_unions_are_flat() -> None:
    from tdx.pipeline.transform_info import make_union

    inner = make_union([Type("int"), Type("none")])
    assert make_union([inner, Type("int")]) == inner
    assert format_catalog([]) == '{\n "version": 1,\n "transforms": []\n}\n'


@exhaustive
def test_loading_the_catalog_imports_no_heavy_package() -> None:
    code = (
        "import sys; from tdx.pipeline import load_catalog, Pipeline, check_arguments\n"
        "load_catalog(); check_arguments(Pipeline.of('Pendulum-v1', 'StepCounter(max_steps=3)'))\n"
        "print({'torch', 'numpy', 'ruamel', 'pydantic', 'gymnasium'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_argument_declared_by_a_protocol_takes_a_python_object() -> None:
    (logger, *_) = load_catalog()["VideoRecorder"].parameters
    assert logger.type.words() == "a Python object written module:name or None"


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("FrameStack", "CatFrames"),
        ("frame stack", "CatFrames"),
        ("frame_stack", "CatFrames"),
        ("VecNormalize", "VecNormV2"),
        ("AtariPreprocessing", "NoopResetEnv"),
        ("TimeLimit", "StepCounter"),
        ("RecordEpisodeStatistics", "RewardSum"),
        ("MonitorWrapper", "RewardSum"),
        ("RunningMeanStd", "VecNormV2"),
    ],
)
def test_names_of_other_libraries_find_their_transforms(words: str, first: str) -> None:
    assert load_catalog().search(words)[0].name == first


def test_every_alias_leads_to_transforms_and_every_counterpart_has_one() -> None:
    catalog = load_catalog()
    for alias, names in ALIASES.items():
        assert [info.name for info in catalog.search(alias)] == [
            name.partition("(")[0] for name in names
        ]
        assert catalog.find(alias) is None, alias
    for rows in TABLE.values():
        for name, row in rows.items():
            becomes = {word for word in re.findall(r"\w+", row.becomes) if catalog.find(word)}
            if becomes and catalog.find(name) is None:
                assert becomes & {info.name for info in catalog.search(name)}, name


def test_unknown_name_leads_to_the_nearest() -> None:
    catalog = load_catalog()
    assert catalog.nearest("FrameStack") == "FrameStack of other libraries is CatFrames here"
    assert catalog.nearest("FramStackObservation") is not None
    assert catalog.nearest("StepCouter") == "did you mean StepCounter?"
    assert catalog.nearest("xyzzy") is None
    assert catalog.nearest("RewardWrapper") is None
    clip = 'ClipTransform(in_keys_inv=["action"], low=…, high=…)'
    assert catalog.nearest("ClipAction") == f"ClipAction of other libraries is {clip} here"
    with pytest.raises(UnknownNameError) as caught:
        catalog["WarpFrame"]
    assert caught.value.hint == "WarpFrame of other libraries is GrayScale and Resize here"
