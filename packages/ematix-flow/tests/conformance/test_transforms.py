"""What is done to rows before they land, and what runs once they have."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from conformance.conftest import Loader
from ematix_flow import BigInt, DuckDBConnection, Text, ematix, pk, register_connection
from ematix_flow.errors import DataError, EmatixError, RunError, Unsupported
from ematix_flow.normalize import lower, trim
from ematix_flow.run.log import open_run_log
from ematix_flow.transforms import deduplicate_by, filter_where, limit, sample_pct
from harness.base import Harness

SCHEMA = "id LONG, word STRING, grade LONG, kind STRING"
ROWS = [
    (1, "  Ada ", 1, "keep"),
    (2, "ada", 5, "keep"),
    (3, "ADA", 5, "keep"),
    (4, "bob", None, "keep"),
    (5, "Bob", 2, "drop"),
    (6, "", 9, "keep"),
    (7, None, 9, "keep"),
    (8, "cid", None, "keep"),
    (9, "CID ", None, "keep"),
]


@ematix.table(schema="steps")
class Words:
    id: Annotated[BigInt, pk()]
    word: Annotated[Text | None, trim(), lower()]
    grade: BigInt | None


@ematix.table(schema="steps")
class Counted:
    word: Text
    n: BigInt


@ematix.table(schema="steps")
class Raw:  # the rows before anything is done to them
    id: Annotated[BigInt, pk()]
    word: Text | None
    grade: BigInt | None
    kind: Text | None


def stored(backend: Harness, table: Any = Words) -> list[tuple[Any, ...]]:
    found = backend.rows(backend.connection("target"), table.__table__)
    names = table.__table__.column_names
    return sorted((tuple(row[n] for n in names) for row in found), key=repr)


def first_of_each_word() -> list[tuple[Any, ...]]:
    """The rows of kind keep with a word, and of each word the one with the highest grade."""
    kept: dict[str, tuple[Any, ...]] = {}
    for id_, word, grade, kind in ROWS:
        cleaned = word.strip().lower() if word is not None else None
        if kind != "keep" or not cleaned:
            continue
        # The greatest grade is first, NULL is last, and the least id decides between equals.
        order = (grade is None, -(grade or 0), id_)
        held = kept.get(cleaned)
        if held is None or order < held[0]:
            kept[cleaned] = (order, (id_, cleaned, grade))
    return sorted((row for _, row in kept.values()), key=repr)


CHOOSE = [
    filter_where("kind = 'keep' AND word <> ''"),
    deduplicate_by(keys=("word",), order_by="grade desc"),
]


def test_they_see_normalized_rows_and_columns_that_are_not_loaded(
    backend: Harness, loader: Loader
) -> None:
    result = loader(Words, ROWS, SCHEMA, transforms_pre=CHOOSE).sync()
    assert stored(backend) == first_of_each_word()
    assert result.counts.inserted == len(first_of_each_word())


def test_a_function_may_change_the_rows_or_refuse_them(backend: Harness, loader: Loader) -> None:
    seen: list[int] = []

    def enough(rows: Any) -> None:
        seen.append(rows.count())
        assert seen[-1] > 5, f"only {seen[-1]} rows"

    def louder(rows: Any) -> Any:
        return rows.selectExpr("id", "upper(word) AS word", "CAST(grade AS STRING) AS grade")

    loader(Words, ROWS, SCHEMA, transforms_pre=[enough, louder]).sync()
    expected = [(i, w.strip().upper() if w is not None else None, r) for i, w, r, _ in ROWS]
    assert stored(backend) == sorted(expected, key=repr)
    assert seen == [len(ROWS)]

    for refuse, says in (
        ([filter_where("id < 3"), enough], "enough in transforms_pre= refused the rows: only 0"),
        ([lambda rows: False], "refused the rows"),
        ([lambda rows: rows.select("id")], "left out column 'word'"),
        ([lambda rows: 5], "returned a int"),
        ([lambda rows: {}["x"]], "refused the rows: KeyError: 'x'"),
    ):
        with pytest.raises(DataError) as caught:
            loader(Words, [(99, "new", 1, "keep")], SCHEMA, transforms_pre=refuse).sync()
        assert says in str(caught.value)
        assert caught.value.exit_code == 1
        assert stored(backend) == sorted(expected, key=repr)
        assert backend.litter(backend.connection("target")) == []


@pytest.mark.needs("replace")
def test_a_sample_is_the_same_every_time(backend: Harness, loader: Loader) -> None:
    many = [(n, f"w{n}", n, "keep") for n in range(2000)]
    samples = []
    for rows in (many, many[::-1]):
        loader(Words, rows, SCHEMA, mode="truncate", transforms_pre=[sample_pct(20)]).sync()
        samples.append(stored(backend))
    assert samples[0] == samples[1]
    assert 300 < len(samples[0]) < 500
    result = loader(Words, many, SCHEMA, mode="truncate", transforms_pre=[limit(7)]).sync()
    assert (result.counts.inserted, len(set(stored(backend)) & set(_plain(many)))) == (7, 7)


def _plain(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [row[:3] for row in rows]


def test_transform_sql_over_the_source(backend: Harness, loader: Loader) -> None:
    counting = """
        WITH named AS (SELECT lower(trim(word)) AS word FROM source WHERE word <> '')
        SELECT word, count(*) AS n FROM named GROUP BY word;
    """
    loader(Counted, ROWS, SCHEMA, transform_sql=counting).sync()
    words = [w.strip().lower() for _, w, _, _ in ROWS if w]
    assert stored(backend, Counted) == sorted((w, words.count(w)) for w in set(words))
    held = loader(Counted, ROWS, SCHEMA, transform_sql="SELECT word FROM source")
    with pytest.raises(DataError, match="has no column 'n'"):
        held.sync()
    held = loader(Counted, ROWS, SCHEMA, transform_sql="SELECT nothing AS n FROM source")
    with pytest.raises(EmatixError, match=r"transform_sql=.*nothing"):
        held.sync()


@pytest.mark.needs("source", "replace")
def test_transform_sql_over_a_query(backend: Harness, loader: Loader) -> None:
    loader(Words, ROWS, SCHEMA).sync()

    @ematix.pipeline(
        target=Counted,
        target_connection="target",
        source_table="steps.words",
        mode="truncate",
        transform_sql="SELECT coalesce(word, '?') AS word, count(*) AS n FROM source GROUP BY 1",
    )
    def count_words() -> None: ...

    assert count_words.validate().ok
    shown = count_words.preview()
    assert (shown.path, "GROUP BY 1" in str(shown.transform_sql)) == ("spark", True)
    assert count_words.sync().path == "spark"
    words = [w or "?" if w != "" else "" for _, w, _ in stored(backend)]
    assert stored(backend, Counted) == sorted((w, words.count(w)) for w in set(words))


@pytest.mark.needs("same_database", "source", "replace")
def test_both_paths_leave_the_same_rows(backend: Harness, loader: Loader) -> None:
    loader(Raw, ROWS, SCHEMA).sync()

    @ematix.pipeline(
        target=Words,
        target_connection="target",
        source_table="steps.raw",
        mode="truncate",
        transforms_pre=CHOOSE,
    )
    def choose() -> None: ...

    inside = choose.sync()
    first = stored(backend)
    assert first == first_of_each_word()
    assert choose.sync(force_path="spark").path == "spark"
    assert stored(backend) == first
    assert inside.path == choose.preview().path
    if inside.path == "spark":
        assert inside.path_reason


@pytest.mark.needs("statements", "source")
def test_what_follows_a_load(backend: Harness, loader: Loader) -> None:
    spelled = backend.spelled(Words.__table__.name)
    told: list[Any] = []

    @ematix.transform(name="more")
    def more(conn: Any) -> str:
        return f"UPDATE {spelled} SET grade = 100 WHERE id = 2"

    def look(target: Any, run: Any) -> dict[str, int]:
        told.append((run.id, target.query(f"SELECT grade FROM {spelled} ORDER BY id")))
        return {"looked": 1}

    steps = [f"UPDATE {spelled} SET grade = 50 WHERE id = 1", ematix.transform_ref("more"), look]
    held = loader(Words, ROWS, SCHEMA, transforms_post=steps)
    assert [s.partition(" SET")[0] for s in held.preview().transforms_post] == [
        f"UPDATE {spelled}",
        "transform more",
        "function look",
    ]
    assert held.dry_run().post == ()
    assert not backend.exists(backend.connection("target"), Words.__table__.name)
    result = held.sync()
    assert [step.status for step in result.post] == ["succeeded"] * 3
    ((run_id, grades),) = told
    assert run_id == result.run_id
    assert [row["grade"] for row in grades][:2] == [50, 100]
    log = open_run_log()
    records = {r.step: r for r in log.get(result.run_id)}
    log.close()
    assert set(records) == {"load", "post:1", "post:2", "post:3"}
    assert {r.status for r in records.values()} == {"succeeded"}
    assert records["post:3"].metrics == {"looked": 1}
    assert records["post:1"].parent_id == result.run_id
    assert "SET grade = 50" in records["post:1"].source


@pytest.mark.needs("source")
def test_a_step_that_fails_leaves_the_load(backend: Harness, loader: Loader) -> None:
    after: list[str] = []

    def fail(conn: Any) -> None:
        raise ValueError("no luck")

    def note() -> None:
        after.append("ran")

    held = loader(Words, ROWS[:1], SCHEMA, transforms_post=[fail, note])
    with pytest.raises(RunError) as caught:
        held.sync()
    assert "step 1 of transforms_post= (fail) failed" in str(caught.value)
    assert "the load into steps.words had been committed and stays" in str(caught.value)
    assert "raised ValueError: no luck" in str(caught.value)
    assert (len(stored(backend)), after) == (1, [])
    log = open_run_log()
    last = log.last(held.name, declared_in=held.spec.location.file)
    assert last is not None
    assert (last.step, last.status, last.error_class) == ("post:1", "failed", "RunError")

    goes_on = {"transforms_post": [fail, note], "continue_on_failure_post": True}
    result = loader(Words, [(50, "x", 1, "")], SCHEMA, **goes_on).sync()
    assert [(s.name, s.status) for s in result.post] == [("fail", "failed"), ("note", "succeeded")]
    assert "no luck" in str(result.post[0].error)
    assert (len(stored(backend)), after) == (2, ["ran"])
    last = log.last(held.name, declared_in=held.spec.location.file)
    log.close()
    assert last is not None
    assert (last.step, last.status) == ("load", "succeeded")


def test_targets_without_statements_say_so(tmp_path: Any, engine: object) -> None:
    from ematix_flow import ObjectStoreLocalConnection

    register_connection(ObjectStoreLocalConnection(name="lake", path=str(tmp_path / "lake")))
    register_connection(DuckDBConnection(name="rows", path=str(tmp_path / "rows.duckdb")))

    @ematix.pipeline(
        target=Words,
        target_connection="lake",
        source_connection="rows",
        transforms_post=["ANALYZE steps.words"],
    )
    def load(conn: Any) -> str:
        return "SELECT 1 AS id, 'a' AS word, 1 AS grade"

    for ask in (load.sync, load.preview, load.dry_run):
        with pytest.raises(Unsupported, match=r"runs no statements.*cannot hold SQL"):
            ask()
    assert not (tmp_path / "lake").exists()
