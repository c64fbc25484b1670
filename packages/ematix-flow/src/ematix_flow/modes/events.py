"""``scd2`` over events: the history of every key that arrives, computed anew from all its events.

An event is a row with an instant. Of the events at one instant a delete wins, then the greatest
row hash. What the stored versions alone cannot tell (events that changed nothing, deletes) is
kept in ``side``; the history is therefore the same for every order and batching of the events.
"""

from __future__ import annotations

from collections.abc import Sequence

from ematix_flow.change import SIDE, Assertion, Change, Effect, Revise
from ematix_flow.model import (
    DELETED_COLUMN,
    EVENT_AT_COLUMN,
    IS_CURRENT_COLUMN,
    LOADED_AT_COLUMN,
    ROW_HASH_COLUMN,
    RUN_ID_COLUMN,
    VALID_FROM_COLUMN,
    VALID_TO_COLUMN,
    LoadOptions,
    Table,
)
from ematix_flow.modes.arriving import no_null, requirements
from ematix_flow.modes.base import Shape
from ematix_flow.modes.sql import (
    comparable,
    differs,
    later,
    moment,
    name,
    names,
    parsed,
    same,
    stamped,
    unmatched,
    value,
)

_AT = name(EVENT_AT_COLUMN)
_GONE = name(DELETED_COLUMN)


def event_change(
    shape: Shape,
    side: Table,
    columns: Sequence[str],
    options: LoadOptions,
    *,
    sound: tuple[Assertion, ...],
    again: str | None = None,
) -> Change:
    """The versions and the side events of every touched key, as changes to what is stored.

    With ``again``, an instant, what is stored of the events from then on is forgotten first.
    """
    data = tuple(c.name for c in shape.incoming if c.name not in (EVENT_AT_COLUMN, DELETED_COLUMN))
    effects = {
        "insert": Effect("insert", "inserted"),
        "update": Effect("update", "updated"),
        "close": Effect("update", "closed"),
        "expire": Effect("update", "closed"),
        "retract": Effect("delete", "deleted"),
    }
    silent = {act: Effect(act) for act in ("insert", "update", "delete")}
    event_column = options.event_timestamp_column or ""
    return Change(
        derived={"history": parsed(_history(shape.key, data, options, again))},
        steps=(
            Revise(
                parsed(_version_changes(shape.key, data, columns, options, again)),
                (*shape.key, VALID_FROM_COLUMN),
                effects,
            ),
            Revise(
                parsed(_side_changes(shape.key, side.column_names, again)),
                (*shape.key, EVENT_AT_COLUMN),
                silent,
                SIDE,
            ),
        ),
        assertions=(
            no_null(EVENT_AT_COLUMN, f"the event time {event_column!r}"),
            *requirements(shape, options, one_each=False),
            *sound,
        ),
    )


def _touched(key: Sequence[str], again: str | None) -> str:
    if again is None:
        return f"SELECT DISTINCT {names(key)} FROM incoming"
    start = value(again, VALID_FROM_COLUMN)
    began, ended = name(VALID_FROM_COLUMN), name(VALID_TO_COLUMN)
    return (
        f"SELECT {names(key)} FROM incoming "
        f"UNION SELECT {names(key)} FROM current WHERE {began} >= {start} OR {ended} >= {start} "
        f"UNION SELECT {names(key)} FROM side WHERE {_AT} >= {start}"
    )


def _before(instant: str, again: str | None) -> str:
    return "TRUE" if again is None else f"{instant} < {value(again, VALID_FROM_COLUMN)}"


