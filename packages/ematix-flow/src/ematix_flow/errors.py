"""Every error this package raises on purpose, in one file, standard library only.

    EmatixError                  one sentence: what is wrong, where, how to fix it
    ├─ DeclarationError          the user's file is wrong; carries file and line
    │  ├─ DuplicateName
    │  ├─ UnknownName
    │  ├─ DependencyCycle
    │  └─ ProjectErrors          several of these in one report
    ├─ ConfigError               settings, connections, secrets
    │  ├─ NoSuchModule
    │  ├─ UnknownConnection
    │  ├─ MissingSecret
    │  ├─ MissingExtra
    │  └─ RunLogUnavailable
    ├─ Unsupported               this backend cannot do this
    │  └─ NotAvailableYet        no backend can, in this version
    ├─ DataError                 the rows or columns are wrong; nothing was written
    │  ├─ SchemaDrift
    │  ├─ BadValue
    │  ├─ EmptySource
    │  ├─ DuplicateKeys
    │  └─ TooManyDeletes
    ├─ BackendError              a database, file system or broker refused
    │  ├─ Transient              worth another try
    │  └─ Permanent              not worth another try
    ├─ EngineError               Spark, its JVM or a Python worker failed
    └─ RunError                  the run itself
       ├─ Fenced                 another run of the pipeline committed first
       ├─ Undecided              the commit was cut short and the target does not answer
       ├─ TargetsFailed          some of several targets were not loaded
       └─ Cancelled

Fields come first and the message is built from them, so that errors survive pickling on
their way back from Spark's Python workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, order=True)
class SourceLocation:
    """A place in the user's own code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class EmatixError(Exception):
    """Base of the tree. ``str()`` is one sentence a user can act on."""

    exit_code = 1
    # Whether the same run, a little later, may well succeed.
    transient = False

    def __init__(self, what: str, *, fix: str = "", where: SourceLocation | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix
        self.where = where

    def __str__(self) -> str:
        text = self.what if self.where is None else f"{self.where}: {self.what}"
        text = " ".join(text.split())
        if not self.fix:
            return text
        return f"{text.rstrip('.')}; {' '.join(self.fix.split())}"

    def __repr__(self) -> str:
        # Not from ``args``: what was redacted since would come back.
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.__dict__.copy()))


def _rebuild(kind: type[EmatixError], state: dict[str, Any]) -> EmatixError:
    error = kind.__new__(kind)
    Exception.__init__(error, state["what"])
    error.__dict__.update(state)
    return error


class DeclarationError(EmatixError):
    """A declaration in the user's file is wrong."""

    exit_code = 2


class DuplicateName(DeclarationError):
    """Two declarations share one name."""


class UnknownName(DeclarationError):
    """A keyword, option or name that does not exist."""


class DependencyCycle(DeclarationError):
    """``depends_on`` leads back to where it started."""


class ProjectErrors(DeclarationError):
    """All that is wrong in a project, in one report."""

    def __init__(self, errors: Sequence[DeclarationError]) -> None:
        self.errors = tuple(errors)
        count = "1 error" if len(self.errors) == 1 else f"{len(self.errors)} errors"
        super().__init__(f"{count} in the project: " + " | ".join(str(e) for e in self.errors))


class ConfigError(EmatixError):
    """A setting, a connection or a file of settings is wrong."""

    exit_code = 2


class NoSuchModule(ConfigError):
    """``--module`` names nothing that can be loaded."""


class UnknownConnection(ConfigError):
    """No source of connections knows this name."""


class MissingSecret(ConfigError):
    """A ``${…}`` reference could not be resolved."""


class MissingExtra(ConfigError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        self.feature = feature
        self.extra = extra
        super().__init__(
            f"{feature} needs packages that are not installed",
            fix=f'install them with: pip install "ematix-flow[{extra}]"',
        )


class RunLogUnavailable(ConfigError):
    """The run log cannot be reached, or lets nobody in; runs go on without it."""


class Unsupported(EmatixError):
    """A backend cannot do what was asked, known before any data moves."""

    exit_code = 2


class NotAvailableYet(Unsupported):
    """A declared feature that this version validates but does not execute."""

    def __init__(
        self,
        feature: str,
        *,
        fix: str = "remove it to run the pipeline now",
        where: SourceLocation | None = None,
    ) -> None:
        self.feature = feature
        super().__init__(f"{feature} is not available yet in this version", fix=fix, where=where)


class DataError(EmatixError):
    """The rows or their columns are wrong. Nothing was written."""


class SchemaDrift(DataError):
    """The target table differs from its declaration."""

    def __init__(self, table: str, differences: Sequence[str], *, fix: str) -> None:
        self.table = table
        self.differences = tuple(differences)
        super().__init__(
            f"table {table} differs from its declaration: {'; '.join(self.differences)}",
            fix=fix,
        )


class BadValue(DataError):
    """A value that the declared column cannot hold, or that its source cannot make."""

    from_source = False


class EmptySource(DataError):
    """The source has no rows where that would empty the target."""


class DuplicateKeys(DataError):
    """Several rows have one key, and no policy says which of them counts."""


class TooManyDeletes(DataError):
    """A load would delete more rows than its declaration allows."""


class BackendError(EmatixError):
    """A database, file system or broker refused; ``connection`` says which."""

    def __init__(self, what: str, *, connection: str, fix: str = "") -> None:
        self.connection = connection
        super().__init__(f"connection {connection!r}: {what}", fix=fix)


class Transient(BackendError):
    """Another try may succeed: a lost connection, a lock, a restart.

    Where a commit is ``unanswered``, the server may still be about to carry it out; where none
    was asked for, the load is known to be ``uncommitted``.
    """

    transient = True
    unanswered = False
    uncommitted = False


class Permanent(BackendError):
    """Another try would fail the same way: a wrong password, a missing table."""


class EngineError(EmatixError):
    """Spark, its JVM or one of its Python workers failed."""

    transient = True


class RunError(EmatixError):
    """The run itself could not go on."""


class Fenced(RunError):
    """Another run of the same pipeline committed first; this one may not commit."""

    transient = True


class Undecided(RunError):
    """The commit was cut short and the target could not be asked what became of it."""

    transient = True


class TargetsFailed(RunError):
    """Some of a pipeline's several targets were not loaded; ``results`` tells of each."""

    def __init__(self, what: str, *, results: Mapping[str, Any], fix: str = "") -> None:
        self.results = dict(results)
        super().__init__(what, fix=fix)


class Cancelled(RunError):
    """The run was stopped on request; nothing was written."""

    exit_code = 130
