"""MySQL, from Debian's development suite, unpacked privately and run by its own loader.

No stable Debian carries it, so its packages are never installed: they and their C library live
in the cache of this checkout, and nothing of the machine is replaced.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import ClassVar

from services.mysql_family import MySQLFamily
from services.service import CACHE, Endpoint, ServiceError, exclusive

PREFIX = CACHE / "mysql"
SUITE = "sid"
PACKAGES = ("mysql-server-core", "mysql-client-core")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class MySQL(MySQLFamily):
    """The server itself, from a private folder that another account might be unable to enter."""

    name: ClassVar[str] = "mysql"

    def install(self) -> None:
        """Unpack the packages into the cache unless that has been done."""
        with exclusive(CACHE / "mysql.lock"):
            if not PREFIX.exists():
                unpack(PREFIX)

    def server(self, endpoint: Endpoint) -> list[str]:
        """The server, its messages, character sets and plugins, all in the private folder."""
        usr = PREFIX / "usr"
        return [
            *loader(PREFIX),
            str(usr / "sbin" / "mysqld"),
            "--no-defaults",
            *(["--user=root"] if os.geteuid() == 0 else []),
            f"--basedir={usr}",
            f"--lc-messages-dir={usr}/share/mysql",
            f"--character-sets-dir={usr}/share/mysql/charsets",
            f"--plugin-dir={usr}/lib/mysql/plugin",
            "--mysqlx=OFF",
            "--secure-file-priv=NULL",
            "--performance-schema=OFF",
        ]

    def initializer(self, endpoint: Endpoint) -> list[str]:
        """The server fills the folder itself; its root has no password until it starts."""
        return [
            *self.server(endpoint),
            f"--datadir={self.data(endpoint)}",
            f"--tmpdir={endpoint.home}",
            "--initialize-insecure",
        ]


def loader(prefix: Path) -> list[str]:
    """Return the command that runs a program with the C library it was built for."""
    found = sorted(prefix.glob("usr/lib/*/ld-linux-*.so.*"))
    if not found:
        raise ServiceError(f"{prefix} holds no program loader; remove that folder and start again")
    libraries = (found[0].parent, found[0].parent / "mysql", prefix / "usr/lib/mysql/private")
    return [str(found[0]), "--library-path", ":".join(str(folder) for folder in libraries)]


def unpack(prefix: Path) -> None:
    """Download the packages and all they need, and unpack them into a folder."""
    if not shutil.which("apt-get"):
        raise ServiceError("mysql-server is missing and this is not Debian")
    work = prefix.with_suffix(".new")
    shutil.rmtree(work, ignore_errors=True)
    apt = work / "apt"
    for folder in ("lists/partial", "cache/archives/partial", "state"):
        (apt / folder).mkdir(parents=True)
    # An empty status file: what the machine has installed does not count.
    (apt / "state" / "status").touch()
    (apt / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror()} {SUITE} main\n")
    settings = apt / "apt.conf"
    settings.write_text(
        f'Dir::Etc::sourcelist "{apt}/sources.list";\n'
        'Dir::Etc::sourceparts "-";\n'
        f'Dir::State "{apt}/state";\n'
        f'Dir::State::lists "{apt}/lists";\n'
        f'Dir::State::status "{apt}/state/status";\n'
        f'Dir::Cache "{apt}/cache";\n'
        'APT::Install-Recommends "false";\n'
        'APT::Sandbox::User "";\n'
    )
    environment = {**os.environ, "APT_CONFIG": str(settings)}
    download = ["apt-get", "-qq", "-y", "--download-only", "install", *PACKAGES]
    _run(["apt-get", "-qq", "update"], environment)
    _run(download, environment)
    root = work / "root"
    root.mkdir()
    for package in sorted((apt / "cache" / "archives").glob("*.deb")):
        _run(["dpkg-deb", "-x", str(package), str(root)], environment)
    root.rename(prefix)
    shutil.rmtree(work)


def mirror() -> str:
    """Return the address of the Debian archive that this machine already uses."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"],
        check=True,
        capture_output=True,
        text=True,
    )
    addresses = listed.stdout.split()
    archives = [a for a in addresses if a.rstrip("/").endswith("/debian")]
    if not archives:
        raise ServiceError("this machine's apt sources name no Debian archive to take MySQL from")
    return archives[0]


def _run(command: list[str], environment: dict[str, str]) -> None:
    result = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if result.returncode:
        line = " ".join(command[:4])
        raise ServiceError(f"`{line} …` failed: {result.stderr.strip()[-500:]}")
