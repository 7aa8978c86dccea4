"""Services as child processes: those that start, end, say nothing, or do not listen to SIGTERM."""

from __future__ import annotations

import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from planner.client.local_cluster import LocalCluster, ServiceProcess, _kept_port
from planner.errors import InvalidArgument, Unavailable
from tests.waiting import WAIT_SECONDS, wait_for

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("started_programs")]

READY = "print('service listening on 127.0.0.1:77', flush=True)\n"
WAITS = "import signal\nsignal.pause()\n"


def service(folder: Path, program: str, environment: dict[str, str] | None = None) -> ServiceProcess:
    return ServiceProcess([sys.executable, "-Sc", program], folder / "service.log", environment)


def wait_until_ended(process: ServiceProcess) -> None:
    wait_for(lambda: process.exit_status is not None, "the process to end")


def test_one_that_is_ready_says_where_it_listens(tmp_path: Path) -> None:
    process = service(tmp_path, READY + WAITS)
    assert process.wait_until_ready(WAIT_SECONDS) == process.address == "127.0.0.1:77"
    assert process.exit_status is None
    process.stop()
    assert process.exit_status == -signal.SIGTERM
    # Again does no harm.
    process.stop()


def test_one_that_dies_at_start_is_told_by_the_end_of_its_log(tmp_path: Path) -> None:
    program = "import sys; sys.stderr.write('x' * 5000 + 'the port is taken\\n'); sys.exit(3)"
    process = service(tmp_path, program)
    with pytest.raises(Unavailable) as raised:
        process.wait_until_ready(WAIT_SECONDS)
    assert raised.value.message.endswith("the port is taken")
    assert "did not start" in raised.value.message
    assert len(raised.value.message) < 2000 + len(sys.executable) + len(program) + 100
    assert process.exit_status is not None


def test_one_that_dies_without_a_word_says_so(tmp_path: Path) -> None:
    process = service(tmp_path, "raise SystemExit(1)")
    with pytest.raises(Unavailable, match="did not start: it said nothing"):
        process.wait_until_ready(WAIT_SECONDS)


def test_one_that_stays_silent_is_ended(tmp_path: Path) -> None:
    process = service(tmp_path, WAITS)
    with pytest.raises(Unavailable, match="it said nothing"):
        process.wait_until_ready(0.05)
    assert process.exit_status == -signal.SIGKILL


def test_one_that_says_something_else_is_ended_and_quoted(tmp_path: Path) -> None:
    process = service(tmp_path, "print('hello', flush=True)\n" + WAITS)
    with pytest.raises(Unavailable, match="did not start: hello"):
        process.wait_until_ready(WAIT_SECONDS)
    assert process.exit_status == -signal.SIGKILL


def test_one_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    process = service(tmp_path, "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + READY + WAITS)
    process.wait_until_ready(WAIT_SECONDS)
    process.stop(timeout_seconds=0.05)
    assert process.exit_status == -signal.SIGKILL


def test_one_that_has_ended_can_still_be_stopped(tmp_path: Path) -> None:
    process = service(tmp_path, READY)
    process.wait_until_ready(WAIT_SECONDS)
    wait_until_ended(process)
    process.stop()
    assert process.exit_status == 0


def test_a_log_grows_from_start_to_start(tmp_path: Path) -> None:
    for word in ("first", "second"):
        process = service(tmp_path, f"import sys; sys.stderr.write('{word}\\n')\n" + READY)
        process.wait_until_ready(WAIT_SECONDS)
        wait_until_ended(process)
        process.stop()
    assert (tmp_path / "service.log").read_text().split() == ["first", "second"]


def test_an_environment_is_added_to_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "1")
    monkeypatch.setenv("BOTH", "ours")
    program = "import os, sys; sys.stderr.write(os.environ['OURS'] + os.environ['BOTH'])\n" + READY
    process = service(tmp_path, program, {"BOTH": "theirs"})
    process.wait_until_ready(WAIT_SECONDS)
    wait_until_ended(process)
    process.stop()
    assert (tmp_path / "service.log").read_text() == "1theirs"


