"""A bucket of an object store, as small as a run log needs it, and the URLs that name one.

The stores themselves are in ``bucket_s3``, ``bucket_gcs`` and ``bucket_azure``, imported
when one is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from urllib.parse import parse_qsl, unquote

from ematix_flow.connections import nearest
from ematix_flow.errors import ConfigError, MissingExtra, RunLogUnavailable, UnknownName
from ematix_flow.redaction import redact_text

S3, GCS, AZURE = "s3", "gcs", "azure"
SCHEMES = {"s3": S3, "gs": GCS, "gcs": GCS, "azure": AZURE, "azureblob": AZURE}
_OPTIONS = {S3: ("endpoint", "region"), GCS: ("endpoint",), AZURE: ("endpoint",)}
_FORMS = {
    S3: "s3://bucket/prefix?region=eu-central-1",
    GCS: "gs://bucket/prefix",
    AZURE: "azure://account/container/prefix",
}
_KEYS_PER_REQUEST = 1000


@dataclass(frozen=True)
class BucketUrl:
    """Where a bucket is; holds no secret, so it may be shown."""

    store: str
    bucket: str
    prefix: str
    account: str = ""
    region: str | None = None
    endpoint: str | None = None

    def __str__(self) -> str:
        parts = (self.account, self.bucket, self.prefix)
        return f"{self.store}://{'/'.join(part for part in parts if part)}"

    def key(self, name: str) -> str:
        """The whole key of what this log calls ``name``."""
        return f"{self.prefix}/{name}" if self.prefix else name

    def name(self, key: str) -> str:
        """What this log calls a whole key."""
        return key[len(self.prefix) + 1 :] if self.prefix else key


class Bucket(Protocol):
    """Objects by key. Whatever the store refuses is raised as ``RunLogUnavailable``.

    Every method may be called from several threads.
    """

    url: BucketUrl

    def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str | None:
        """Write an object; its new tag, or None where the condition does not hold.

        ``if_match`` is the tag that ``get_tagged`` or an earlier ``put`` returned: of several
        writers that saw the same object, one succeeds. Where an answer was lost on its way, None
        may be said of a write that was done: who must know reads the object again.
        """

    def get(self, key: str) -> bytes | None:
        """An object, or None where there is none."""

    def get_tagged(self, key: str) -> tuple[bytes, str] | None:
        """An object and its tag, for ``if_match``."""

    def list(self, prefix: str, *, after: str = "", page: int = _KEYS_PER_REQUEST) -> Iterator[str]:
        """Keys in their order, those after ``after`` only; asks for ``page`` of them at a time."""

    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""

    def clock(self) -> datetime:
        """The time by the store's own clock, to the second."""

    def close(self) -> None:
        """Give back connections."""


def parse_bucket_url(url: str) -> BucketUrl:
    """The bucket that a URL names; one that holds a secret is refused without being quoted."""
    scheme, _, rest = url.partition("://")
    store = SCHEMES[scheme]
    form = _FORMS[store]
    path, _, query = rest.partition("#")[0].partition("?")
    if "@" in path:
        raise ConfigError(
            f"the URL of a run log at {scheme}:// may not hold credentials",
            fix=f"write {form}; credentials come from where the tools of that store look for them",
        )
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in _OPTIONS[store]:
            raise UnknownName(
                f"a run log at {scheme}:// has no option {name!r}",
                fix=nearest(name, _OPTIONS[store]),
            )
    parts = [unquote(part) for part in path.split("/") if part]
    needed = 2 if store == AZURE else 1
    if len(parts) < needed:
        missing = "account and container" if store == AZURE else "bucket"
        raise ConfigError(f"a run log at {scheme}:// needs {missing}", fix=f"write {form}")
    endpoint = options.get("endpoint") or None
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise ConfigError(
            f"the endpoint of a run log at {scheme}:// must begin with https:// or http://",
            fix=f"write for example {form.partition('?')[0]}?endpoint=https://storage.example.com",
        )
    return BucketUrl(
        store=store,
        account=parts[0] if store == AZURE else "",
        bucket=parts[needed - 1],
        prefix="/".join(parts[needed:]),
        region=options.get("region") or None,
        endpoint=endpoint,
    )


def open_bucket(url: str) -> Bucket:
    """The bucket at ``url``; nothing is asked of it yet."""
    parsed = parse_bucket_url(url)
    try:
        return _OPENERS[parsed.store](parsed)
    except ImportError as error:
        raise MissingExtra(f"a run log at {parsed.store}://", f"runlog-{parsed.store}") from error


def _open_s3(url: BucketUrl) -> Bucket:
    from ematix_flow.run.bucket_s3 import S3Bucket

    return S3Bucket(url)


def _open_gcs(url: BucketUrl) -> Bucket:
    from ematix_flow.run.bucket_gcs import GcsBucket

    return GcsBucket(url)


def _open_azure(url: BucketUrl) -> Bucket:
    from ematix_flow.run.bucket_azure import AzureBucket

    return AzureBucket(url)


_OPENERS: dict[str, Callable[[BucketUrl], Bucket]] = {
    S3: _open_s3,
    GCS: _open_gcs,
    AZURE: _open_azure,
}


CLOCK = "clock"
"""The object that is written to learn the time."""


def unavailable(url: BucketUrl, reason: str, *, fix: str = "") -> RunLogUnavailable:
    """What a store says when it does not do what it was asked for."""
    return RunLogUnavailable(
        redact_text(f"the run log {url} cannot be used: {reason}"),
        fix=fix or "correct it, or name another with --run-log",
    )
