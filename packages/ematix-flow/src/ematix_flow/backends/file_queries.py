"""Spark SQL over files: which names it reads, what columns it gives, how Spark runs it.

The user's text is run as written; only the names of tables and files in it are replaced.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import Scope, build_scope, traverse_scope
from sqlglot.schema import MappingSchema

from ematix_flow import types as t
from ematix_flow.backends.base import SourceColumn
from ematix_flow.connections import format_from_path, nearest
from ematix_flow.errors import DataError, Unsupported
from ematix_flow.sql.identifiers import bare, parse_query
from ematix_flow.sql.spark import as_form, from_spark, quote, spark_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ematix_flow.backends.file_sources import Relation, Store

# As the engine resolves names: exactly as they are written.
_DIALECT = "spark, normalization_strategy = case_sensitive"
_FORMATS = {"parquet": "parquet", "csv": "csv", "orc": "orc", "json": "json_lines"}
_RELATION = "ematix_relation_{}"


@dataclass(frozen=True)
class FileQuery:
    """A query whose names were looked up in a store."""

    sql: str
    tree: exp.Query
    relations: dict[str, Relation]
    unaliased: frozenset[tuple[str, str]]

    def run(self, spark: SparkSession) -> DataFrame:
        """The rows, each column in the Spark form of its logical type."""
        rows = self._rows(spark)
        return rows.selectExpr(
            *(f"{as_form(f.name, f.dataType)} AS {quote(f.name)}" for f in rows.schema.fields)
        )

    def _rows(self, spark: SparkSession) -> DataFrame:
        frames: dict[str, Any] = {n: r.load(spark) for n, r in self.relations.items()}
        rows = spark.sql(self.sql, **frames) if frames else spark.sql(self.sql)
        for name in rows.columns:
            if rows.columns.count(name) > 1:
                raise DataError(
                    f"the query gives two columns named {name!r}", fix="rename one with AS"
                )
        return rows

    def described_by(self, spark: SparkSession) -> tuple[SourceColumn, ...]:
        """The columns, as Spark's own analysis sees them; no row is read."""
        rows = self._rows(spark)
        direct = {c.name: c.type for c in self._outline if c.exact}
        columns = []
        for column in rows.schema.fields:
            logical = direct.get(column.name) or from_spark(column.dataType)
            if logical is None:
                raise Unsupported(
                    f"column {column.name!r} of the query has Spark type "
                    f"{column.dataType.simpleString()}, which no column type stands for",
                    fix="cast it in the query",
                )
            columns.append(SourceColumn(column.name, logical))
        return tuple(columns)

    def described(self) -> tuple[SourceColumn, ...] | None:
        """The columns without Spark, or None where only Spark can tell."""
        outline = self._outline
        if not outline or any(c.type is None for c in outline):
            return None
        return tuple(SourceColumn(c.name, c.type) for c in outline if c.type is not None)

    @property
    def is_exact(self) -> bool:
        """Whether every column is one of a file or a cast, so that Spark adds no knowledge."""
        outline = self._outline
        return bool(outline) and all(c.exact for c in outline)

    @cached_property
    def _outline(self) -> list[_Output]:
        if not all(isinstance(s, exp.Alias | exp.Column | exp.Star) for s in self.tree.selects):
            return []  # Spark makes up the names of the others
        renamed = self.tree.copy()
        for column in renamed.find_all(exp.Column):
            if _is_qualified(column, self.unaliased):
                column.set("db", None)
        for table, name in zip(_tables(renamed), self.relations, strict=True):
            alias = _alias(table)
            if not table.alias and alias:
                table.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
            for part in ("db", "catalog"):
                table.set(part, None)
            table.set("this", exp.to_identifier(name, quoted=True))
        schema = MappingSchema(
            {
                name: {quote(c.name): spark_ddl(c.type) for c in relation.columns}
                for name, relation in self.relations.items()
            },
            dialect=_DIALECT,
        )
        try:
            qualified = qualify(renamed, dialect=_DIALECT, schema=schema, quote_identifiers=False)
            annotated = annotate_types(qualified, dialect="spark", schema=schema)
            scope = build_scope(annotated)
        except SqlglotError as error:
            self._explain(error)
            return []
        if scope is None or not isinstance(annotated, exp.Query):
            return []
        return [
            _Output(projection.alias_or_name, *self._type(scope, n, projection))
            for n, projection in enumerate(annotated.selects)
        ]

    def _explain(self, error: SqlglotError) -> None:
        """Name a column that is in none of the files; anything else is left to Spark."""
        known = {c.name for relation in self.relations.values() for c in relation.columns}
        generated = self.tree.find(exp.Lateral, exp.UDTF, exp.Dot, exp.Lambda, exp.Values)
        if not known or generated is not None:
            return
        named = {a.alias for a in self.tree.find_all(exp.Alias, exp.CTE, exp.Subquery)}
        for alias in self.tree.find_all(exp.TableAlias):
            named |= {part.name for part in alias.find_all(exp.Identifier)}
        for column in self.tree.find_all(exp.Column):
            if isinstance(column.this, exp.Identifier) and column.name not in known | named:
                raise DataError(
                    f"the query names column {column.name!r}, which is in none of its files",
                    fix=nearest(column.name, known),
                ) from error

    def _type(self, scope: Scope, position: int, projection: exp.Expr) -> _Typed:
        if isinstance(scope.expression, exp.SetOperation):
            branches = []
            for branch in scope.set_operation_scopes:
                query = branch.expression
                if not isinstance(query, exp.Query) or position >= len(query.selects):
                    return None, False
                branches.append(self._type(branch, position, query.selects[position]))
            kinds = {found for found, _ in branches}
            return (kinds.pop(), all(e for _, e in branches)) if len(kinds) == 1 else (None, False)
        value = projection.unalias()
        if isinstance(value, exp.Column):
            return self._column_type(scope, value)
        if isinstance(value, exp.Cast) and value.to is not None:
            return _from_sqlglot(value.to), True
        if isinstance(value, exp.Count):
            return t.BigInt(), True
        found = _from_sqlglot(value.type) if isinstance(value.type, exp.DataType) else None
        # Spark's arithmetic on decimals and literals is its own; only it can tell the result.
        uncertain = found is not None and found.kind in ("numeric", "double", "float", "array")
        return (None if uncertain else found), False

    def _column_type(self, scope: Scope, column: exp.Column) -> _Typed:
        source = scope.sources.get(column.table)
        if isinstance(source, exp.Table):
            relation = self.relations.get(source.name)
            if relation is not None:
                types = {c.name: c.type for c in relation.columns}
                return types.get(column.name), column.name in types
        elif isinstance(source, Scope) and isinstance(source.expression, exp.Query):
            for n, inner in enumerate(source.expression.selects):
                if inner.alias_or_name == column.name:
                    return self._type(source, n, inner)
        return None, False


