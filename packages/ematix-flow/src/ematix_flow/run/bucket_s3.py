"""A bucket of Amazon S3, or of what speaks its language, by boto3."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from ematix_flow.errors import RunLogUnavailable
from ematix_flow.run.buckets import CLOCK, BucketUrl, unavailable

_REASONS = {
    "NoSuchBucket": "there is no such bucket",
    "AccessDenied": "access is denied",
    "InvalidAccessKeyId": "the access key is not known",
    "SignatureDoesNotMatch": "the secret of the access key is wrong",
    "ExpiredToken": "the credentials have expired",
}
_CONDITION_FAILED = ("PreconditionFailed", "NoSuchKey")
_CONFLICT = "ConditionalRequestConflict"
_CONFLICTS = 5


class S3Bucket:
    """One bucket; credentials and region come from boto3's usual places."""

    def __init__(self, url: BucketUrl) -> None:
        self.url = url
        settings = Config(
            # A run must not wait long for a log that is down: its records are kept meanwhile.
            connect_timeout=5,
            read_timeout=20,
            retries={"mode": "standard", "total_max_attempts": 3},
            max_pool_connections=16,
            s3={"addressing_style": "path"} if url.endpoint else {},
            # Stores other than Amazon's do not know the newer checksums.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        try:
            session = boto3.session.Session()
            region = url.region or session.region_name or "us-east-1"
            self._client: Any = session.client(
                "s3", region_name=region, endpoint_url=url.endpoint, config=settings
            )
        except (BotoCoreError, ValueError) as error:
            raise unavailable(url, str(error)) from error

    def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str | None:
        """Write an object; its new tag, or None where the condition does not hold."""
        condition = {"IfNoneMatch": "*"} if if_absent else {}
        if if_match is not None:
            condition["IfMatch"] = if_match
        for turn in range(_CONFLICTS):
            try:
                answer = self._client.put_object(
                    Bucket=self.url.bucket, Key=self.url.key(key), Body=data, **condition
                )
                return str(answer["ETag"])
            except ClientError as error:
                if condition and _code(error) in _CONDITION_FAILED:
                    return None
                # Another writer is at this key, and whether it will succeed is not known yet.
                if _code(error) != _CONFLICT or turn == _CONFLICTS - 1:
                    raise self._refused(error) from error
            except BotoCoreError as error:
                raise self._refused(error) from error
        return None

    def get(self, key: str) -> bytes | None:
        """An object, or None where there is none."""
        found = self.get_tagged(key)
        return None if found is None else found[0]

    def get_tagged(self, key: str) -> tuple[bytes, str] | None:
        """An object and its tag."""
        try:
            answer = self._client.get_object(Bucket=self.url.bucket, Key=self.url.key(key))
            with contextlib.closing(answer["Body"]) as body:
                return body.read(), str(answer["ETag"])
        except ClientError as error:
            if _code(error) == "NoSuchKey":
                return None
            raise self._refused(error) from error
        except BotoCoreError as error:
            raise self._refused(error) from error

    def list(self, prefix: str, *, after: str = "", page: int = 1000) -> Iterator[str]:
        """Keys in their order."""
        asked = {"Bucket": self.url.bucket, "Prefix": self.url.key(prefix), "MaxKeys": page}
        if after:
            asked["StartAfter"] = self.url.key(after)
        while True:
            try:
                answer = self._client.list_objects_v2(**asked)
            except (BotoCoreError, ClientError) as error:
                raise self._refused(error) from error
            for entry in answer.get("Contents", ()):
                yield self.url.name(entry["Key"])
            if not answer.get("IsTruncated"):
                return
            asked["ContinuationToken"] = answer["NextContinuationToken"]

    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""
        try:
            self._client.delete_object(Bucket=self.url.bucket, Key=self.url.key(key))
        except (BotoCoreError, ClientError) as error:
            raise self._refused(error) from error

    def clock(self) -> datetime:
        """The time by the store's own clock."""
        try:
            answer = self._client.put_object(
                Bucket=self.url.bucket, Key=self.url.key(CLOCK), Body=b""
            )
        except (BotoCoreError, ClientError) as error:
            raise self._refused(error) from error
        return parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])

    def close(self) -> None:
        """Give back connections."""
        self._client.close()

    def _refused(self, error: Exception) -> RunLogUnavailable:
        if isinstance(error, NoCredentialsError):
            return unavailable(
                self.url,
                "no credentials were found",
                fix="set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            )
        if isinstance(error, ClientError):
            code = _code(error)
            return unavailable(self.url, _REASONS.get(code, f"the store says {code}"))
        return unavailable(self.url, str(error))


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
