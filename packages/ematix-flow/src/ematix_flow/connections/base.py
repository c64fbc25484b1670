"""What every connection is: frozen, typed fields, redacted in every form of output."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ematix_flow.errors import ConfigError, UnknownName
from ematix_flow.redaction import (
    Concealed,
    is_secret_field,
    redact,
    remember_secret,
    remember_url_password,
)
from ematix_flow.secrets import expand, expand_url

if TYPE_CHECKING:
    from typing_extensions import Self


def nearest(name: str, known: Iterable[str]) -> str:
    """``did you mean …`` for a misspelt name, or the list of what is known."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known are: {', '.join(names)}"


@dataclass(frozen=True, repr=False, kw_only=True)
class Connection:
    """Base of all connections. ``${…}`` references stay as written until ``resolved()``."""

    name: str
    kind: ClassVar[str] = ""
    required: ClassVar[tuple[str, ...]] = ()

    def __new__(cls, **given: Any) -> Self:
        """Refuse misspelt fields with a word of help; the generated ``__init__`` has none."""
        known = [f.name for f in dataclasses.fields(cls)]
        for name in given:
            if name not in known:
                raise UnknownName(f"{cls.__name__} has no field {name!r}", fix=nearest(name, known))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError("a connection's name must be a text", fix='write name="warehouse"')
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _typed(self, field))
        for missing in self.required:
            if getattr(self, missing) in (None, ""):
                raise ConfigError(
                    f"connection {self.name!r} of kind {self.kind!r} needs {missing}=",
                    fix=f"add {missing}",
                )
        self.check()

    def check(self) -> None:
        """Refuse field values that cannot be right, as far as they hold no reference."""

    def fields(self) -> dict[str, Any]:
        """The fields that are set, name and kind aside."""
        return {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if f.name != "name" and getattr(self, f.name) is not None
        }

    def shown(self) -> dict[str, Any]:
        """The fields, safe to print."""
        return {name: redact(name, value) for name, value in self.fields().items()}

    def resolved(self) -> Connection:
        """A copy with every reference replaced by its value. Its secrets are remembered."""
        values = {name: self._expanded(name, value) for name, value in self.fields().items()}
        for name, value in values.items():
            if isinstance(value, str):
                remember_url_password(value)
                if is_secret_field(name):
                    remember_secret(value)
        return dataclasses.replace(self, **values)

    def _expanded(self, name: str, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return expand_url(value) if "://" in value else expand(value)
        except ConfigError as error:
            error.what = f"connection {self.name!r}: {name}: {error.what}"
            raise

    def __repr__(self) -> str:
        inner = "".join(f", {name}={value!r}" for name, value in self.shown().items())
        return f"{type(self).__name__}(name={self.name!r}{inner})"


_FIELD_TYPES: dict[str, tuple[type, str]] = {
    "str": (str, "a text"),
    "int": (int, "a whole number"),
    "bool": (bool, "true or false"),
    "Mapping[str, Any]": (Mapping, "a table of options"),
    "str | Connection": (object, ""),
}
_FLAGS = {"true": True, "false": False}


def _typed(connection: Connection, field: dataclasses.Field[Any]) -> Any:
    """A field's value in its own type; what would give a secret away is concealed."""
    value = getattr(connection, field.name)
    kind, wanted = _FIELD_TYPES[str(field.type).removesuffix(" | None")]
    if isinstance(value, str):
        if kind is str:
            shown = redact(field.name, value)
            return value if shown == value else Concealed(value, shown)
        if "${" in value:
            return value
        if kind is int and value.isdecimal():
            return int(value)
        if kind is bool and value in _FLAGS:
            return _FLAGS[value]
    right = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    if value is None or right:
        return value
    raise ConfigError(
        f"connection {connection.name!r}: {field.name}={redact(field.name, value)!r} "
        f"is not {wanted}",
        fix="correct it",
    )


def check_choice(connection: Connection, name: str, allowed: Iterable[str]) -> None:
    """Refuse a field whose value is not one of those allowed."""
    value = getattr(connection, name)
    if value is not None and "${" not in str(value) and value not in allowed:
        raise ConfigError(
            f"connection {connection.name!r}: {name}={value!r} is not known",
            fix=f"use one of {', '.join(allowed)}",
        )