_Typed = tuple[t.ColumnType | None, bool]


@dataclass(frozen=True)
class _Output:
    name: str
    type: t.ColumnType | None
    exact: bool


def look_up(sql: str, store: Store) -> FileQuery:
    """A query over the tables and files of a store."""
    text = bare(sql, "spark")
    tree = parse_query(text, "spark")
    relations: dict[str, Relation] = {}
    edits: list[tuple[int, int, str]] = []
    unaliased: set[tuple[str, str]] = set()
    for n, table in enumerate(_tables(tree)):
        name = _RELATION.format(n)
        relations[name] = _relation(table, store)
        start = table.parts[0].meta["start"]
        end = table.parts[-1].meta["end"] + 1
        alias = "" if table.alias else _alias(table)
        shown = f" AS {_escaped(quote(alias))}" if alias else ""
        edits.append((start, end, f"{{{name}}}{shown}"))
        if not table.alias and table.db:
            unaliased.add((table.db, table.name))
    for column in tree.find_all(exp.Column):
        if _is_qualified(column, unaliased):
            first, second = column.args["db"].meta["start"], column.args["table"].meta["start"]
            edits.append((first, second, ""))
    return FileQuery(_edited(text, edits), tree, relations, frozenset(unaliased))


def _is_qualified(column: exp.Column, unaliased: Collection[tuple[str, str]]) -> bool:
    """Whether a column is written ``schema.table.column``; Spark knows the relation as table."""
    return bool(column.db) and (column.db, column.table) in unaliased


def _edited(text: str, edits: list[tuple[int, int, str]]) -> str:
    """The text with its edits; braces of the user's own are doubled, as Spark wants them."""
    if not edits:
        return text
    done, at = "", 0
    for start, end, new in sorted(edits):
        done += _escaped(text[at:start]) + new
        at = end
    return done + _escaped(text[at:])


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _tables(tree: exp.Query) -> list[exp.Table]:
    """The tables a query reads: neither its own CTEs nor table functions."""
    found: dict[int, exp.Table] = {}
    for scope in traverse_scope(tree):
        for source in scope.sources.values():
            if isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier):
                found[id(source)] = source
    return sorted(found.values(), key=lambda table: int(table.this.meta["start"]))


def _relation(table: exp.Table, store: Store) -> Relation:
    parts = [part.name for part in table.parts]
    if len(parts) == 2 and parts[0].lower() in _FORMATS and is_path(parts[1]):  # noqa: PLR2004
        return store.path(parts[1], format=_FORMATS[parts[0].lower()])
    if len(parts) == 1 and table.this.args.get("quoted") and is_path(parts[0]):
        return store.path(parts[0])
    return store.table(parts)


def is_path(text: str) -> bool:
    """Whether a quoted name is a file, folder or glob rather than a table."""
    return "/" in text or "*" in text or format_from_path(text) is not None


def _alias(table: exp.Table) -> str:
    """The name by which columns of a table without alias may be qualified."""
    name = str(table.name)
    if not is_path(name):
        return name
    stem = PurePosixPath(name).name.partition(".")[0]
    return "" if "*" in stem else stem


def _from_sqlglot(data_type: Any) -> t.ColumnType | None:
    """The logical type of a Spark type as sqlglot spells it."""
    kind = exp.DataType.Type
    if data_type.this == kind.DECIMAL:
        sizes = [int(p.name) for p in data_type.expressions]
        precision, scale = (*sizes, *(10, 0)[len(sizes) :])
        return t.Numeric(precision, scale)
    if data_type.this == kind.ARRAY and data_type.expressions:
        element = _from_sqlglot(data_type.expressions[0])
        return None if element is None else t.Array(element)
    plain: dict[Any, t.ColumnType] = {
        kind.TINYINT: t.SmallInt(),
        kind.SMALLINT: t.SmallInt(),
        kind.INT: t.Integer(),
        kind.BIGINT: t.BigInt(),
        kind.FLOAT: t.Float(),
        kind.DOUBLE: t.Double(),
        kind.BOOLEAN: t.Boolean(),
        kind.TEXT: t.Text(),
        kind.VARCHAR: t.Text(),
        kind.CHAR: t.Text(),
        kind.DATE: t.Date(),
        kind.TIMESTAMPNTZ: t.Timestamp(),
        kind.TIMESTAMPTZ: t.TimestampTZ(),
        kind.TIMESTAMP: t.TimestampTZ(),
        kind.TIMESTAMPLTZ: t.TimestampTZ(),
        kind.BINARY: t.Bytes(),
    }
    return plain.get(data_type.this)
