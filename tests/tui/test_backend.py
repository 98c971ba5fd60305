"""Worker processes: answers, pushed values, cancellation and exit."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tdx.foundation.processes import ExitReason
from tdx.tui.backend.client import Backend, RequestError, SupersededError
from tdx.tui.backend.process import TAIL_BYTES, warm_up
from tests.processes import PATIENCE, all_ended, group_members, is_alive
from tests.programs import exhaustive
from tests.tui.asked import Busy, Describe, Draw, Echo, Fail, Hang, Noise

pytestmark = pytest.mark.usefixtures("shared_warm_program")


@asynccontextmanager
async def backend() -> AsyncIterator[Backend]:
    """Run a backend; check at the end that no process is left."""
    made = Backend()
    try:
        yield made
        pids = made.pids().values()
    finally:
        made.close()
    assert not [pid for pid in pids if is_alive(pid)]


async def test_worker_keeps_its_cache_between_requests() -> None:
    async with backend() as workers:
        answers = [await workers.ask(Echo(value)) for value in (3, 4)]
        other = await workers.ask(Echo(5), worker="other")
        assert (answers, other) == ([(3, 1), (4, 2)], (5, 1))
        assert len(set(workers.pids().values())) == 2


async def test_worker_without_requests_can_be_released() -> None:
    async with backend() as workers:
        hanging = workers.ask(Hang(), worker="live")
        await workers.ask(Echo(0), worker="profile")
        pids = workers.pids()
        for name in ("live", "profile", "look"):
            workers.release(name)
        assert all_ended([pids["profile"]])
        assert list(workers.pids()) == ["live"]
        assert not hanging.future.done()
        assert await workers.ask(Echo(1), worker="profile") == (1, 1)


async def test_workers_are_copies_of_one_process_with_their_own_random_numbers() -> None:
    async with backend() as workers:
        drawn = [await workers.ask(Draw(), worker=name) for name in ("look", "live")]
        assert len({parent for parent, _ in drawn}) == 1
        assert drawn[0][0] != os.getpid()
        assert drawn[0][1] != drawn[1][1]


@exhaustive
async def test_workers_start_again_after_the_process_that_forks_them_was_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Its own process, not the one that other tests share.
    monkeypatch.setattr("tdx.tui.backend.client.warm_up", warm_up)
    async with backend() as workers:
        parent, _ = await workers.ask(Draw())
        ticket = workers.ask(Hang())
        os.kill(parent, signal.SIGKILL)
        with pytest.raises(RequestError, match="killed by SIGKILL"):
            await ticket
        assert await workers.ask(Echo(1)) == (1, 1)


async def test_workers_run_nearly_as_fast_as_the_app_on_a_busy_machine() -> None:
    async with backend() as workers:
        await workers.ask(Echo(0))
        (pid,) = workers.pids().values()
        assert os.getpriority(os.PRIO_PROCESS, pid) <= min(os.nice(0) + 2, 19)


async def test_errors_are_returned_as_plain_data() -> None:
    async with backend() as workers:
        with pytest.raises(RequestError) as known:
            await workers.ask(Fail("tdx"))
        with pytest.raises(RequestError) as unknown:
            await workers.ask(Fail("other"))
        assert (known.value.problem.code, known.value.problem.hint) == ("TDX101", "do it right")
        assert unknown.value.problem.message == "ValueError: unforeseen"
        assert "asked.py" in unknown.value.details


async def test_only_the_latest_value_of_a_topic_arrives() -> None:
    async with backend() as workers:
        numbers: list[int] = []

        def push(topic: str, value: Any) -> None:
            if topic == "number":
                numbers.append(value)

        assert await workers.ask(Busy(400), on_push=push) == "done"
        assert numbers == sorted(set(numbers))
        assert numbers[-1] == 399
        assert len(numbers) < 400


async def test_a_state_arrives_after_the_view_that_it_describes() -> None:
    async with backend() as workers:
        pushed: list[tuple[str, Any]] = []
        await workers.ask(Describe(), on_push=lambda topic, value: pushed.append((topic, value)))
        assert pushed[-1] == ("state", 2)


async def test_job_receives_values_and_cancellation() -> None:
    async with backend() as workers:
        received = asyncio.Event()

        def push(topic: str, value: Any) -> None:
            if topic == "received" and value:
                received.set()

        ticket = workers.ask(Busy(), on_push=push)
        workers.send(ticket, "faster")
        await asyncio.wait_for(received.wait(), PATIENCE)
        workers.cancel(ticket)
        assert await ticket == "cancelled, received ['faster']"


async def test_newer_request_of_a_slot_supersedes_older_ones() -> None:
    async with backend() as workers:
        busy = workers.ask(Busy())
        first, second, last = (workers.ask(Echo(n), slot="look") for n in range(3))
        workers.cancel(busy)
        for stale in (first, second):
            with pytest.raises(SupersededError):
                await stale
        assert await last == (2, 1)


async def test_requests_fail_when_their_worker_exits_and_it_is_restarted() -> None:
    ended: list[tuple[str, ExitReason, str]] = []
    async with backend() as workers:
        workers.on_exit = lambda *exit: ended.append(exit)
        with pytest.raises(RequestError) as died:
            await workers.ask(Fail("exit"))
        assert died.value.details == "last words"
        assert ended == [("look", ExitReason(7), "last words")]
        assert await workers.ask(Echo(1)) == (1, 1)


async def test_exit_reason_of_a_worker_is_reported() -> None:
    async with backend() as workers:
        with pytest.raises(RequestError) as crashed:
            await workers.ask(Fail("crash"))
        assert crashed.value.problem.message == "the worker process crashed with SIGSEGV"
        assert "asked.py" in crashed.value.details  # traceback of the crash
        hanging = asyncio.Event()
        ticket = workers.ask(Hang(), on_push=lambda *_: hanging.set())
        await asyncio.wait_for(hanging.wait(), PATIENCE)
        os.kill(workers.pids()["look"], signal.SIGKILL)
        with pytest.raises(RequestError) as killed:
            await ticket
        assert killed.value.problem.message == "the worker process was killed by SIGKILL"


async def test_last_output_of_a_worker_is_kept() -> None:
    async with backend() as workers:
        ticket = workers.ask(Noise(3 * TAIL_BYTES))
        output = workers._workers["look"].process.output
        while output.tail(7) != "the end":
            await asyncio.sleep(0.05)
        assert len(output.tail()) == TAIL_BYTES
        workers.cancel(ticket)
        await ticket
        second = workers.ask(Noise(10))
        while output.tail(24) != f"the end{'.' * 10}the end":
            await asyncio.sleep(0.05)
        workers.cancel(second)
        await second


async def test_hanging_worker_is_killed_with_its_child_processes() -> None:
    async with backend() as workers:
        pids: list[int] = []
        hanging = asyncio.Event()

        def push(topic: str, value: Any) -> None:
            pids.append(value)
            hanging.set()

        ticket = workers.ask(Hang(child=True), worker="live", on_push=push)
        await asyncio.wait_for(hanging.wait(), PATIENCE)
        children = group_members(pids[0])
        assert len(children) == 2
        workers.restart("live")
        with pytest.raises(RequestError):
            await ticket
        assert all_ended(children)


@exhaustive
def test_workers_exit_when_the_app_is_killed() -> None:
    code = (
        "import asyncio, os\n"
        "from tdx.tui.backend.client import Backend\n"
        "from tests.tui.asked import Hang\n"
        "async def main():\n"
        "    backend = Backend()\n"
        "    for worker, request in ('look', Hang()), ('live', Hang(stuck=True)):\n"
        "        event = asyncio.Event()\n"
        "        def push(topic, pid):\n"
        "            print(pid, flush=True)\n"
        "            event.set()\n"
        "        backend.ask(request, worker=worker, on_push=push)\n"
        "        await event.wait()\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert done.returncode == -9, done.stderr
    pids = [int(line) for line in done.stdout.split()]
    assert len(pids) == 2
    assert all_ended(pids)
