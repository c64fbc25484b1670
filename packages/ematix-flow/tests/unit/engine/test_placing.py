"""Where a pipeline runs: what is made of peers, a master and its secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ematix_flow import BigInt, PostgresConnection, ematix
from ematix_flow.engine.placing import Place, placed
from ematix_flow.engine.session import configured
from ematix_flow.errors import ConfigError, EngineError, MissingSecret
from ematix_flow.model import PipelineSpec
from ematix_flow.redaction import redact_text
from ematix_flow.registry import register_connection

HARD = "a;b=c/d e"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("ENGINE", "PEERS", "MASTER", "MASTER_SECRET"):
        monkeypatch.delenv(f"EMATIX_FLOW_{name}", raising=False)
    return tmp_path


@ematix.table(schema="app")
class Things:
    id: BigInt


def spec(**options: Any) -> PipelineSpec:
    register_connection(PostgresConnection(name="pg", url="postgresql://127.0.0.1/x"))

    @ematix.pipeline(target=Things, source_connection="pg", target_connection="pg", **options)
    def load() -> str:
        return "SELECT 1 AS id"

    return load.spec


class TestServers:
    """``sc://``: one address, whether the token stands in it or beside it."""

    def test_without_a_token(self) -> None:
        place = Place(spec(master="sc://host:15002"))
        assert (place.is_server, place.is_distributed) == (True, True)
        assert place.server == "sc://host:15002/"
        assert place.machines == ["sc://host:15002"]

    def test_a_token_in_the_address_is_a_reference_or_itself(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("THE_TOKEN", HARD)
        address = "sc://host:15002/;use_ssl=true;token=${THE_TOKEN}"
        place = Place(spec(master=address))
        assert place.server == "sc://host:15002/;use_ssl=true;token=a%3Bb%3Dc%2Fd%20e"
        assert place.machines == ["sc://host:15002"]
        assert redact_text(f"it said {HARD}") == "it said ***"
        assert Place(spec(master=place.server)).server == place.server

    def test_a_token_beside_the_address(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("EMATIX_FLOW_MASTER_SECRET", HARD)
        declared = spec(master="sc://host:15002/;use_ssl=true")
        with placed(declared):
            settings = configured()
        assert settings.remote == "sc://host:15002/;use_ssl=true;token=a%3Bb%3Dc%2Fd%20e"
        assert HARD not in repr(settings)
        assert "token" not in repr(settings)

    def test_the_environment_wins_over_peers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("EMATIX_FLOW_MASTER", "sc://there:1")
        place = Place(spec(peers=["https://10.0.0.1:9000"]))
        assert (place.is_server, place.peers) == (True, ())


class TestSecrets:
    """``master_secret``: for those that ask for one."""

    def test_of_a_standalone_cluster(self, folder: Path) -> None:
        (folder / "secret").write_text(f"{HARD}\n")
        (folder / ".ematix-flow.toml").write_text(
            f'[project]\nmaster = "spark://m:7077"\nmaster_secret = "${{file:{folder}/secret}}"\n'
        )
        with placed(spec()):
            settings = configured()
        assert settings.master == "spark://m:7077"
        assert dict(settings.conf)["spark.authenticate.secret"] == HARD
        assert HARD not in repr(settings)
        assert redact_text(f"it said {HARD}") == "it said ***"

    def test_is_looked_up_only_when_it_is_needed(self, folder: Path) -> None:
        (folder / ".ematix-flow.toml").write_text(
            '[project]\nmaster = "spark://m:7077"\nmaster_secret = "${NOT_SET_HERE}"\n'
        )
        place = Place(spec())
        with pytest.raises(MissingSecret, match="NOT_SET_HERE is not set"):
            _ = place.secret
        assert not Place(spec(engine="local")).is_distributed

    @pytest.mark.parametrize("master", ["yarn", "k8s://https://host:6443"])
    def test_of_those_that_take_none(self, master: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("EMATIX_FLOW_MASTER_SECRET", HARD)
        with pytest.raises(ConfigError, match="which takes none from here") as caught:
            Place(spec(master=master))
        assert HARD not in str(caught.value)


def test_cores_of_peers_that_do_not_answer_are_not_known() -> None:
    place = Place(spec(peers=["http://127.0.0.1:9"]))
    assert place.cores is None
    assert place.machines == ["http://127.0.0.1:9"]


def test_a_token_does_not_travel_in_clear_text() -> None:
    from ematix_flow.engine.remote import attach_to_server
    from ematix_flow.engine.settings import derive

    for host in ("127.0.0.1", "there.example"):
        with pytest.raises(EngineError, match="would travel in clear text") as caught:
            attach_to_server(derive(remote=f"sc://{host}:1/;token=hidden-one"))
        assert "hidden-one" not in str(caught.value)
