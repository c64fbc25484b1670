"""The warm engine as others find it: where its record lies, whether it lives, whether it fits.

An engine holds the lock of its slot for as long as it lives, so what a killed one left behind is
never taken for a running one. A slot belongs to one Python, one folder and one machine. No
Spark here: ``flow engine status`` must stay quick.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import hmac
import json
import os
import shutil
import site
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ematix_flow import config
from ematix_flow.engine import delta
from ematix_flow.engine.cache import private_folder
from ematix_flow.engine.settings import EngineSettings

SLOT_VARIABLE = "_EMATIX_FLOW_ENGINE_SLOT"
_FORMAT = 1
_LISTENING = "0A"
# Variables that Java and the connectors in it read by themselves.
_READ_BY_JAVA = ("AWS_", "AZURE_", "GOOGLE_", "HADOOP_", "JAVA_", "JDK_", "KRB5", "PG")
_READ_BY_JAVA_TOO = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "_JAVA_OPTIONS")
_PACKAGE_MARKS = (".dist-info", ".egg-info", ".egg-link", ".pth")


@dataclass(frozen=True)
class Slot:
    """The private folder in which an engine is recorded."""

    path: Path

    @property
    def record(self) -> Path:
        """What the running engine says of itself."""
        return self.path / "record.json"

    @property
    def token(self) -> Path:
        """The secret that it asks its clients for."""
        return self.path / "token"

    @property
    def lock(self) -> Path:
        """Held by the engine while it lives."""
        return self.path / "lock"

    @property
    def starting(self) -> Path:
        """Held by whoever is starting one."""
        return self.path / "start.lock"

    @property
    def failure(self) -> Path:
        """Why the last one did not come up."""
        return self.path / "failure"

    @property
    def log(self) -> Path:
        """What the engine and its Python workers print."""
        return self.path / "engine.log"

    @property
    def clients(self) -> Path:
        """One file per session, locked by its client."""
        return self.path / "clients"

    @property
    def workers(self) -> Path:
        """One file per process that forks Python workers, named by session and process."""
        return self.path / "workers"

    @property
    def is_held(self) -> bool:
        """Whether an engine lives here."""
        try:
            descriptor = os.open(self.lock, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            # Any other: no engine can hold a lock that this file system does not know.
            return isinstance(error, BlockingIOError)
        finally:
            os.close(descriptor)
        return False

    def clear(self) -> None:
        """Remove the record and all that belongs to it: clients' files hold their environment."""
        for file in (self.record, self.token, *self.path.glob(".*")):
            file.unlink(missing_ok=True)
        for folder in (self.clients, self.workers):
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Record:
    """An engine and all that decides whether a client may use it."""

    process_id: int
    jvm_process_id: int
    port: int
    started_at: str
    folder: str
    python: str
    spark: str
    ematix_flow: str
    settings: str
    packages: str
    environment: str
    token: str
    jars: tuple[str, ...]
    idle_seconds: float


@dataclass(frozen=True)
class Found:
    """What was found in a slot; ``state`` is off, starting, running or dead."""

    slot: Slot
    state: str
    record: Record | None = None


def slots_folder() -> Path:
    """Where the slots of this user lie."""
    return config.home() / "engine"


def own_slot() -> Slot:
    """The slot of this Python in this folder, on this machine."""
    parts = [os.uname().nodename, sys.prefix, os.getcwd()]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    return Slot(slots_folder() / key)


def make_private(slot: Slot) -> None:
    """Create the folders of a slot, readable by this user only."""
    private_folder(slots_folder())
    for folder in (slot.path, slot.clients, slot.workers):
        private_folder(folder)


def look(slot: Slot) -> Found:
    """Whether an engine lives in a slot, and what it says of itself."""
    record = read_record(slot)
    if slot.is_held:
        return Found(slot, "starting" if record is None else "running", record)
    left = slot.record.exists() or slot.token.exists()
    return Found(slot, "dead" if left else "off", record)


def look_everywhere() -> Iterator[Found]:
    """All slots of this user that hold an engine or what is left of one."""
    try:
        folders = sorted(path for path in slots_folder().iterdir() if path.is_dir())
    except OSError:
        return
    for folder in folders:
        found = look(Slot(folder))
        if found.state != "off":
            yield found


