"""What ``on_drift=`` and ``allow=`` may say, what they permit, and what they could."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ematix_flow.connections import nearest
from ematix_flow.errors import DeclarationError, UnknownName

POLICIES = ("error", "warn", "evolve")
KINDS = ("add", "widen", "narrow", "retype", "nullability", "drop", "rename")
_ALLOWANCES = ("drop", "narrow", "retype", "not_null", "rename")

OnDrift = str | Mapping[str, str]


def check_on_drift(value: object) -> None:
    """Refuse what is neither a policy nor a policy by kind of change."""
    if not isinstance(value, Mapping):
        _check_policy("on_drift", value)
        return
    for kind, policy in value.items():
        if kind not in KINDS:
            raise UnknownName(
                f"on_drift= names {kind!r}, which is no kind of change",
                fix=nearest(str(kind), KINDS),
            )
        _check_policy(f"on_drift[{kind!r}]", policy)


def _check_policy(option: str, value: object) -> None:
    if not isinstance(value, str) or value not in POLICIES:
        shown = ", ".join(repr(p) for p in POLICIES)
        raise DeclarationError(f"{option}={value!r} is not known", fix=f"use one of {shown}")


def check_allow(allow: Sequence[str], on_drift: OnDrift) -> None:
    """Refuse an ``allow=`` that no change could ever match."""
    for entry in allow:
        kind, _, column = entry.partition(":")
        if kind not in _ALLOWANCES:
            raise UnknownName(
                f"allow= names {entry!r}, which is no change of a table",
                fix=f'write "kind:column"; {nearest(kind, _ALLOWANCES)}',
            )
        old, arrow, new = column.partition("->")
        if not column or (kind == "rename") != bool(arrow and old and new):
            shape = "rename:old->new" if kind == "rename" else f"{kind}:column"
            raise DeclarationError(f"allow= names {entry!r}", fix=f'write "{shape}"')
    held = set(on_drift.values()) if isinstance(on_drift, Mapping) else {on_drift}
    if allow and "evolve" not in held:
        raise DeclarationError(
            "allow= says which changes of a table are permitted, but on_drift= permits none",
            fix='add on_drift="evolve"',
        )


@dataclass(frozen=True)
class Permits:
    """What a pipeline lets happen to its table."""

    on_drift: OnDrift
    allow: tuple[str, ...] = ()

    def policy(self, kind: str) -> str:
        """What is done about a kind of change; one that is not named is an error."""
        if isinstance(self.on_drift, Mapping):
            return self.on_drift.get(kind, "error")
        return self.on_drift

    def allows(self, kind: str, column: str) -> bool:
        """Whether a change that can lose something was named."""
        return f"{kind}:{column}" in self.allow

    def renames(self) -> dict[str, str]:
        """The renames that were named: the old name by the new one."""
        named = [e.removeprefix("rename:") for e in self.allow if e.startswith("rename:")]
        return {new: old for old, _, new in (name.partition("->") for name in named)}


@dataclass(frozen=True)
class Difference:
    """What stands in the way of a load, and which policies would let it pass.

    ``kind`` is None for one that no policy is about.
    """

    said: str
    kind: str | None
    evolves: bool = False
    allowance: str | None = None
    tolerable: bool = False


def remedy(differences: Sequence[Difference], permits: Permits) -> str:
    """The ways out of differences that were refused; only those which would really be."""
    ways = ["change the declaration or the table until they agree"]
    if all(d.evolves for d in differences):
        asked = _asking("evolve", differences, permits)
        named = [f'"{d.allowance}"' for d in differences if d.allowance]
        allowed = f"allow=({', '.join(named)},)" if named else ""
        told = " and ".join(part for part in (asked, allowed) if part)
        ways += [f"let the load alter the table with {told}"] if told else []
    if all(d.tolerable for d in differences):
        asked = _asking("warn", differences, permits)
        if asked:
            ways.append(f"load what both have with {asked}")
    return ", or ".join(ways)


def _asking(policy: str, differences: Sequence[Difference], permits: Permits) -> str:
    """How ``on_drift=`` asks for a policy; nothing where it already does."""
    kinds = [d.kind for d in differences if d.kind and permits.policy(d.kind) != policy]
    if not kinds:
        return ""
    if not isinstance(permits.on_drift, Mapping):
        return f'on_drift="{policy}"'
    named = ", ".join(f'"{kind}": "{policy}"' for kind in dict.fromkeys(kinds))
    return f"on_drift={{{named}}}"
