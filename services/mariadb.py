"""MariaDB, from the distribution's packages."""

from __future__ import annotations

import shutil
from typing import ClassVar

from services.mysql_family import MySQLFamily
from services.service import Endpoint, ServiceError, apt_install

SBIN = "/usr/sbin:/usr/local/sbin"


class MariaDB(MySQLFamily):
    """The server itself; as root it runs as the account that its package creates."""

    name: ClassVar[str] = "mariadb"
    account: ClassVar[str | None] = "mysql"
    scheme = "mariadb"

    def install(self) -> None:
        """Install Debian's package unless some version is there."""
        if program() is None:
            apt_install("mariadb-server")
        if program() is None:
            raise ServiceError("mariadb-server is installed but its mariadbd was not found")

    def server(self, endpoint: Endpoint) -> list[str]:
        """The server knows where its package keeps its files."""
        return [program() or "mariadbd", "--no-defaults", "--binlog-format=ROW"]

    def initializer(self, endpoint: Endpoint) -> list[str]:
        """The package's own script."""
        return [
            "mariadb-install-db",
            "--no-defaults",
            f"--datadir={self.data(endpoint)}",
            f"--tmpdir={endpoint.home}",
            "--skip-test-db",
            "--auth-root-authentication-method=socket",
        ]


def program() -> str | None:
    """Return the server's path, also where only root has its folder on the path."""
    return shutil.which("mariadbd") or shutil.which("mariadbd", path=SBIN)
