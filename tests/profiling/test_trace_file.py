"""Traces recorded elsewhere, with known truth."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tdx.foundation.errors import TdxError
from tdx.profiling.passes.trace_file import RangeWait, stream_entries, summarize_trace

EPOCH = 1_700_000_000_000_000


def event(cat: str, name: str, start: int, length: int, thread: int, **args: int) -> dict[str, Any]:
    start += EPOCH
    return {
        **{"ph": "X", "cat": cat, "name": name, "ts": start, "dur": length},
        **{"pid": 1, "tid": thread, "args": args},
    }


EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
    event("user_annotation", "encode", 10, 40, 1),
    event("cuda_runtime", "cudaLaunchKernel", 20, 5, 1, correlation=1),
    event("kernel", "matmul", 30, 100, 7, correlation=1),
    event("user_annotation", "decode", 60, 200, 1),
    event("cuda_runtime", "cudaLaunchKernel", 70, 5, 1, correlation=2),
    event("kernel", "relu", 140, 20, 7, correlation=2),
    event("cuda_runtime", "cudaMemcpyAsync", 80, 130, 1, correlation=3),
    event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 160, 40, 7, correlation=3, bytes=64),
    event("cuda_runtime", "cudaLaunchKernel", 300, 5, 1, correlation=4),
    event("kernel", "fill", 310, 10, 7, correlation=4),
]


def write(path: Path, text: str) -> Path:
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_ranges_of_users_have_the_work_that_they_launched(tmp_path: Path, name: str) -> None:
    text = json.dumps({"deviceProperties": [{"id": 0}], "traceEvents": EVENTS, "traceName": "x"})
    trace = summarize_trace(write(tmp_path / name, text))
    encode, decode, outside = trace.ranges
    assert (encode.label, decode.label, outside.label) == ("encode", "decode", "outside of ranges")
    assert (encode.busy_us, encode.kernels, encode.delay_us) == (100, 1, 5)
    assert (decode.busy_us, decode.kernel_us, decode.copy_us) == (60, 20, 40)
    assert (decode.waits, decode.wait_us, decode.to_host_bytes) == (1, 130, 64)
    # From 130 to 140: so short a time only comes from starting a kernel that was launched.
    assert (decode.idle_kernel_us, decode.idle_other_us) == (10, 0)
    # From 10 to 30, and from 200 to 260, when the host is in the ranges.
    assert (encode.idle_host_us, decode.idle_host_us) == (20, 60)
    assert outside.idle_host_us == 50
    # The host is in `decode` for 200 µs and waits for 130 of them.
    assert (encode.bound_by, decode.bound_by, outside.bound_by) == ("kernels", "a wait", "the host")
    assert (trace.traced_us, trace.busy_us) == (310, 170)
    assert trace.unattributed == pytest.approx(10 / 170)
    assert trace.waits == (RangeWait("decode", "cudaMemcpyAsync", "", 1, 130),)


def test_idle_time_of_each_stream_has_a_cause(tmp_path: Path) -> None:
    def work(stream: int, number: int, launched: int, start: int, length: int) -> list[Any]:
        return [
            event("cuda_runtime", "cudaLaunchKernel", launched, 2, 1, correlation=number),
            event("kernel", "k", start, length, stream, correlation=number, device=0),
        ]

    entries = [
        *(*work(7, 1, 0, 10, 50), *work(7, 2, 5, 70, 10), *work(7, 3, 6, 180, 20)),
        *(*work(7, 4, 300, 400, 5), *work(20, 5, 7, 20, 30)),
    ]
    first, second = summarize_trace(write(tmp_path / "trace.json", json.dumps(entries))).streams
    assert (first.stream, first.busy_us) == (7, 85)
    # From 60 to 70, from 80 to 180, and from 200 on, after which the host launches.
    idle = (first.idle_kernel_us, first.idle_other_us, first.idle_host_us)
    assert idle == (10, 100, 200)
    assert (second.stream, second.busy_us, second.idle_host_us) == (20, 30, 0)


def test_nanoseconds_since_1970_are_exact(tmp_path: Path) -> None:
    entries = [
        event("cuda_runtime", "cudaLaunchKernel", 0, 0, 1, correlation=1),
        event("kernel", "k", 1, 1, 7, correlation=1),
        event("cuda_runtime", "cudaLaunchKernel", 2, 0, 1, correlation=2),
        event("kernel", "k", 5, 1, 7, correlation=2),
    ]
    # The second launch starts 1 ns before the first kernel ends; a float has steps of 256 ns here.
    text = json.dumps(entries).replace(f'"ts": {EPOCH + 2}', f'"ts": {EPOCH + 1}.999')
    (stream,) = summarize_trace(write(tmp_path / "trace.json", text)).streams
    assert (stream.idle_host_us, stream.idle_kernel_us) == (0, 3)


def test_a_trace_of_the_host_has_its_ranges(tmp_path: Path) -> None:
    entries = [event("user_annotation", "encode", start, 40, 1) for start in (10, 60)]
    summary = summarize_trace(write(tmp_path / "trace.json", json.dumps(entries)))
    assert (summary.devices, summary.busy_us, summary.streams) == (0, 0, ())
    (encode,) = summary.ranges
    assert (encode.label, encode.calls, encode.host_us) == ("encode", 2, 80)


def test_several_devices_are_counted(tmp_path: Path) -> None:
    def kernel(device: int) -> dict[str, Any]:
        return event("kernel", "matmul", 10 * device, 10, 7, device=device, correlation=device)

    path = write(tmp_path / "trace.json", json.dumps([kernel(0), kernel(1)]))
    summary = summarize_trace(path)
    assert (summary.devices, summary.busy_us) == (2, 20)


def test_a_list_of_events_is_streamed_across_chunks(tmp_path: Path) -> None:
    entries = [{"name": "x" * 1000, "ts": index} for index in range(3000)]
    path = write(tmp_path / "list.json", json.dumps(entries))
    assert [entry["ts"] for entry in stream_entries(path)] == list(range(3000))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (json.dumps({"traceEvents": EVENTS})[:-40].encode(), "is cut off"),
        (gzip.compress(json.dumps({"traceEvents": EVENTS}).encode())[:-40], "is cut off"),
        (b"", "is cut off"),
        (b"name,time\n", "is no trace of torch"),
        (b'{"schema_version": 1}', "is no trace of torch"),
        (b'[{"ph": "X", "cat": "kernel", "name": "k"}]', "an event has a wrong entry"),
        (b'[{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "tid": "x"}]', "wrong entry"),
        (b'[{"ph": "X", "cat": "kernel", "name": "k", "ts": 1e999999999}]', "wrong entry"),
        (b"[]", "has neither work of a device nor ranges"),
    ],
)
def test_a_cut_or_foreign_file_is_one_error(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(data)
    with pytest.raises(TdxError, match=message) as caught:
        summarize_trace(path)
    assert str(caught.value).count(str(path)) == 1


def test_a_missing_file_is_not_called_a_trace(tmp_path: Path) -> None:
    with pytest.raises(TdxError, match=r"^cannot read .*missing\.json: no such file"):
        summarize_trace(tmp_path / "missing.json")
