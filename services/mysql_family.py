"""What MySQL and MariaDB share: their settings, the one login, and databases for tests."""

from __future__ import annotations

import os
import subprocess
from abc import abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from services.service import Endpoint, Service, ServiceError

USER = "pipeline"

# Durability is switched off: a test server's data does not outlive the server.
SETTINGS = (
    "--bind-address=127.0.0.1",
    "--skip-name-resolve",
    "--local-infile=1",
    "--server-id=1",
    "--log-bin=binlog",
    "--sync-binlog=0",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-buffer-pool-size=128M",
    "--max-connections=150",
)

# The server itself blocks SIGINT, by which the harness ends its servers. Its data goes with it,
# so there is nothing to save.
RELAY = 'trap "kill -KILL \\$!" INT; "$@" & wait; wait'


@dataclass(frozen=True)
class MySQLServer:
    """A running server, as tests see it."""

    host: str
    port: int
    password: str = field(repr=False)
    scheme: str = "mysql"
    user: str = USER
    database: str = "pipeline"

    @property
    def url(self) -> str:
        """The address of the default database, password included."""
        return self.url_of(self.database)

    def url_of(self, database: str) -> str:
        """Return the address of one database, password included."""
        return f"{self.scheme}://{self.user}:{self.password}@{self.host}:{self.port}/{database}"

    def create_database(self, name: str | None = None) -> str:
        """Create an empty database, under a fresh name unless given one; return its address."""
        name = name or f"db_{uuid4().hex[:12]}"
        self.execute(f"CREATE DATABASE `{name}`")
        return self.url_of(name)

    def drop_database(self, name: str) -> None:
        """Drop a database and all its tables."""
        self.execute(f"DROP DATABASE IF EXISTS `{name}`")

    def execute(self, statement: str) -> None:
        """Run one statement."""
        import pymysql

        connection = pymysql.connect(
            host=self.host,
            port=self.port,
            user=self.user,
            password=self.password,
            connect_timeout=5,
            autocommit=True,
        )
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)


class MySQLFamily(Service):
    """A server of the family; a product adds its programs."""

    scheme = "mysql"

    @abstractmethod
    def server(self, endpoint: Endpoint) -> list[str]:
        """Return the server program with what it needs to find its own files."""

    @abstractmethod
    def initializer(self, endpoint: Endpoint) -> list[str]:
        """Return the command that fills an empty data folder."""

    def data(self, endpoint: Endpoint) -> Path:
        """Where the server keeps its data."""
        return endpoint.home / "data"

    def prepare(self, endpoint: Endpoint) -> None:
        """Create an empty data folder, and the statements that open one login by password."""
        account = self.run_as()
        result = subprocess.run(
            self.initializer(endpoint),
            check=False,
            capture_output=True,
            text=True,
            cwd=endpoint.home,
            # A server that starts removes what looks temporary, also that of another one.
            env={**os.environ, "HOME": str(endpoint.home), "TMPDIR": str(endpoint.home)},
            user=account,
            group=account,
            extra_groups=None if account is None else (),
        )
        if result.returncode:
            told = f"{result.stdout}\n{result.stderr}".strip()[-500:]
            raise ServiceError(f"{self.name} could not create its data folder: {told}")
        # Below the data folder, whose owner may be another account than ours.
        logins = self._logins(endpoint)
        logins.touch(mode=0o600)
        owner = self.data(endpoint).stat()
        os.chown(logins, owner.st_uid, owner.st_gid)
        logins.write_text(
            f"CREATE DATABASE IF NOT EXISTS {USER};\n"
            f"CREATE USER IF NOT EXISTS '{USER}'@'%' IDENTIFIED BY '{endpoint.secret}';\n"
            f"GRANT ALL ON *.* TO '{USER}'@'%' WITH GRANT OPTION;\n"
            "ALTER USER 'root'@'localhost' ACCOUNT LOCK;\n"
        )

    def _logins(self, endpoint: Endpoint) -> Path:
        return self.data(endpoint) / "logins.sql"

    def command(self, endpoint: Endpoint) -> list[str]:
        """Return the server below a shell that SIGINT ends, whoever starts it."""
        places = [
            f"--datadir={self.data(endpoint)}",
            f"--tmpdir={endpoint.home}",
            f"--port={endpoint.port}",
            f"--socket={endpoint.home}/server.sock",
            f"--pid-file={endpoint.home}/server.pid",
            f"--init-file={self._logins(endpoint)}",
        ]
        relay = ["env", "--default-signal=INT", "sh", "-c", RELAY, self.name]
        return [*relay, *self.server(endpoint), *places, *SETTINGS]

    def client(self, endpoint: Endpoint) -> MySQLServer:
        """Return the address and a way to create databases."""
        return MySQLServer(endpoint.host, endpoint.port, endpoint.secret, self.scheme)

    def check(self, endpoint: Endpoint) -> None:
        """Log in with the password and run a query."""
        self.client(endpoint).execute("SELECT 1")