def _history(
    key: Sequence[str], data: Sequence[str], options: LoadOptions, again: str | None
) -> str:
    """One row per instant of every touched key: its version's number, begin, size and place."""
    listed = names(data)
    compared = options.compare_columns or tuple(
        c for c in data if c not in (*key, ROW_HASH_COLUMN, options.event_timestamp_column)
    )
    keys = names(key)
    by_time = f"OVER (PARTITION BY {keys} ORDER BY {_AT})"
    turned = [f"{_GONE} IS DISTINCT FROM LAG({_GONE}) {by_time}"]
    turned += [
        f"(NOT {_GONE} AND {comparable(c)} IS DISTINCT FROM LAG({comparable(c)}) {by_time})"
        for c in compared
    ]
    stored = (
        f"SELECT {names(data, 'c')}, {name(VALID_FROM_COLUMN, 'c')} AS {_AT}, FALSE AS {_GONE}, "
        f"0 AS _em_fresh FROM current AS c JOIN ({_touched(key, again)}) AS t "
        f"ON {same('c', 't', key)} WHERE {_before(name(VALID_FROM_COLUMN, 'c'), again)} "
        f"AND NOT EXISTS (SELECT 1 FROM side AS s WHERE {same('s', 'c', key)} "
        f"AND {name(EVENT_AT_COLUMN, 's')} = {name(VALID_FROM_COLUMN, 'c')})"
    )
    aside = (
        f"SELECT {names(data, 's')}, {name(EVENT_AT_COLUMN, 's')}, {name(DELETED_COLUMN, 's')}, "
        f"0 AS _em_fresh FROM side AS s JOIN ({_touched(key, again)}) AS t "
        f"ON {same('s', 't', key)} WHERE {_before(name(EVENT_AT_COLUMN, 's'), again)}"
    )
    arrived = f"SELECT {listed}, {_AT}, {_GONE}, 1 AS _em_fresh FROM incoming"
    best = f"{_GONE} DESC, {name(ROW_HASH_COLUMN)} DESC, _em_fresh"
    return (
        f"WITH events AS ({arrived} UNION ALL {aside} UNION ALL {stored}), "
        f"ranked AS (SELECT {listed}, {_AT}, {_GONE}, ROW_NUMBER() OVER "
        f"(PARTITION BY {keys}, {_AT} ORDER BY {best}) AS _em_place FROM events), "
        f"marked AS (SELECT {listed}, {_AT}, {_GONE}, "
        f"CASE WHEN {' OR '.join(turned)} THEN 1 ELSE 0 END AS _em_starts "
        "FROM ranked WHERE _em_place = 1), "
        f"numbered AS (SELECT {listed}, {_AT}, {_GONE}, SUM(_em_starts) OVER (PARTITION BY {keys} "
        f"ORDER BY {_AT} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS _em_version "
        "FROM marked) "
        f"SELECT {listed}, {_AT}, {_GONE}, "
        f"MIN({_AT}) OVER (PARTITION BY {keys}, _em_version) AS _em_began, "
        f"COUNT(*) OVER (PARTITION BY {keys}, _em_version) AS _em_size, "
        f"ROW_NUMBER() OVER (PARTITION BY {keys}, _em_version ORDER BY {_AT} DESC) AS _em_back "
        "FROM numbered"
    )


def _version_changes(
    key: Sequence[str],
    data: Sequence[str],
    columns: Sequence[str],
    options: LoadOptions,
    again: str | None,
) -> str:
    stamps = [c for c in columns if c in (RUN_ID_COLUMN, LOADED_AT_COLUMN)]
    kept = [c for c in columns if c not in stamps]
    new = f"{name(key[0], 'c')} IS NULL"
    only_end = (
        f"{name(VALID_TO_COLUMN, 'c')} IS NULL AND {name(VALID_TO_COLUMN, 'v')} IS NOT NULL "
        f"AND NOT {differs('v', 'c', data)}"
    )
    at_start = f"{name(VALID_FROM_COLUMN, 'c')} = {name(VALID_FROM_COLUMN, 'v')}"
    fresh = ", ".join(f"{stamped(c, name(c, 'v'))} AS {name(c)}" for c in columns)
    parts = [
        f"SELECT CASE WHEN {new} THEN 'insert' WHEN {only_end} THEN 'close' ELSE 'update' END "
        f"AS _op, {fresh} FROM versions AS v LEFT JOIN current AS c "
        f"ON {same('c', 'v', key)} AND {at_start} "
        f"WHERE {new} OR {differs('v', 'c', [c for c in kept if c not in key])}",
        f"SELECT 'retract' AS _op, {names(columns, 'c')} FROM current AS c "
        f"JOIN ({_touched(key, again)}) AS t ON {same('c', 't', key)} "
        f"{unmatched('versions', 'v', key, at_start)}",
    ]
    if options.ttl_seconds is not None:
        parts.append(_expired(key, columns, options.ttl_seconds, again))
    return (
        f"WITH latest AS (SELECT {names(data)}, {_GONE}, _em_began, LEAD(_em_began) OVER "
        f"(PARTITION BY {names(key)} ORDER BY _em_began) AS _em_ended "
        "FROM history WHERE _em_back = 1), "
        f"versions AS ({_versions(data, options)}) " + " UNION ALL ".join(parts)
    )


