"""Real processes, as small as they come: a child is ``python -c`` with a few lines."""

import asyncio
import io
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.child import ChildSpec, NeverHealthyError, Patience, SettingsRefusedError, describe_status
from services.console import Console
from services.supervisor import Supervisor

PATIENCE = Patience(first_delay_s=0.01, longest_delay_s=0.04, probe_interval_s=0.01)

# Waits for a blocked signal: a handler could run just before a sleep and be noticed only after it.
SERVE = """
import os, pathlib, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
ready = pathlib.Path(sys.argv[1])
print("hello", os.getpid(), flush=True)
half = ready.with_suffix(".half")
half.write_text(str(os.getpid()))
half.rename(ready)
signal.sigwait({signal.SIGTERM})
print("bye", flush=True)
ready.unlink()
"""
DEAF = SERVE.replace("signal.sigwait({signal.SIGTERM})", "time.sleep(600)")
SHORT_LIVED = SERVE.replace(
    "signal.sigwait({signal.SIGTERM})",
    "while not ready.with_suffix('.seen').exists(): time.sleep(0.005)\ntime.sleep(0.02); sys.exit(7)",
)


class Group:
    """Children whose health is a file that they write, under a supervisor whose output is kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = io.StringIO()
        self.ready = asyncio.Event()

    def spec(self, name: str, code: str = SERVE, patience: Patience = PATIENCE) -> ChildSpec:
        path = self.folder / name

        async def is_healthy() -> bool:
            if not path.exists() or not _is_alive(int(path.read_text())):
                return False
            path.with_suffix(".seen").touch()
            return True

        # -I -S: these programs need nothing but the standard library, and start faster.
        command = (sys.executable, "-I", "-S", "-c", code, str(path))
        return ChildSpec(name=name, command=command, is_healthy=is_healthy, patience=patience)

    def pid(self, name: str) -> int:
        return int((self.folder / name).read_text())

    def supervisor(self, *stages: list[ChildSpec], grace_s: float = 30, notice_interval_s: float = 60) -> Supervisor:
        names = ["up", *(spec.name for stage in stages for spec in stage)]
        console = Console(self.output, names, has_colour=False)
        return Supervisor(stages, console, name="up", grace_s=grace_s, notice_interval_s=notice_interval_s)

    @asynccontextmanager
    async def running(self, supervisor: Supervisor) -> AsyncGenerator[asyncio.Task[bool]]:
        """Healthy inside the block; the block lets it end."""
        task = asyncio.create_task(supervisor.run(lambda elapsed_s: self.ready.set()))
        ready = asyncio.create_task(self.ready.wait())
        await asyncio.wait({task, ready}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        assert ready.done(), self.output.getvalue()
        yield task
        assert task.done()

    async def until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not is_true():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def says(self, pattern: str) -> bool:
        return re.search(pattern, self.output.getvalue()) is not None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group(tmp_path)


async def test_stops_stage_by_stage_and_leaves_nothing_running(group: Group) -> None:
    supervisor = group.supervisor([group.spec("gateway")], [group.spec("engine-0"), group.spec("engine-1")])
    async with group.running(supervisor) as task:
        pids = [group.pid(name) for name in ("gateway", "engine-0", "engine-1")]
        os.kill(os.getpid(), signal.SIGINT)
        assert await task
    lines = group.output.getvalue().splitlines()
    farewells = [line for line in lines if line.endswith("bye")]
    assert farewells[0] == "gateway  | bye"
    assert sorted(farewells[1:]) == ["engine-0 | bye", "engine-1 | bye"]
    assert not any(map(_is_alive, pids))


async def test_crashed_child_is_restarted_and_the_others_stay(group: Group) -> None:
    supervisor = group.supervisor([group.spec("a")], [group.spec("b")])
    async with group.running(supervisor) as task:
        first, other = group.pid("a"), group.pid("b")
        os.kill(first, signal.SIGKILL)
        await group.until(lambda: group.says("a is healthy again after"))
        assert group.says(r"up \| a exited with SIGKILL; restarting in 0\.01 s")
        assert group.pid("a") != first
        assert group.pid("b") == other
        os.kill(os.getpid(), signal.SIGTERM)
        assert await task


async def test_delay_doubles_up_to_the_longest(group: Group) -> None:
    supervisor = group.supervisor([group.spec("a", SHORT_LIVED)])
    task = asyncio.create_task(supervisor.run(lambda elapsed_s: None))
    await group.until(lambda: group.output.getvalue().count("restarting") >= 4)
    os.kill(os.getpid(), signal.SIGTERM)
    await task
    delays = re.findall(r"a exited with status 7; restarting in (\S+) s", group.output.getvalue())
    assert delays[:4] == ["0.01", "0.02", "0.04", "0.04"]


async def test_delay_starts_again_after_a_steady_time(group: Group) -> None:
    patience = Patience(first_delay_s=0.01, steady_after_s=0, probe_interval_s=0.01)
    supervisor = group.supervisor([group.spec("a", SHORT_LIVED, patience)])
    task = asyncio.create_task(supervisor.run(lambda elapsed_s: None))
    await group.until(lambda: group.output.getvalue().count("restarting") >= 3)
    os.kill(os.getpid(), signal.SIGTERM)
    await task
    assert set(re.findall(r"restarting in (\S+) s", group.output.getvalue())) == {"0.01"}


async def test_child_that_never_gets_healthy_stops_the_others_and_tells_its_last_lines(group: Group) -> None:
    broken = "import sys; print('no such model'); sys.exit(1)"
    supervisor = group.supervisor([group.spec("a")], [group.spec("b", broken)])
    with pytest.raises(
        NeverHealthyError, match=r"b exited with status 1, 3 times before it was healthy\n  no such model"
    ):
        await supervisor.run(lambda elapsed_s: None)
    assert group.output.getvalue().count("b  | no such model") == 3
    assert not (group.folder / "a").exists() or not _is_alive(group.pid("a"))


async def test_refused_setting_is_never_retried(group: Group) -> None:
    refusing = "import sys; sys.stderr.write('fencepost b: --threads: expected a whole number\\n'); sys.exit(2)"
    supervisor = group.supervisor([group.spec("b", refusing)])
    with pytest.raises(SettingsRefusedError, match=r"^b: fencepost b: --threads: expected a whole number$"):
        await supervisor.run(lambda elapsed_s: None)
    assert not group.says("restarting")


async def test_child_that_ignores_the_request_is_killed_after_the_grace_period(group: Group) -> None:
    supervisor = group.supervisor([group.spec("a", DEAF)], grace_s=0.1)
    async with group.running(supervisor) as task:
        pid = group.pid("a")
        os.kill(os.getpid(), signal.SIGTERM)
        assert not await task
    assert group.says(r"up \| a did not stop within 0\.1 s; killed")
    assert not _is_alive(pid)


async def test_second_signal_kills_all_at_once(group: Group) -> None:
    supervisor = group.supervisor([group.spec("a", DEAF)], [group.spec("b", DEAF)], grace_s=600)
    async with group.running(supervisor) as task:
        pids = [group.pid("a"), group.pid("b")]
        os.kill(os.getpid(), signal.SIGINT)
        await group.until(lambda: group.says("once more to kill"))
        os.kill(os.getpid(), signal.SIGINT)
        assert not await task
    assert not any(map(_is_alive, pids))


async def test_signal_while_starting_stops(group: Group) -> None:
    supervisor = group.supervisor([group.spec("a", "import time; time.sleep(60)")], notice_interval_s=0.05)
    task = asyncio.create_task(supervisor.run(lambda elapsed_s: None))
    await group.until(lambda: group.says(r"up \| waiting for a \("))
    os.kill(os.getpid(), signal.SIGTERM)
    assert await task


async def test_signal_during_back_off_does_not_wait_for_it(group: Group) -> None:
    patient = Patience(first_delay_s=600, probe_interval_s=0.01)
    supervisor = group.supervisor([group.spec("a", patience=patient)])
    async with group.running(supervisor) as task:
        os.kill(group.pid("a"), signal.SIGKILL)
        await group.until(lambda: group.says("restarting in 600 s"))
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(task, 30)


async def test_grandchild_that_holds_the_output_delays_no_restart(group: Group) -> None:
    forking = SERVE.replace('print("hello"', 'if os.fork() == 0: time.sleep(20); os._exit(0)\nprint("hello"')
    supervisor = group.supervisor([group.spec("a", forking)])
    async with group.running(supervisor) as task:
        os.kill(group.pid("a"), signal.SIGKILL)
        await group.until(lambda: group.says("a is healthy again after"))
        os.kill(os.getpid(), signal.SIGTERM)
        assert await task


async def test_output_survives_odd_bytes_and_endless_lines(group: Group) -> None:
    odd = "import os, time\nos.write(1, b'\\xff ok\\r\\n' + b'x' * 200_000 + b'\\nlast')\ntime.sleep(60)"
    supervisor = group.supervisor([group.spec("a", odd)])
    task = asyncio.create_task(supervisor.run(lambda elapsed_s: None))
    await group.until(lambda: group.output.getvalue().count("x") >= 200_000)
    os.kill(os.getpid(), signal.SIGTERM)
    await task
    lines = group.output.getvalue().splitlines()
    assert "a  | \ufffd ok" in lines
    assert "a  | last" in lines


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
async def test_children_end_with_a_killed_supervisor(group: Group, tmp_path: Path) -> None:
    program = f"""
