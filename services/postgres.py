"""PostgreSQL with logical WAL and password authentication, from the distribution's packages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar
from uuid import uuid4

from services.service import Endpoint, Service, ServiceError, apt_install

USER = "pipeline"

# Durability is switched off: a test server's data does not outlive the server.
SETTINGS = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
wal_level = logical
max_replication_slots = 10
max_wal_senders = 10
max_connections = 100
max_prepared_transactions = 20
fsync = off
full_page_writes = off
synchronous_commit = off
timezone = 'UTC'
"""


@dataclass(frozen=True)
class PostgresServer:
    """A running server, as tests see it."""

    host: str
    port: int
    password: str = field(repr=False)
    user: str = USER
    database: str = "postgres"

    @property
    def url(self) -> str:
        """The address of the default database, password included."""
        return self.url_of(self.database)

    def url_of(self, database: str) -> str:
        """Return the address of one database, password included."""
        return f"postgresql://{self.user}:{self.password}@{self.host}:{self.port}/{database}"

    def create_database(self, name: str | None = None) -> str:
        """Create an empty database, under a fresh name unless given one; return its address."""
        name = name or f"db_{uuid4().hex[:12]}"
        self.execute(f'CREATE DATABASE "{name}"')
        return self.url_of(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, even one that still has connections."""
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def execute(self, statement: str) -> None:
        """Run one statement in the default database, outside a transaction."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True, connect_timeout=5) as connection:
            connection.execute(statement.encode())


class Postgres(Service):
    """The server itself; it refuses root, so as root it runs as ``postgres``."""

    name: ClassVar[str] = "postgres"
    account: ClassVar[str | None] = "postgres"

    def install(self) -> None:
        """Install Debian's package unless some version is there."""
        if programs() is None:
            apt_install("postgresql")
        if programs() is None:
            raise ServiceError("postgresql is installed but its initdb was not found")

    def prepare(self, endpoint: Endpoint) -> None:
        """Create an empty cluster whose only login is a password over TCP."""
        bin_folder = programs()
        if bin_folder is None:
            raise ServiceError("PostgreSQL disappeared while it was being started")
        account = self.run_as()
        password = endpoint.home / "password"
        password.touch(mode=0o600)
        password.write_text(endpoint.secret)
        if account is not None:
            shutil.chown(password, account, account)
        initdb = [f"{bin_folder}/initdb", "-D", f"{endpoint.home}/data", "-U", USER]
        login = [f"--pwfile={password}", "-A", "scram-sha-256"]
        text = ["-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
        result = subprocess.run(
            [*initdb, *login, *text],
            check=False,
            capture_output=True,
            text=True,
            cwd=endpoint.home,
            env={**os.environ, "HOME": str(endpoint.home)},
            user=account,
            group=account,
            extra_groups=None if account is None else (),
        )
        if result.returncode:
            raise ServiceError(f"initdb failed: {result.stderr.strip()[-500:]}")
        password.unlink()
        with (endpoint.home / "data" / "postgresql.conf").open("a") as settings:
            settings.write(f"{SETTINGS}port = {endpoint.port}\n")

    def command(self, endpoint: Endpoint) -> list[str]:
        """Return the foreground postmaster; SIGINT is its fast shutdown."""
        return [f"{programs()}/postgres", "-D", str(endpoint.home / "data")]

    def client(self, endpoint: Endpoint) -> PostgresServer:
        """Return the address and a way to create databases."""
        return PostgresServer(endpoint.host, endpoint.port, endpoint.secret)

    def check(self, endpoint: Endpoint) -> None:
        """Log in with the password and run a query."""
        self.client(endpoint).execute("SELECT 1")


def programs() -> Path | None:
    """Return the folder of the newest installed server's programs."""
    candidates = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    on_path = shutil.which("initdb")
    if on_path:
        candidates.append(Path(on_path).resolve().parent)
    return max(candidates, key=_major_version, default=None)


def _major_version(folder: Path) -> int:
    digits = re.search(r"\d+", folder.parent.name)
    return int(digits.group()) if digits else 0
