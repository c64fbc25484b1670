"""Which machines the pipeline at hand runs on, decided once for the whole of its run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cached_property
from urllib.parse import quote, unquote

from ematix_flow.config import DISTRIBUTED, ENGINES, placement_of
from ematix_flow.errors import ConfigError, EngineError
from ematix_flow.model import PipelineSpec
from ematix_flow.peers import Peer, is_server, resolved, shown_master
from ematix_flow.redaction import remember_secret
from ematix_flow.secrets import expand

_AUTO = ENGINES[0]


class Place:
    """Where one run of a pipeline takes place; names are looked up once, and when needed."""

    def __init__(self, spec: PipelineSpec) -> None:
        self.pipeline = spec.name
        placement = placement_of(spec.name, spec.placement)
        self.engine = placement.engine or _AUTO
        named = self.engine in (_AUTO, DISTRIBUTED)
        self._addresses = placement.peers if named else ()
        self.master = placement.master if named else None
        self._secret = placement.secret
        if self._secret and self.master and not self.master.startswith(("spark://", "sc://")):
            raise ConfigError(
                f"pipeline {spec.name!r} has a secret for {shown_master(self.master)}, which takes "
                "none from here",
                fix="name one for spark:// and sc:// only",
            )
        if self.engine == DISTRIBUTED and not (self._addresses or self.master):
            raise ConfigError(
                f"pipeline {spec.name!r} has engine={DISTRIBUTED!r}, and neither peers nor a "
                "master are named",
                fix="add peers=, or set EMATIX_FLOW_PEERS",
            )

    @property
    def is_distributed(self) -> bool:
        """Whether other machines do the work."""
        return bool(self._addresses or self.master)

    @property
    def is_server(self) -> bool:
        """Whether it is a Spark Connect server, which may well be on this machine."""
        return is_server(self.master)

    @cached_property
    def secret(self) -> str | None:
        """What the master asks for, its reference resolved."""
        if self._secret is None:
            return None
        found = expand(self._secret)
        remember_secret(found)
        return found

    @cached_property
    def server(self) -> str:
        """The whole address of a Spark Connect server, token included."""
        address, _, parameters = str(self.master).partition(";")
        given = dict(p.partition("=")[::2] for p in parameters.split(";") if p)
        held = {key: quote(expand(unquote(value)), safe="") for key, value in given.items()}
        if self.secret is not None:
            held["token"] = quote(self.secret, safe="")
        if "token" in held:
            remember_secret(unquote(held["token"]))
        told = "".join(f";{key}={value}" for key, value in held.items())
        return f"{address.rstrip('/')}/{told}"

    @property
    def machines(self) -> list[str]:
        """Who does the work, where that is not this machine."""
        if self.master is not None:
            return [shown_master(self.master)]
        return [str(peer) for peer in self.peers]

    @cached_property
    def cores(self) -> int | None:
        """How many tasks the peers run at once; None where nobody tells."""
        if not self._addresses:
            return None
        from ematix_flow.engine.peer_client import offers_of

        try:
            return sum(offer.cores for offer in offers_of(self.peers))
        except EngineError:
            return None

    @cached_property
    def peers(self) -> tuple[Peer, ...]:
        """All peers, as the name service knew them when first asked."""
        return resolved(self._addresses)


_place: ContextVar[Place | None] = ContextVar("ematix_place", default=None)


def current_place() -> Place | None:
    """Where the pipeline at hand runs; None outside of a run."""
    return _place.get()


@contextlib.contextmanager
def placed(spec: PipelineSpec) -> Iterator[None]:
    """Let all that asks for Spark inside the block get that of a pipeline's place."""
    held = _place.get()
    same = held is not None and held.pipeline == spec.name
    token = _place.set(held if same else Place(spec))
    try:
        yield
    finally:
        _place.reset(token)