import asyncio, sys
from pathlib import Path
from services.child import ChildSpec
from services.console import Console
from services.supervisor import Supervisor
async def healthy(): return True
command = (sys.executable, "-I", "-S", "-c", {SERVE!r}, {str(tmp_path / "a")!r})
spec = ChildSpec(name="a", command=command, is_healthy=healthy)
asyncio.run(Supervisor([[spec]], Console(sys.stdout, ["a", "up"], has_colour=False), name="up", grace_s=1).run(print))
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, env={"PYTHONPATH": os.pathsep.join(sys.path)}, stdout=asyncio.subprocess.DEVNULL
    )
    await group.until(lambda: (tmp_path / "a").exists())
    pid = group.pid("a")
    process.kill()
    await process.wait()
    await group.until(lambda: not _is_alive(pid) or _is_zombie(pid))


def _is_zombie(pid: int) -> bool:
    """Whether it has ended, where nothing reaps orphans."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_console_pads_names_and_survives_a_reader_that_left() -> None:
    class Broken(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError

    stream = io.StringIO()
    console = Console(stream, ["kvstore", "engine-0"], has_colour=True)
    console.write("kvstore", "one\ntwo")
    assert stream.getvalue() == "\x1b[36mkvstore  | \x1b[0mone\n\x1b[36mkvstore  | \x1b[0mtwo\n"
    left = Console(Broken(), ["a"], has_colour=False)
    left.write("a", "lost")
    left.write("a", "lost too")


def test_exit_status_is_told_in_words() -> None:
    assert [describe_status(status) for status in (0, 3, -9, -200)] == ["status 0", "status 3", "SIGKILL", "signal 200"]
