"""What the normalizers that read text have in common: failure, and values already typed."""

from __future__ import annotations

from dataclasses import dataclass, field

from ematix_flow.errors import BadValue, DeclarationError
from ematix_flow.normalize.base import TEXTS, WHITESPACE, Normalizer, Step
from ematix_flow.normalize.constants import fitted
from ematix_flow.types import ColumnType

FAILURES = ("null", "error", "default")


@dataclass(frozen=True, repr=False)
class Parser(Normalizer):
    """Reads text as another type. Whitespace around the text is ignored.

    A text that cannot be read becomes NULL, an error, or ``default``. A column that has the
    type already passes through.
    """

    on_failure: str = field(default="null", kw_only=True)
    default: object = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        who = f"{self.name}()"
        if self.on_failure not in FAILURES:
            raise DeclarationError(
                f"{who}: on_failure must be 'null', 'error' or 'default', not {self.on_failure!r}"
            )
        if self.on_failure == "default":
            if self.default is None:
                raise DeclarationError(
                    f"{who}: on_failure='default' needs a value", fix="add default="
                )
            object.__setattr__(self, "default", fitted(who, self.default, self.parsed_type))
        elif self.default is not None:
            raise DeclarationError(
                f"{who}: default= has no effect with on_failure={self.on_failure!r}",
                fix="add on_failure='default', or remove default=",
            )

    @property
    def parsed_type(self) -> ColumnType:
        """The type that text becomes."""
        raise NotImplementedError

    def resolve(self, source: ColumnType) -> Step:
        """This step on a column of type ``source``, or the reason why it cannot be."""
        if source.kind in TEXTS:
            return Step(self, source, self.parsed_type)
        return Step(self, source, self._passed(source))

    def _passed(self, source: ColumnType) -> ColumnType:
        """The type that a column of another type becomes, or an error."""
        raise NotImplementedError

    def _meaning(self, value: object) -> object:
        if not isinstance(value, str):
            return self._convert(value)
        parsed = self._read(value.strip(WHITESPACE))
        if parsed is not None:
            return parsed
        if self.on_failure == "error":
            raise BadValue(f"{self.name}() cannot read {value!r}")
        return self.default

    def _read(self, text: str) -> object:
        """The value that a text stands for; None when it stands for none."""
        raise NotImplementedError

    def _convert(self, value: object) -> object:
        """A value that is no text."""
        return value
