"""Brokers and schema registries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ematix_flow.connections.base import Connection, check_choice


@dataclass(frozen=True, repr=False, kw_only=True)
class SchemaRegistryConnection(Connection):
    """A Confluent-compatible schema registry."""

    url: str | None = None
    basic_auth_user: str | None = None
    basic_auth_password: str | None = None
    kind: ClassVar[str] = "schema_registry"
    required: ClassVar[tuple[str, ...]] = ("url",)


@dataclass(frozen=True, repr=False, kw_only=True)
class GlueSchemaRegistryConnection(Connection):
    """An AWS Glue schema registry."""

    registry_name: str | None = None
    region: str | None = None
    aws_profile: str | None = None
    aws_access_key_id: str | None = None
    aws_secret_access_key: str | None = None
    kind: ClassVar[str] = "glue_schema_registry"
    required: ClassVar[tuple[str, ...]] = ("registry_name",)


@dataclass(frozen=True, repr=False, kw_only=True)
class KafkaConnection(Connection):
    """A Kafka cluster."""

    bootstrap_servers: str | None = None
    group_id: str | None = None
    payload_format: str | None = None
    auto_offset_reset: str | None = None
    schema_registry_url: str | None = None
    schema_registry: str | Connection | None = None
    sasl_plain_username: str | None = None
    sasl_plain_password: str | None = None
    sasl_scram_username: str | None = None
    sasl_scram_password: str | None = None
    sasl_scram_mechanism: str | None = None
    msk_iam_region: str | None = None
    kind: ClassVar[str] = "kafka"
    required: ClassVar[tuple[str, ...]] = ("bootstrap_servers",)

    def check(self) -> None:
        """Refuse formats and mechanisms that do not exist."""
        check_choice(self, "payload_format", ("json", "raw_bytes", "avro", "protobuf"))
        check_choice(self, "auto_offset_reset", ("earliest", "latest"))
        check_choice(self, "sasl_scram_mechanism", ("sha-256", "sha-512"))


@dataclass(frozen=True, repr=False, kw_only=True)
class RabbitMQConnection(Connection):
    """A RabbitMQ broker."""

    amqp_url: str | None = None
    consumer_tag: str | None = None
    kind: ClassVar[str] = "rabbitmq"
    required: ClassVar[tuple[str, ...]] = ("amqp_url",)


@dataclass(frozen=True, repr=False, kw_only=True)
class PubSubConnection(Connection):
    """A Google Cloud Pub/Sub project."""

    project_id: str | None = None
    endpoint: str | None = None
    anonymous_auth: bool = False
    kind: ClassVar[str] = "pubsub"
    required: ClassVar[tuple[str, ...]] = ("project_id",)


@dataclass(frozen=True, repr=False, kw_only=True)
class KinesisConnection(Connection):
    """An AWS Kinesis stream."""

    stream_name: str | None = None
    region: str | None = None
    endpoint: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None
    kind: ClassVar[str] = "kinesis"
    required: ClassVar[tuple[str, ...]] = ("stream_name",)
