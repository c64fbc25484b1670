"""Where settings come from, in which order, and what is said about wrong ones."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ematix_flow import PostgresConnection, SQLiteConnection, config, connect, register_connection
from ematix_flow.config import (
    connection_names,
    placement_of,
    project_settings,
    resolve_connection,
    set_connection,
    spark_settings,
    tls_files,
)
from ematix_flow.errors import ConfigError, EmatixError, UnknownConnection, UnknownName
from ematix_flow.peers import Placement

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder and none of the user's own variables."""
    for name in list(os.environ):
        if name.startswith("EMATIX_FLOW_DSN"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def project(folder: Path, text: str) -> Path:
    path = folder / ".ematix-flow.toml"
    path.write_text(text, encoding="utf-8")
    return path


def user(home: Path, text: str) -> Path:
    path = home / "connections.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_chain_from_top_to_bottom(
    folder: Path, private_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_connection(PostgresConnection(name="wh", url="postgres://in-process/db"))
    assert resolve_connection("wh").connection.fields() == {"url": "postgres://in-process/db"}
    assert resolve_connection("wh").origin == "declared in Python"
    own = user(private_home, '[connections.wh]\nurl = "postgres://user-file/db"\n')
    assert resolve_connection("wh").connection.fields() == {"url": "postgres://user-file/db"}
    assert resolve_connection("wh").origin == str(own)
    path = project(folder, '[connections.wh]\nurl = "postgres://project-file/db"\n')
    assert resolve_connection("wh").connection.fields() == {"url": "postgres://project-file/db"}
    assert resolve_connection("wh").origin == str(path)
    monkeypatch.setenv("EMATIX_FLOW_DSN_WH", "postgres://environment/db")
    assert resolve_connection("wh").connection.fields() == {"url": "postgres://environment/db"}
    assert resolve_connection("wh").origin == "environment variable EMATIX_FLOW_DSN_WH"


def test_an_empty_variable_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    register_connection(SQLiteConnection(name="wh", path="x.db"))
    monkeypatch.setenv("EMATIX_FLOW_DSN_WH", "")
    assert resolve_connection("wh").origin == "declared in Python"


def test_the_short_variable_is_for_default_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_DSN", "sqlite://short.db")
    assert resolve_connection("default").connection.fields() == {"url": "sqlite://short.db"}
    assert resolve_connection("default").origin == "environment variable EMATIX_FLOW_DSN"
    with pytest.raises(UnknownConnection):
        resolve_connection("warehouse")
    monkeypatch.setenv("EMATIX_FLOW_DSN_DEFAULT", "sqlite://long.db")
    assert resolve_connection("default").connection.fields() == {"url": "sqlite://long.db"}


def test_a_name_becomes_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_DSN_RAW_DB_2", "sqlite://raw.db")
    for name in ("raw_db_2", "raw-db-2", "Raw.Db.2"):
        assert resolve_connection(name).connection.name == name


def test_every_form_of_toml(folder: Path) -> None:
    project(
        folder,
        """
        [connections]
        short = "sqlite://short.db"
        [connections.by_url]
        url = "postgres://me:${PG_SECRET_OF_TOML}@h/db"
        [connections.by_dsn]
        dsn = "sqlite://dsn.db"
        [connections.by_fields]
        kind = "postgres"
        host = "h"
        port = 5433
        password = "${PG_SECRET_OF_TOML}"
        [connections.kafka_prod]
        kind = "kafka"
        bootstrap_servers = "${KAFKA_BOOTSTRAP}"
        group_id = "ematix-flow"
        [connections.lake]
        kind = "object_store_local"
        path = "lake"
        format = "csv"
        csv_header = false
        [connections.lake.csv_read_options]
        has_header = false
        """,
    )
    found = {name: resolve_connection(name).connection for name in connection_names()}
    assert {name: held.kind for name, held in found.items()} == {
        "by_dsn": "sqlite",
        "by_fields": "postgres",
        "by_url": "postgres",
        "kafka_prod": "kafka",
        "lake": "object_store_local",
        "short": "sqlite",
    }
    assert found["by_dsn"].fields() == {"url": "sqlite://dsn.db"}
    assert found["by_fields"].fields()["port"] == 5433
    assert found["by_fields"].shown()["password"] == "${PG_SECRET_OF_TOML}"
    assert found["by_url"].shown() == {"url": "postgres://me:${PG_SECRET_OF_TOML}@h/db"}
    assert found["lake"].fields()["csv_read_options"] == {"has_header": False}


def test_references_stay_until_use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project(folder, '[connections.wh]\nurl = "postgres://me:${PG_SECRET_OF_TOML}@h/db"\n')
    held = resolve_connection("wh").connection
    monkeypatch.setenv("PG_SECRET_OF_TOML", "first")
    assert held.resolved().fields()["url"] == "postgres://me:first@h/db"
    monkeypatch.setenv("PG_SECRET_OF_TOML", "second")
    assert held.resolved().fields()["url"] == "postgres://me:second@h/db"


def test_names_come_from_everywhere_once(
    folder: Path, private_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_connection(SQLiteConnection(name="a", path="x.db"))
    project(folder, '[connections]\na = "sqlite://a"\nb = "sqlite://b"\n')
    user(private_home, '[connections]\nb = "sqlite://b"\nc = "sqlite://c"\n')
    monkeypatch.setenv("EMATIX_FLOW_DSN_D", "sqlite://d")
    monkeypatch.setenv("EMATIX_FLOW_DSN", "sqlite://default")
    assert connection_names() == ["a", "b", "c", "d", "default"]


def test_an_unknown_name() -> None:
    with pytest.raises(UnknownConnection) as caught:
        resolve_connection("warehouse")
    assert str(caught.value) == (
        "there is no connection 'warehouse'; declare it with @ematix.connection, set "
        "EMATIX_FLOW_DSN_WAREHOUSE, or add [connections.warehouse] to .ematix-flow.toml"
    )
    register_connection(SQLiteConnection(name="warehouse", path="x.db"))
    with pytest.raises(UnknownConnection, match="did you mean 'warehouse'"):
        resolve_connection("warehose")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[connections", "is not valid TOML"),
        ("[conections.wh]", "has no section [conections]; did you mean 'connections'?"),
        ("connections = 5", "connections must be a section; write [connections]"),
        ("[connections]\nwh = 5", "[connections.wh] must be a table"),
        ('[connections.wh]\nurl = "sqlite://x"\nsslmode = "on"', "has no field 'sslmode'"),
        ('[connections.wh]\nkind = "postgers"', "unknown kind 'postgers'; did you mean 'postgres'"),
        ('[connections.wh]\nhost = "h"', "has neither kind nor url"),
        ('[connections.wh]\nurl = "a"\ndsn = "b"', "has both url and dsn"),
    ],
)
def test_wrong_files(folder: Path, text: str, says: str) -> None:
    path = project(folder, text)
    with pytest.raises(EmatixError) as caught:
        resolve_connection("wh")
    assert str(caught.value).startswith(str(path))
    assert says in str(caught.value)
    assert caught.value.fix
    assert caught.value.exit_code == 2


def test_a_file_that_cannot_be_read(folder: Path) -> None:
    (folder / ".ematix-flow.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        resolve_connection("wh")


def test_project_settings(folder: Path) -> None:
    assert project_settings() == config.ProjectSettings(folder)
    project(folder, '[project]\nmodules = ["a.py", "b"]\nrun_log = "sqlite://runs.db"\n')
    assert project_settings() == config.ProjectSettings(folder, ("a.py", "b"), "sqlite://runs.db")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[project]\nmodule = []", "[project] has no key 'module'; did you mean 'modules'?"),
        ('[project]\nmodules = "a.py"', "modules in [project] must be a list of texts"),
        ("[project]\nmodules = [5]", "modules in [project] must be a list of texts"),
        ("[project]\nrun_log = 5", "run_log in [project] must be a text"),
        ("project = 5", "project must be a section; write [project]"),
    ],
)
def test_wrong_project_settings(folder: Path, text: str, says: str) -> None:
    path = project(folder, text)
    with pytest.raises((ConfigError, UnknownName)) as caught:
        project_settings()
    assert str(caught.value).startswith(f"{path}: ")
    assert says in str(caught.value)