def _versions(data: Sequence[str], options: LoadOptions) -> str:
    ended, open_ended = "_em_ended", "_em_ended IS NULL"
    if options.ttl_seconds is not None:
        aged = later("_em_began", options.ttl_seconds)
        expired = f"{aged} < _em_ended OR (_em_ended IS NULL AND {aged} <= {moment()})"
        ended = f"CASE WHEN {expired} THEN {aged} ELSE _em_ended END"
        open_ended = f"(_em_ended IS NULL AND {aged} > {moment()})"
    return (
        f"SELECT {names(data)}, _em_began AS {name(VALID_FROM_COLUMN)}, "
        f"{ended} AS {name(VALID_TO_COLUMN)}, "
        f"CASE WHEN {open_ended} THEN TRUE ELSE FALSE END AS {name(IS_CURRENT_COLUMN)} "
        f"FROM latest WHERE NOT {_GONE}"
    )


def _expired(key: Sequence[str], columns: Sequence[str], ttl: float, again: str | None) -> str:
    """Versions past their age, of keys about which nothing has arrived."""
    arrived = "incoming" if again is None else f"({_touched(key, again)})"
    aged = later(name(VALID_FROM_COLUMN, "c"), ttl)
    own = {VALID_TO_COLUMN: aged, IS_CURRENT_COLUMN: "FALSE"}
    values = ", ".join(f"{own.get(c) or stamped(c, name(c, 'c'))} AS {name(c)}" for c in columns)
    return (
        f"SELECT 'expire' AS _op, {values} FROM current AS c "
        f"{unmatched(arrived, 'i', key)} AND {name(IS_CURRENT_COLUMN, 'c')} "
        f"AND {aged} <= {moment()}"
    )


def _side_changes(key: Sequence[str], columns: Sequence[str], again: str | None) -> str:
    kept = f"SELECT {names(columns)} FROM history WHERE {_GONE} OR _em_size > 1"
    at = f"{name(EVENT_AT_COLUMN, 'c')} = {name(EVENT_AT_COLUMN, 'h')}"
    new = f"{name(key[0], 'c')} IS NULL"
    return (
        f"WITH kept AS ({kept}) "
        f"SELECT CASE WHEN {new} THEN 'insert' ELSE 'update' END AS _op, {names(columns, 'h')} "
        f"FROM kept AS h LEFT JOIN side AS c ON {same('c', 'h', key)} AND {at} WHERE {new} "
        f"OR {name(ROW_HASH_COLUMN, 'c')} <> {name(ROW_HASH_COLUMN, 'h')} "
        f"OR {name(DELETED_COLUMN, 'c')} <> {name(DELETED_COLUMN, 'h')} UNION ALL "
        f"SELECT 'delete' AS _op, {names(columns, 'c')} FROM side AS c "
        f"JOIN ({_touched(key, again)}) AS t ON {same('c', 't', key)} "
        f"{unmatched('kept', 'h', key, at)}"
    )