def test_a_terminals_signals_do_not_reach_it(tmp_path: Path) -> None:
    process = service(tmp_path, f"import os, sys; sys.stderr.write(str(os.getpgid(0) == os.getpid()))\n{READY}")
    process.wait_until_ready(WAIT_SECONDS)
    wait_until_ended(process)
    process.stop()
    assert (tmp_path / "service.log").read_text() == "True"


def test_an_address_and_a_folder_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="address 'here': needs host:port"):
        LocalCluster(data_dir=tmp_path, memory_bytes=(None,), planner_listen="here")
    file = tmp_path / "file"
    file.touch()
    cluster = LocalCluster(data_dir=file, memory_bytes=(None,))
    with pytest.raises(InvalidArgument, match=f"data folder {file} cannot be made: File exists"), cluster:
        pass


def test_a_planner_that_cannot_start_leaves_nothing_behind(tmp_path: Path) -> None:
    cluster = LocalCluster(data_dir=tmp_path / "new", memory_bytes=(), planner_arguments=("--log-format", "verse"))
    with pytest.raises(Unavailable, match=r"planner.*did not start"), cluster:
        pytest.fail("it started")
    assert cluster.planner is not None
    assert cluster.planner.exit_status is not None
    assert (tmp_path / "new" / "planner-server.log").exists()


def test_a_daemon_that_cannot_start_ends_the_planner_too(tmp_path: Path) -> None:
    cluster = LocalCluster(
        data_dir=tmp_path, memory_bytes=(1 << 20, None), device="gpu", daemon_arguments=("--nonsense",)
    )
    with pytest.raises(Unavailable, match=r"stage_daemon.*did not start"), cluster:
        pytest.fail("it started")
    assert cluster.planner is not None
    assert cluster.planner.exit_status == 0
    assert list(cluster.daemons) == ["local/gpu0", "local/gpu1"]
    with_memory, without = (daemon.command for daemon in cluster.daemons.values())
    assert with_memory[with_memory.index("--memory") + 1] == str(1 << 20)
    assert "--memory" not in without
    assert without[without.index("--device-id") + 1] == cluster.device_id(1) == "local/gpu1"
    assert without[without.index("--planner") + 1] == cluster.planner.address
    assert [command[command.index("--gpu") + 1] for command in (with_memory, without)] == ["0", "1"]
    assert all(daemon.exit_status is not None for daemon in cluster.daemons.values())


def test_a_planner_is_started_again_where_it_was(tmp_path: Path) -> None:
    with LocalCluster(data_dir=tmp_path, memory_bytes=()) as cluster:
        address, first = cluster.planner_address, cluster.planner
        assert first is not None
        first.kill()
        again = cluster.start_planner()
        assert cluster.planner_address == again.address == address
        assert again.process_id != first.process_id


def test_what_hangs_is_killed_and_what_listens_ends_by_itself(tmp_path: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + READY + WAITS
    cluster = LocalCluster(data_dir=tmp_path, memory_bytes=(None, None), stop_seconds=3.0)
    cluster.daemons = {name: service(tmp_path, program) for name, program in (("a", deaf), ("b", READY + WAITS))}
    cluster.planner = service(tmp_path, deaf)
    processes = (*cluster.daemons.values(), cluster.planner)
    try:
        for process in processes:
            process.wait_until_ready(WAIT_SECONDS)
        cluster.stop()
        statuses = [process.exit_status for process in processes]
        assert statuses == [-signal.SIGKILL, -signal.SIGTERM, -signal.SIGKILL]
    finally:
        for process in processes:
            process.kill()


def test_a_port_that_is_kept_for_a_server_is_nobody_elses() -> None:
    with _kept_port("127.0.0.1:0") as address, socket.socket() as stranger:
        with pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", int(address.rpartition(":")[2])))
        server = grpc.server(ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)])
        assert f"127.0.0.1:{server.add_insecure_port(address)}" == address
        server.start()
        server.stop(None).wait()


def test_a_named_port_and_an_address_that_is_not_here_are_left_to_the_server() -> None:
    for listen in ("127.0.0.1:7", "203.0.113.7:0", "[::1]:0"):
        with _kept_port(listen) as address:
            assert address.rpartition(":")[0] == listen.rpartition(":")[0]
            assert (address == listen) == (listen != "[::1]:0" or not socket.has_dualstack_ipv6())
