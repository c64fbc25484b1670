"""Which machines the pipeline at hand runs on, decided once for the whole of its run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cached_property

from ematix_flow.config import DISTRIBUTED, ENGINES, placement_of
from ematix_flow.errors import ConfigError
from ematix_flow.model import PipelineSpec
from ematix_flow.peers import Peer, resolved

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
