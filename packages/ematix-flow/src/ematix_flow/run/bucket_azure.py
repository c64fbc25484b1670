"""A container of Azure Blob Storage, by Microsoft's own client."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from azure.core import MatchConditions
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceModifiedError,
    ResourceNotFoundError,
)
from azure.storage.blob import BlobServiceClient

from ematix_flow.errors import RunLogUnavailable
from ematix_flow.redaction import remember_secret
from ematix_flow.run.buckets import CLOCK, BucketUrl, unavailable

_FORBIDDEN = 403
_CONDITION_FAILED = (409, 412)


class AzureBucket:
    """One container; credentials come from the environment, or from ``azure-identity``."""

    def __init__(self, url: BucketUrl) -> None:
        self.url = url
        settings: dict[str, Any] = {"retry_total": 2, "connection_timeout": 5, "read_timeout": 20}
        text = os.environ.get("AZURE_STORAGE_CONNECTION_STRING")
        try:
            if text and f"AccountName={url.account};" in f"{text};" and url.endpoint is None:
                remember_secret(text)
                service = BlobServiceClient.from_connection_string(text, **settings)
            else:
                endpoint = url.endpoint or f"https://{url.account}.blob.core.windows.net"
                service = BlobServiceClient(endpoint, credential=self._credential(), **settings)
        except (AzureError, ValueError) as error:
            raise self._refused(error) from error
        self._service = service
        self._container = service.get_container_client(url.bucket)

    def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str | None:
        """Write an object; its new tag, or None where the condition does not hold."""
        condition: dict[str, Any] = {"overwrite": not if_absent}
        if if_match is not None:
            condition |= {"etag": if_match, "match_condition": MatchConditions.IfNotModified}
        conditional = if_absent or if_match is not None
        try:
            answer = self._container.get_blob_client(self.url.key(key)).upload_blob(
                data, **condition
            )
        except (ResourceExistsError, ResourceModifiedError):
            return None
        except HttpResponseError as error:
            if conditional and (
                error.status_code in _CONDITION_FAILED or _code(error) == "BlobNotFound"
            ):
                return None
            raise self._refused(error) from error
        except AzureError as error:
            raise self._refused(error) from error
        return str(answer["etag"])

    def get(self, key: str) -> bytes | None:
        """An object, or None where there is none."""
        found = self.get_tagged(key)
        return None if found is None else found[0]

    def get_tagged(self, key: str) -> tuple[bytes, str] | None:
        """An object and its tag."""
        try:
            stream = self._container.get_blob_client(self.url.key(key)).download_blob()
            return stream.readall(), str(stream.properties.etag)
        except ResourceNotFoundError as error:
            if _code(error) == "BlobNotFound":
                return None
            raise self._refused(error) from error
        except AzureError as error:
            raise self._refused(error) from error

    def list(self, prefix: str, *, after: str = "", page: int = 1000) -> Iterator[str]:
        """Keys in their order."""
        start = self.url.key(after) if after else ""
        try:
            for name in self._container.list_blob_names(
                name_starts_with=self.url.key(prefix), results_per_page=page
            ):
                # Not every version of the store can be asked to start behind a key.
                if name > start:
                    yield self.url.name(name)
        except AzureError as error:
            raise self._refused(error) from error

    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""
        try:
            self._container.get_blob_client(self.url.key(key)).delete_blob()
        except ResourceNotFoundError as error:
            if _code(error) != "BlobNotFound":
                raise self._refused(error) from error
        except AzureError as error:
            raise self._refused(error) from error

    def clock(self) -> datetime:
        """The time by the store's own clock."""
        blob = self._container.get_blob_client(self.url.key(CLOCK))
        try:
            written: datetime = blob.upload_blob(b"", overwrite=True)["date"]
        except AzureError as error:
            raise self._refused(error) from error
        return written

    def close(self) -> None:
        """Give back connections."""
        self._service.close()

    def _credential(self) -> Any:
        for name in ("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"):
            if value := os.environ.get(name):
                remember_secret(value)
                return value
        try:
            from azure.identity import DefaultAzureCredential
        except ImportError as error:
            raise unavailable(
                self.url,
                "no credentials were found",
                fix="set AZURE_STORAGE_CONNECTION_STRING or AZURE_STORAGE_KEY, or install "
                "azure-identity and log in with: az login",
            ) from error
        return DefaultAzureCredential()

    def _refused(self, error: Exception) -> RunLogUnavailable:
        code = _code(error)
        if code == "ContainerNotFound":
            return unavailable(self.url, "there is no such container")
        if isinstance(error, ClientAuthenticationError) or (
            isinstance(error, HttpResponseError) and error.status_code == _FORBIDDEN
        ):
            return unavailable(self.url, "access is denied: the key or the rights are wrong")
        return unavailable(self.url, f"the store says {code}" if code else type(error).__name__)


def _code(error: Exception) -> str:
    return str(getattr(error, "error_code", "") or "").rpartition(".")[2]