def read_record(slot: Slot) -> Record | None:
    """The record, or None where there is none that can be read whole."""
    try:
        fields = json.loads(slot.record.read_text(encoding="utf-8"))
        if fields.pop("format") != _FORMAT:
            return None
        fields["jars"] = tuple(fields["jars"])
        return Record(**fields)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def record_text(record: Record) -> str:
    """The record as it is written down."""
    return json.dumps({"format": _FORMAT, **dataclasses.asdict(record)}, indent=2) + "\n"


def read_token(slot: Slot) -> str:
    """The token; empty where it cannot be read, or others could read it too."""
    try:
        descriptor = os.open(slot.token, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return ""
    with os.fdopen(descriptor, encoding="ascii", errors="replace") as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.getuid() or found.st_mode & 0o077:
            return ""
        return file.read().strip()


def misfit(found: Found, settings: EngineSettings) -> str | None:
    """Why an engine must not be used with these settings; None when it fits."""
    record = found.record
    if found.state != "running" or record is None:
        return {"off": "no engine is running", "starting": "the engine is still starting"}.get(
            found.state, "the engine has died"
        )
    token = read_token(found.slot)
    if not token:
        return "its token is missing, or others can read it"
    expected = expected_record(settings, token)
    for name, what in _COMPARED.items():
        if getattr(record, name) != getattr(expected, name):
            return f"it was started with {what}"
    missing = [name for name in settings.jars if name not in record.jars]
    if missing:
        return f"it was started without the connector jars of {', '.join(missing)}"
    if not listens(record):
        return "another process has its port"
    return None


_COMPARED = {
    "folder": "another working folder",
    "python": "another Python",
    "spark": "another version of Spark",
    "ematix_flow": "another version of ematix-flow",
    "settings": "other settings",
    "packages": "other installed packages",
    "token": "another token",
    "environment": "other environment variables",
}


def lacking(jars: Sequence[str]) -> bool:
    """Whether the engine here, if there is one, cannot be given these jars any more.

    A driver can join a running engine; Delta Lake has to be there from the start.
    """
    record = read_record(own_slot()) if delta.JARS in jars else None
    return record is not None and delta.JARS not in record.jars


def expected_record(settings: EngineSettings, token: str) -> Record:
    """The record of an engine that was started here and now."""
    from importlib import metadata

    return Record(
        process_id=os.getpid(),
        jvm_process_id=0,
        port=0,
        started_at="",
        folder=os.getcwd(),
        python=f"{sys.prefix} {sys.version}",
        spark=metadata.version("pyspark"),
        ematix_flow=metadata.version("ematix-flow"),
        settings=_digest(repr(dataclasses.replace(settings, jars=(), warm=False))),
        packages=installed_packages(),
        environment=read_by_java(token),
        token=_digest(token),
        jars=settings.jars,
        idle_seconds=0,
    )


def installed_packages() -> str:
    """A digest that changes whenever a package is installed, changed in place or removed."""
    seen: list[tuple[str, int]] = []
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    for folder in sorted(dict.fromkeys(folders)):
        try:
            with os.scandir(folder) as entries:
                marked = [entry for entry in entries if entry.name.endswith(_PACKAGE_MARKS)]
                seen += sorted((entry.path, entry.stat().st_mtime_ns) for entry in marked)
        except OSError:
            continue
    return _digest(json.dumps(seen))


def read_by_java(token: str) -> str:
    """A digest of the variables that Java reads; keyed, as some of them are secrets."""
    held = sorted(
        (name, value)
        for name, value in os.environ.items()
        if name.startswith(_READ_BY_JAVA) or name.upper() in _READ_BY_JAVA_TOO
    )
    return hmac.new(token.encode(), json.dumps(held).encode(), "sha256").hexdigest()


def listens(record: Record) -> bool:
    """Whether the port belongs to the recorded JVM; taken on trust where nobody can tell."""
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    if not tables[0].exists():
        return True
    listening = {
        fields[9]
        for table in tables
        if table.exists()
        for fields in map(str.split, table.read_text().splitlines()[1:])
        if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == record.port
    }
    return any(f"socket:[{inode}]" in sockets_of(record.jvm_process_id) for inode in listening)


def sockets_of(process: int) -> set[str]:
    """What a process has open; none where it is gone or somebody else's."""
    held: set[str] = set()
    with contextlib.suppress(OSError), os.scandir(f"/proc/{process}/fd") as entries:
        for entry in entries:
            # Files come and go while we look.
            with contextlib.suppress(FileNotFoundError):
                held.add(os.readlink(entry.path))
    return held


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
