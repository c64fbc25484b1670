"""What a driver and a ``flow-worker`` say to each other, and the TLS under it.

JSON over HTTP: ``GET /offer``, ``POST /run`` (begin), ``POST /run/<id>/beat``,
``DELETE /run/<id>``.
Both sides show a certificate that the other side's authority has signed.
"""

from __future__ import annotations

import platform
import ssl
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

from ematix_flow.config import TlsFiles
from ematix_flow.errors import ConfigError

LARGEST_BODY = 1 << 20
# By this name a Python worker is started on every machine, wherever its Python lives.
WORKER_PYTHON = "ematix-flow-python"


@dataclass(frozen=True)
class Versions:
    """What has to be equal on a driver and its peers."""

    python: str
    pyspark: str
    ematix_flow: str

    def differences(self, other: Versions) -> list[str]:
        """``pyspark 4.1.1 instead of 4.2.0``, for each that is not as here."""
        mine, theirs = asdict(self), asdict(other)
        return [
            f"{name.replace('_', '-')} {theirs[name]} instead of {value}"
            for name, value in mine.items()
            if theirs[name] != value
        ]


def own_versions() -> Versions:
    """Those of this process; of Python the first two numbers, as pickled code needs."""
    return Versions(
        python=".".join(platform.python_version_tuple()[:2]),
        pyspark=version("pyspark"),
        ematix_flow=version("ematix-flow"),
    )


@dataclass(frozen=True)
class Offer:
    """What a worker has to give."""

    cores: int
    memory_bytes: int
    versions: Versions
    busy: bool = False

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Offer:
        """From JSON."""
        return cls(
            cores=int(given["cores"]),
            memory_bytes=int(given["memory_bytes"]),
            versions=Versions(**{k: str(v) for k, v in given["versions"].items()}),
            busy=bool(given["busy"]),
        )


@dataclass(frozen=True)
class Order:
    """What a driver asks for: a Spark worker that joins its master. ``conf`` holds secrets."""

    run: str
    master: str
    lease_seconds: float
    conf: Mapping[str, str] = field(repr=False)

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Order:
        """From JSON; anything else than texts and a number is refused."""
        conf = given["conf"]
        texts = [given["run"], given["master"], *conf, *conf.values()]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("not an order")
        return cls(given["run"], given["master"], float(given["lease_seconds"]), dict(conf))


def client_tls(files: TlsFiles) -> ssl.SSLContext:
    """For a driver: it knows its peers by their names, and shows who it is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return _loaded(context, files)


def server_tls(files: TlsFiles) -> ssl.SSLContext:
    """For a worker: who has no certificate of the authority is not talked to."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    return _loaded(context, files)


def _loaded(context: ssl.SSLContext, files: TlsFiles) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    for file in (files.cert, files.key, files.ca):
        if not file.is_file():
            raise ConfigError(f"the TLS file {file} does not exist", fix="correct its path")
    try:
        context.load_cert_chain(files.cert, files.key)
        context.load_verify_locations(files.ca)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"the certificate {files.cert}, its key {files.key} and the authority {files.ca} "
            f"cannot be used ({getattr(error, 'reason', None) or error})",
            fix="give PEM files, the key being that of the certificate and without a passphrase",
        ) from error
    return context
