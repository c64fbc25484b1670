"""A bucket of Google Cloud Storage, by Google's own client."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from google.api_core.exceptions import (
    Forbidden,
    GoogleAPIError,
    NotFound,
    PreconditionFailed,
    Unauthorized,
)
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.cloud import storage
from google.cloud.storage.retry import DEFAULT_RETRY
from requests.exceptions import RequestException

from ematix_flow.errors import RunLogUnavailable
from ematix_flow.run.buckets import CLOCK, BucketUrl, unavailable

_FAILURES = (GoogleAPIError, GoogleAuthError, RequestException, OSError)
# A run must not wait long for a log that is down: its records are kept meanwhile.
_TIMEOUT = (5, 20)
_RETRY = DEFAULT_RETRY.with_timeout(10.0)


class GcsBucket:
    """One bucket; credentials come from where Google's tools look for them."""

    def __init__(self, url: BucketUrl) -> None:
        self.url = url
        options: dict[str, Any] = {}
        if url.endpoint is not None:
            options["client_options"] = {"api_endpoint": url.endpoint}
            if url.endpoint.startswith("http://"):
                # A stand-in on this machine: a real token is never sent in the clear.
                options |= {"credentials": AnonymousCredentials(), "project": "none"}  # type: ignore[no-untyped-call]
        try:
            self._client: Any = storage.Client(**options)
        except _FAILURES as error:
            raise self._refused(error) from error
        self._bucket = self._client.bucket(url.bucket)

    def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str | None:
        """Write an object; its generation, or None where the condition does not hold."""
        expected = 0 if if_absent else None if if_match is None else int(if_match)
        blob = self._bucket.blob(self.url.key(key))
        try:
            blob.upload_from_string(
                data,
                content_type="application/json",
                if_generation_match=expected,
                timeout=_TIMEOUT,
                retry=_RETRY,
            )
        except PreconditionFailed:
            return None
        except NotFound as error:
            if if_match is not None and self.get(key) is None:
                return None
            raise self._refused(error) from error
        except _FAILURES as error:
            raise self._refused(error) from error
        return str(blob.generation)

    def get(self, key: str) -> bytes | None:
        """An object, or None where there is none."""
        return self._download(self._bucket.blob(self.url.key(key)))

    def get_tagged(self, key: str) -> tuple[bytes, str] | None:
        """An object and its generation."""
        while True:
            try:
                blob = self._bucket.get_blob(self.url.key(key), timeout=_TIMEOUT, retry=_RETRY)
            except _FAILURES as error:
                raise self._refused(error) from error
            if blob is None:
                return None
            data = self._download(blob, generation=blob.generation)
            # Written again in between, where there is none of that generation: ask once more.
            if data is not None:
                return data, str(blob.generation)

    def list(self, prefix: str, *, after: str = "", page: int = 1000) -> Iterator[str]:
        """Keys in their order."""
        # The store's own start counts, too, where a key is the same.
        start = f"{self.url.key(after)}\0" if after else None
        try:
            for blob in self._client.list_blobs(
                self.url.bucket,
                prefix=self.url.key(prefix),
                start_offset=start,
                page_size=page,
                fields="items(name),nextPageToken",
                timeout=_TIMEOUT,
                retry=_RETRY,
            ):
                yield self.url.name(blob.name)
        except _FAILURES as error:
            raise self._refused(error) from error

    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""
        try:
            self._bucket.blob(self.url.key(key)).delete(timeout=_TIMEOUT, retry=_RETRY)
        except NotFound:
            return
        except _FAILURES as error:
            raise self._refused(error) from error

    def clock(self) -> datetime:
        """The time by the store's own clock."""
        blob = self._bucket.blob(self.url.key(CLOCK))
        try:
            blob.upload_from_string(b"", timeout=_TIMEOUT, retry=_RETRY)
        except _FAILURES as error:
            raise self._refused(error) from error
        written: datetime = blob.updated
        return written

    def close(self) -> None:
        """Give back connections."""
        self._client.close()

    def _download(self, blob: Any, *, generation: int | None = None) -> bytes | None:
        try:
            data: bytes = blob.download_as_bytes(
                if_generation_match=generation, timeout=_TIMEOUT, retry=_RETRY
            )
        except (PreconditionFailed, NotFound):
            # That the bucket is missing is told by whatever lists or writes.
            return None
        except _FAILURES as error:
            raise self._refused(error) from error
        return data

    def _refused(self, error: Exception) -> RunLogUnavailable:
        if isinstance(error, DefaultCredentialsError):
            return unavailable(
                self.url,
                "no credentials were found",
                fix="run gcloud auth application-default login, or set "
                "GOOGLE_APPLICATION_CREDENTIALS",
            )
        if isinstance(error, NotFound):
            return unavailable(self.url, "there is no such bucket")
        if isinstance(error, Forbidden | Unauthorized):
            return unavailable(self.url, "access is denied")
        return unavailable(self.url, type(error).__name__)
