"""Buckets of object stores: their URLs, what they refuse, and compare-and-set on real servers."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from ematix_flow.errors import ConfigError, RunLogUnavailable, UnknownName
from ematix_flow.run.buckets import Bucket, BucketUrl, open_bucket, parse_bucket_url
from ematix_flow.run.log import open_run_log
from run_logs.kinds import url_of
from services.s3 import S3Server

STORES = [pytest.param(kind, marks=pytest.mark.services(kind)) for kind in ("s3", "gcs", "azurite")]


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest) -> str:
    return url_of(request, request.param)


@pytest.fixture
def bucket(url: str) -> Iterator[Bucket]:
    opened = open_bucket(url)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://b", BucketUrl("s3", "b", "")),
        ("s3://b/p/q/?region=eu-west-1", BucketUrl("s3", "b", "p/q", region="eu-west-1")),
        (
            "s3://b/p?endpoint=http://127.0.0.1:9000",
            BucketUrl("s3", "b", "p", endpoint="http://127.0.0.1:9000"),
        ),
        ("gs://b/p", BucketUrl("gcs", "b", "p")),
        ("gcs://b/p%20q", BucketUrl("gcs", "b", "p q")),
        ("azure://acc/cont/p", BucketUrl("azure", "cont", "p", account="acc")),
        ("azureblob://acc/cont", BucketUrl("azure", "cont", "", account="acc")),
    ],
)
def test_urls(url: str, expected: BucketUrl) -> None:
    assert parse_bucket_url(url) == expected


@pytest.mark.parametrize(
    ("url", "kind", "said"),
    [
        ("s3://", ConfigError, "needs bucket; write s3://bucket/prefix"),
        ("azure://account", ConfigError, "needs account and container; write azure://"),
        ("s3://b/p?regoin=x", UnknownName, "no option 'regoin'; did you mean 'region'"),
        ("gs://b/p?region=x", UnknownName, "no option 'region'; known are: endpoint"),
        ("s3://key:hunter22@b/p", ConfigError, "may not hold credentials"),
        ("s3://b?endpoint=localhost:9000", ConfigError, "must begin with https:// or http://"),
    ],
)
def test_a_bad_url_is_refused_at_once(url: str, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said) as refused:
        open_run_log(url)
    assert "hunter22" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_objects_are_kept_listed_and_removed(bucket: Bucket) -> None:
    assert bucket.get("a/1") is None
    assert bucket.get_tagged("a/1") is None
    names = [f"a/{n:03d}%2F=é" for n in range(25)]
    for name in names:
        assert bucket.put(name, name.encode())
    bucket.put("b/1", b"")
    assert list(bucket.list("a/", page=10)) == names
    assert list(bucket.list("a/", after=names[9], page=10)) == names[10:]
    assert list(bucket.list("a/", after=names[9] + "0")) == names[10:]
    assert list(bucket.list("c/")) == []
    assert bucket.get("b/1") == b""
    assert bucket.get(names[3]) == names[3].encode()
    bucket.delete(names[3])
    bucket.delete(names[3])
    assert bucket.get(names[3]) is None


def test_conditions(bucket: Bucket) -> None:
    assert bucket.put("k", b"1", if_match="12345") is None
    first = bucket.put("k", b"1", if_absent=True)
    assert first is not None
    assert bucket.put("k", b"2", if_absent=True) is None
    assert bucket.get_tagged("k") == (b"1", first)
    second = bucket.put("k", b"2", if_match=first)
    assert second not in (None, first)
    assert bucket.put("k", b"3", if_match=first) is None
    assert bucket.get("k") == b"2"


def test_of_writers_that_saw_the_same_one_succeeds(bucket: Bucket) -> None:
    bucket.put("counter", b"0")
    writers, turns = 6, 8

    def count() -> None:
        for _ in range(turns):
            while True:
                held = bucket.get_tagged("counter")
                assert held is not None
                if bucket.put("counter", b"%d" % (int(held[0]) + 1), if_match=held[1]):
                    break

    threads = [threading.Thread(target=count) for _ in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bucket.get("counter") == b"%d" % (writers * turns)


def test_a_missing_bucket_is_one_sentence(url: str) -> None:
    bucket = open_bucket(url.replace("bucket-", "missing-").replace("container-", "missing-"))
    for act in (lambda: bucket.put("k", b""), lambda: list(bucket.list("k"))):
        with pytest.raises(RunLogUnavailable, match=r"there is no such (bucket|container)") as told:
            act()
        assert "\n" not in str(told.value)
    bucket.close()


@pytest.mark.parametrize(
    ("variable", "said"),
    [("AWS_SECRET_ACCESS_KEY", "the secret of the access key"), ("AWS_ACCESS_KEY_ID", "the store")],
)
@pytest.mark.services("s3")
def test_wrong_credentials_of_s3(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, variable: str, said: str
) -> None:
    url = url_of(request, "s3")
    monkeypatch.setenv(variable, "WRONGWRONGWRONG")
    check_refused(url, said)


@pytest.mark.services("azurite")
def test_wrong_credentials_of_azure(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = url_of(request, "azurite")
    monkeypatch.setenv("AZURE_STORAGE_KEY", "V1JPTkdXUk9OR1dST05H")
    check_refused(url, "access is denied")


def check_refused(url: str, said: str) -> None:
    bucket = open_bucket(url)
    for act in (
        lambda: bucket.put("k", b""),
        lambda: bucket.get("k"),
        lambda: list(bucket.list("")),
    ):
        with pytest.raises(RunLogUnavailable, match=said) as told:
            act()
        assert "WRONG" not in str(told.value)
        assert "\n" not in str(told.value)
    bucket.close()


def test_no_credentials_at_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    nothing = str(tmp_path_factory.mktemp("nothing") / "none")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AZURE_STORAGE_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", nothing)
    monkeypatch.setenv("AWS_CONFIG_FILE", nothing)
    bucket = open_bucket("s3://b/p?endpoint=http://127.0.0.1:9")
    with pytest.raises(RunLogUnavailable, match=r"no credentials were found; set AWS_PROFILE"):
        bucket.get("k")
    bucket.close()
    with pytest.raises(RunLogUnavailable, match="no credentials were found; set AZURE_STORAGE_CON"):
        open_bucket("azure://account/container")


def test_nobody_there(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    bucket = open_bucket("s3://b/p?endpoint=http://127.0.0.1:9")
    with pytest.raises(RunLogUnavailable, match=r"the run log s3://b/p cannot be used") as told:
        bucket.get("k")
    assert s3.secret not in str(told.value)
    bucket.close()
