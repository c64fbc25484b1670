"""Cloud warehouses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ematix_flow.connections.base import Connection
from ematix_flow.connections.databases import ServerConnection


@dataclass(frozen=True, repr=False, kw_only=True)
class SnowflakeConnection(Connection):
    """A Snowflake warehouse."""

    account: str | None = None
    user: str | None = None
    password: str | None = None
    private_key: str | None = None
    warehouse: str | None = None
    database: str | None = None
    schema: str | None = None
    role: str | None = None
    kind: ClassVar[str] = "snowflake"
    required: ClassVar[tuple[str, ...]] = ("account", "user")


@dataclass(frozen=True, repr=False, kw_only=True)
class BigQueryConnection(Connection):
    """A BigQuery project."""

    project: str | None = None
    dataset: str | None = None
    credentials_path: str | None = None
    location: str | None = None
    kind: ClassVar[str] = "bigquery"
    required: ClassVar[tuple[str, ...]] = ("project",)


@dataclass(frozen=True, repr=False, kw_only=True)
class RedshiftConnection(ServerConnection):
    """An Amazon Redshift warehouse."""

    s3_staging_dir: str | None = None
    iam_role: str | None = None
    kind: ClassVar[str] = "redshift"
    schemes: ClassVar[tuple[str, ...]] = ("redshift",)