def test_settings_by_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_SOME_THING", "x")
    assert config.setting("SOME_THING") == "x"
    monkeypatch.setenv("EMATIX_FLOW_SOME_THING", "")
    assert config.setting("SOME_THING") is None


def test_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EMATIX_FLOW_HOME", str(tmp_path / "h"))
    assert config.home() == tmp_path / "h"
    monkeypatch.delenv("EMATIX_FLOW_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config.user_file() == tmp_path / ".ematix-flow" / "connections.toml"


class TestSetting:
    def test_what_is_set_is_found(self, private_home: Path) -> None:
        user(private_home, '# mine\n[connections.other]\nurl = "sqlite://other.db"\n')
        path = set_connection("wh", {"url": "postgres://me:${P}@h/db"})
        assert path == private_home / "connections.toml"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.read_text().startswith("# mine\n")
        assert resolve_connection("wh").connection.fields() == {"url": "postgres://me:${P}@h/db"}
        assert resolve_connection("other").connection.fields() == {"url": "sqlite://other.db"}

    def test_setting_again_replaces(self) -> None:
        set_connection("wh", {"kind": "postgres", "host": "h"})
        set_connection("wh", {"url": "sqlite://x.db"})
        assert resolve_connection("wh").connection.fields() == {"url": "sqlite://x.db"}

    def test_nothing_wrong_is_written(self, private_home: Path) -> None:
        with pytest.raises(UnknownName):
            set_connection("wh", {"kind": "postgres", "hots": "h"})
        assert not (private_home / "connections.toml").exists()

    @pytest.mark.parametrize(
        ("spoil", "says"),
        [
            (lambda home: user(home, "[connections"), "is not valid TOML"),
            (lambda home: user(home, "connections = 5"), "connections must be a section"),
            (lambda home: (home / "connections.tmp").mkdir(), "cannot be written"),
        ],
    )
    def test_a_file_that_cannot_take_it(
        self, private_home: Path, spoil: Callable[[Path], object], says: str
    ) -> None:
        spoil(private_home)
        with pytest.raises(ConfigError, match=says):
            set_connection("wh", {"url": "sqlite://x.db"})


class TestConnecting:
    def test_by_url(self, folder: Path) -> None:
        with connect(url=f"sqlite://{folder}/x.db") as live:
            live.ping()
            live.execute("CREATE TABLE t (a INTEGER)")
            assert live.execute("INSERT INTO t VALUES (1), (2)") == 2
            assert live.query("SELECT a FROM t ORDER BY a") == [{"a": 1}, {"a": 2}]
            assert list(live.read_df("SELECT a FROM t ORDER BY a")["a"]) == [1, 2]

    def test_by_name(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("EMATIX_FLOW_DSN", f"duckdb://{folder}/x.duckdb")
        with config.connect() as live:
            assert live.query("SELECT 1 AS a") == [{"a": 1}]
        register_connection(SQLiteConnection(name="mine", path=str(folder / "y.db")))
        with config.connect("mine") as live:
            assert live.query("SELECT 2 AS a") == [{"a": 2}]

    def test_what_has_no_backend(self) -> None:
        with pytest.raises(EmatixError, match="is not available yet in this version"):
            connect(url="amqp://localhost")


class TestPlacement:
    """Where a pipeline runs, and who decides."""

    def test_the_chain_from_bottom_to_top(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        declared = Placement(peers=("https://declared:1",))
        assert placement_of("load", Placement()) == Placement()
        project(folder, '[project]\npeers = ["dns://project:1"]\nengine = "distributed"\n')
        assert placement_of("load", Placement()).peers == ("dns://project:1",)
        assert placement_of("load", declared) == Placement("distributed", ("https://declared:1",))
        project(folder, '[transform]\nengine = "distributed"\npeers = ["dns://transform:1"]\n')
        assert placement_of("load", Placement()) == Placement("distributed", ("dns://transform:1",))
        project(folder, '[pipelines.load]\nmaster = "spark://m:7077"\nengine = "auto"\n')
        assert placement_of("load", declared) == Placement("auto", master="spark://m:7077")
        assert placement_of("other", declared) == declared
        monkeypatch.setenv("EMATIX_FLOW_PEERS", "https://a:1, https://b:2")
        monkeypatch.setenv("EMATIX_FLOW_ENGINE", "distributed")
        both = ("https://a:1", "https://b:2")
        assert placement_of("load", declared) == Placement("distributed", both)
        monkeypatch.delenv("EMATIX_FLOW_PEERS")
        monkeypatch.setenv("EMATIX_FLOW_MASTER", "yarn")
        assert placement_of("load", declared) == Placement("distributed", master="yarn")
        monkeypatch.setenv("EMATIX_FLOW_MASTER_SECRET", "hidden")
        assert placement_of("load", declared).secret == "hidden"
        assert "hidden" not in repr(placement_of("load", declared))

    def test_a_secret_is_not_for_a_master_that_was_named_before_it(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        project(folder, '[project]\nmaster = "spark://m:7077"\nmaster_secret = "hidden"\n')
        assert placement_of("load", Placement()).secret == "hidden"
        assert placement_of("load", Placement(master="k8s://https://k:1")).secret is None
        monkeypatch.setenv("EMATIX_FLOW_MASTER", "sc://dev:15002")
        assert placement_of("load", Placement()).secret is None

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("[project]\nengine = 'fast'", "engine in [project] is 'fast'"),
            ("[project]\npeers = 'dns://a:1'", "peers in [project] must be a list"),
            ("[project]\npeers = ['a:1']", "peers= cannot hold 'a:1'"),
            ("[project]\nmaster = 5", "master in [project] must be a text"),
            ("[project]\nmaster_secret = 5", "master_secret in [project] must be a text"),
            ("[project]\nmaster = 'http://a'", "is not the address of a cluster"),
            ("[project]\nmaster = 'sc://me:hidden@a:1'", "may not hold a user or password"),
            (
                "[project]\npeers = ['dns://a:1']\nmaster = 'yarn'",
                "both peers in [project] and master in [project] are given",
            ),
            ("[transform]\npeer = []", "[transform] has no key 'peer'"),
            ("[pipelines.load]\nmode = 'x'", "[pipelines.load] has no key 'mode'"),
            ("[pipelines]\nload = 5", "[pipelines.load] must be a table"),
            ("[project.tls]\ncert = 'a'", "cert, key and ca in [project.tls] are needed together"),
            ("[project.tls]\ncerts = 'a'", "[project.tls] has no key 'certs'"),
            ("[project]\ntls = 'a'", "tls must be a table"),
        ],
    )
    def test_what_is_refused(self, folder: Path, text: str, says: str) -> None:
        path = project(folder, text)
        with pytest.raises((ConfigError, UnknownName)) as caught:
            placement_of("load", Placement())
        assert says in str(caught.value)
        assert str(caught.value).startswith(str(path))

    def test_variables_are_checked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("EMATIX_FLOW_PEERS", "a:1")
        with pytest.raises(ConfigError, match="cannot hold 'a:1'"):
            placement_of("load", Placement())

    def test_tls_files(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert tls_files() is None
        project(folder, '[project.tls]\ncert = "a.pem"\nkey = "/k"\nca = "c"\n')
        assert tls_files() == config.TlsFiles(folder / "a.pem", Path("/k"), folder / "c")
        monkeypatch.setenv("EMATIX_FLOW_TLS_CERT", "/x")
        with pytest.raises(ConfigError, match="EMATIX_FLOW_TLS_KEY and EMATIX_FLOW_TLS_CA are"):
            tls_files()
        for name in ("KEY", "CA"):
            monkeypatch.setenv(f"EMATIX_FLOW_TLS_{name}", "/y")
        assert tls_files() == config.TlsFiles(Path("/x"), Path("/y"), Path("/y"))


class TestSparkSettings:
    """What Spark is told on a cluster that is named by its master."""

    def test_keys_are_joined(self, folder: Path) -> None:
        assert spark_settings() == {}
        project(
            folder,
            "[spark]\nexecutor.instances = 4\nexecutor.memory = '2g'\nspeculation = false\n"
            "'kubernetes.executor.label.example.org/team' = 'data'\n"
            "[spark.kubernetes]\nnamespace = 'etl'\n"
            "executor.secretKeyRef.API_TOKEN = 'api:token'\n",
        )
        assert spark_settings() == {
            "spark.executor.instances": "4",
            "spark.executor.memory": "2g",
            "spark.speculation": "false",
            "spark.kubernetes.executor.label.example.org/team": "data",
            "spark.kubernetes.namespace": "etl",
            "spark.kubernetes.executor.secretKeyRef.API_TOKEN": "api:token",
        }

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("master = 'local'", "[spark] may not set spark.master; name the cluster by master="),
            ("sql.ansi.enabled = false", "[spark] may not set spark.sql.ansi.enabled; leave it"),
            ("app.name = 'x'", "[spark] may not set spark.app.name"),
            (
                "kubernetes.authenticate.oauthToken = 'hidden'",
                "may not hold a secret, as spark.kubernetes.authenticate.oauthToken is; name a",
            ),
            ("authenticate.secret = 'hidden'", "as spark.authenticate.secret is"),
            ("executorEnv.DB_PASSWORD = 'hidden'", "as spark.executorEnv.DB_PASSWORD is"),
            ("'hadoop.fs.s3a.secret.key' = 'hidden'", "as spark.hadoop.fs.s3a.secret.key is"),
            ("'hadoop.fs.azure.account.key.a' = 'hidden'", "may not hold a secret"),
            ("spark.executor.memory = '4g'", "leave out the spark. in front"),
            ("jars = 'a.jar'", "[spark] may not set spark.jars"),
            ("executor.instances = 'two'", "executor.instances in [spark] must be a whole number"),
            ("executor.cores = [1]", "spark.executor.cores in [spark] must be a text, a number"),
        ],
    )
    def test_what_is_refused(self, folder: Path, text: str, says: str) -> None:
        path = project(folder, f"[spark]\n{text}\n")
        with pytest.raises(ConfigError) as caught:
            spark_settings()
        assert says in str(caught.value)
        assert "hidden" not in str(caught.value)
        assert str(caught.value).startswith(str(path))
