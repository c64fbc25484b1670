"""What is derived from the machine, and what a user may set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ematix_flow.engine.settings import (
    context_conf,
    derive,
    driver_memory,
    session_conf,
    shuffle_partitions,
)
from ematix_flow.errors import ConfigError

GIB = 1 << 30


@pytest.mark.parametrize("gib", [1, 2, 4, 8, 16, 23, 64, 512])
def test_memory_stays_between_its_bounds(gib: int) -> None:
    memory = driver_memory(gib * GIB)
    assert memory <= 8 * GIB
    assert memory <= gib * GIB // 2
    assert memory >= min(GIB, gib * GIB // 2)


def test_more_memory_never_gives_less() -> None:
    derived = [driver_memory(gib * GIB) for gib in range(1, 100)]
    assert derived == sorted(derived)


def test_partitions_follow_cores_and_size() -> None:
    assert shuffle_partitions(1) == 2
    assert shuffle_partitions(8) == 16
    assert shuffle_partitions(8, input_bytes=1) == 16
    assert shuffle_partitions(2, input_bytes=100 * GIB) == 800


@pytest.mark.parametrize(
    ("master", "cores"), [("local[*]", 6), ("local", 1), ("local[3]", 3), ("local[2,4]", 2)]
)
def test_cores_follow_the_master(master: str, cores: int) -> None:
    settings = derive(master=master, cores=6, memory_bytes=8 * GIB)
    assert settings.cores == cores
    assert settings.is_local


@pytest.mark.parametrize("master", ["spark://host:7077", "k8s://https://host", "yarn"])
def test_a_cluster_is_not_bound_to_loopback(master: str) -> None:
    settings = derive(master=master, cores=6, memory_bytes=8 * GIB)
    assert not settings.is_local
    conf = context_conf(settings, warehouse=Path("/nowhere"))
    assert "spark.driver.bindAddress" not in conf
    assert "spark.shuffle.compress" not in conf


def test_what_the_user_sets_wins() -> None:
    given = {"spark.sql.shuffle.partitions": "7", "spark.ui.enabled": "true"}
    settings = derive(conf=given, cores=2, memory_bytes=8 * GIB)
    conf = context_conf(settings, warehouse=Path("/nowhere"))
    assert {key: conf[key] for key in given} == given
    assert session_conf(settings)["spark.sql.shuffle.partitions"] == "7"
    assert "spark.ui.enabled" not in session_conf(settings)


def test_right_results_do_not_depend_on_the_machine() -> None:
    conf = session_conf(derive())
    assert conf["spark.sql.session.timeZone"] == "UTC"
    assert conf["spark.sql.ansi.enabled"] == "true"
    assert conf["spark.sql.caseSensitive"] == "true"
    assert conf["spark.sql.timestampType"] == "TIMESTAMP_LTZ"


@pytest.mark.parametrize(
    "key",
    ["spark.x.password", "SECRET_KEY", "my.token", "fs.s3a.access.key", "access_key", "url"],
)
def test_secret_keys_are_redacted(key: str) -> None:
    conf = context_conf(derive(), warehouse=Path("/nowhere"))
    assert re.search(conf["spark.redaction.regex"], key)


def test_secrets_stay_out_of_repr() -> None:
    settings = derive(
        remote="sc://localhost:1/;token=hunter22", conf={"spark.x.password": "hunter22"}
    )
    assert "hunter22" not in repr(settings)


def test_equal_wishes_are_equal_settings() -> None:
    assert derive(conf={"a": "1", "b": "2"}) == derive(conf={"b": "2", "a": "1"})
    assert derive(jars=("postgres", "postgres")) == derive(jars=("postgres",))
    assert hash(derive()) == hash(derive())


def test_a_remote_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="starts with sc://"):
        derive(remote="http://host")


def test_what_is_broadcast_fits_into_the_smallest_peer() -> None:
    from ematix_flow.engine.cluster import _spread
    from ematix_flow.engine.peer_protocol import Offer, own_versions

    settings = derive(memory_bytes=64 << 30)
    small, large = (Offer(1, size << 30, own_versions()) for size in (1, 16))

    def threshold(*offers: Offer) -> int:
        conf = _spread(settings, offers, here="10.0.0.1", master="spark://10.0.0.1:1", slots=2)
        return int(conf["spark.sql.autoBroadcastJoinThreshold"])

    assert settings.broadcast_threshold_bytes == threshold(large, large) == 64 << 20
    assert threshold(small, large) == 10 << 20
