"""How Delta comes into Spark: at the start where its jars are asked for, else when needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from ematix_flow.engine.delta import EXTENSION, EXTENSIONS, DeltaSessions
from ematix_flow.engine.settings import context_conf, derive


def test_only_an_engine_with_its_jars_starts_with_delta() -> None:
    plain = context_conf(derive(jars=("postgres",)), warehouse=Path("/nowhere"))
    assert not [key for key in plain if "delta" in f"{key}={plain[key]}".lower()]
    lake = context_conf(derive(jars=("delta",)), warehouse=Path("/nowhere"))
    assert lake[EXTENSIONS] == EXTENSION
    assert lake["spark.sql.catalog.spark_catalog"].endswith("DeltaCatalog")


@pytest.mark.parametrize("given", ["org.example.Mine", f"org.example.Mine,{EXTENSION}"])
def test_extensions_of_the_user_stay(given: str) -> None:
    settings = derive(jars=("delta",), conf={EXTENSIONS: given})
    conf = context_conf(settings, warehouse=Path("/nowhere"))
    assert conf[EXTENSIONS] == f"org.example.Mine,{EXTENSION}"


class Conf:
    """The settings of a session, which may be cut off from its server."""

    def __init__(self) -> None:
        self.broken = False

    def unset(self, key: str) -> None:
        if self.broken:
            raise ConnectionError


class Session:
    def __init__(self) -> None:
        self.conf = Conf()


def sessions() -> tuple[DeltaSessions, list[Any], list[Any]]:
    made: list[Any] = []
    discarded: list[Any] = []

    def make() -> Any:
        made.append(Session())
        return made[-1]

    return DeltaSessions(make, discarded.append), made, discarded


def test_a_session_is_lent_to_one_at_a_time_and_then_to_the_next() -> None:
    lent, made, discarded = sessions()
    with lent.borrowed() as first, lent.borrowed() as second:
        assert first is not second
    with lent.borrowed():
        pass
    assert (len(made), discarded) == (2, [])
    lent.close()
    assert {*discarded} == {*made}


def test_a_failed_commit_gives_its_session_back() -> None:
    lent, made, discarded = sessions()
    with pytest.raises(ValueError, match="refused"), lent.borrowed():
        raise ValueError("refused")
    with lent.borrowed():
        pass
    assert (len(made), discarded) == (1, [])


def test_a_session_that_was_interrupted_or_cut_off_is_not_used_again() -> None:
    lent, made, discarded = sessions()
    with pytest.raises(KeyboardInterrupt), lent.borrowed():
        raise KeyboardInterrupt
    with lent.borrowed() as spark:
        cast("Any", spark).conf.broken = True
    assert discarded == made
