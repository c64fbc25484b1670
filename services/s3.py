"""A real S3 server over a folder: versitygw, built from its Go module."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar
from uuid import uuid4

from services.golang import built
from services.service import Endpoint, Service

VERSION = "1.8.0"
_PACKAGE = "github.com/versity/versitygw/cmd/versitygw"
KEY_ID = "testkey"
REGION = "us-east-1"


@dataclass(frozen=True)
class S3Server:
    """A running server, as tests see it."""

    host: str
    port: int
    secret: str = field(repr=False)
    key_id: str = KEY_ID
    region: str = REGION

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{self.host}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What the usual clients look for."""
        return {
            "AWS_ACCESS_KEY_ID": self.key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": self.region,
        }

    def create_bucket(self) -> str:
        """Make an empty bucket with a fresh name; return it."""
        name = f"bucket-{uuid4().hex[:12]}"
        client = self.open()
        try:
            client.create_bucket(Bucket=name)
        finally:
            client.close()
        return name

    def open(self) -> Any:
        """A client that may do everything."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name=self.region,
            aws_access_key_id=self.key_id,
            aws_secret_access_key=self.secret,
            config=Config(connect_timeout=2, read_timeout=10, retries={"total_max_attempts": 1}),
        )


class S3(Service):
    """The server itself."""

    name: ClassVar[str] = "s3"

    def install(self) -> None:
        """Build it unless that has been done."""
        built(_PACKAGE, VERSION)

    def prepare(self, endpoint: Endpoint) -> None:
        """Make the folder of all buckets."""
        (endpoint.home / "data").mkdir()

    def command(self, endpoint: Endpoint) -> list[str]:
        """Return the server; its secret stands in the environment, not among its arguments."""
        server = [str(built(_PACKAGE, VERSION)), "--port", f"{endpoint.host}:{endpoint.port}"]
        keys = [f"ROOT_ACCESS_KEY={KEY_ID}", f"ROOT_SECRET_KEY={endpoint.secret}"]
        return ["env", *keys, *server, "--region", REGION, "posix", str(endpoint.home / "data")]

    def client(self, endpoint: Endpoint) -> S3Server:
        """Return the address and the keys."""
        return S3Server(endpoint.host, endpoint.port, endpoint.secret)

    def check(self, endpoint: Endpoint) -> None:
        """Ask for all buckets."""
        client = self.client(endpoint).open()
        try:
            client.list_buckets()
        finally:
            client.close()
