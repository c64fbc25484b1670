"""A real Kubernetes API server on etcd, built from their Go modules; no node ever joins it.

Pods are taken, checked, watched and deleted as in any cluster, and stay pending until somebody
sets their status, as a kubelet would.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener
from uuid import uuid4

from services.golang import go, user_cache
from services.process import free_port
from services.service import Endpoint, Service, ServiceError, exclusive

VERSION = "1.36.3"
# Older ones, as distributions have them, cannot do what a watch asks for.
ETCD_VERSION = "3.6.8"
_MODULE = "k8s.io/kubernetes"
_SERVER = f"{_MODULE}/cmd/kube-apiserver"
_ETCD = "go.etcd.io/etcd/server/v3"
_STAGED = "=> ./staging/"
_STAMP = "k8s.io/component-base/version.gitVersion"


class Refused(Exception):
    """The API server said no; ``status`` is that of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


@dataclass(frozen=True)
class KubeServer:
    """A running API server, as tests see it; ``token`` may do everything."""

    host: str
    port: int
    ca_file: Path
    token: str = field(repr=False)

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"https://{self.host}:{self.port}"

    def call(
        self, method: str, path: str, body: Any = None, *, kind: str = "application/json"
    ) -> Any:
        """One request to the API, with its answer; ``Refused`` if it is not to its liking."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        request = Request(f"{self.url}{path}", data, headers, method=method)  # noqa: S310 - https
        tls = ssl.create_default_context(cafile=str(self.ca_file))
        opener = build_opener(ProxyHandler({}), HTTPSHandler(context=tls))
        try:
            with opener.open(request, timeout=30) as answer:
                return json.loads(answer.read())
        except HTTPError as error:
            with error:
                text = error.read().decode(errors="replace")
            try:
                text = json.loads(text)["message"]
            except (ValueError, KeyError, TypeError):
                text = text.strip()
            raise Refused(error.code, text) from None

    @contextmanager
    def namespace(self) -> Iterator[str]:
        """A namespace with a fresh name; what is left in it in the end is taken away."""
        name = f"ns-{uuid4().hex[:12]}"
        self.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        try:
            yield name
        finally:
            # No controller empties a namespace that is deleted.
            for kind in ("pods", "secrets", "configmaps"):
                path = f"/api/v1/namespaces/{name}/{kind}?gracePeriodSeconds=0"
                self.call("DELETE", path)
            self.call("DELETE", f"/api/v1/namespaces/{name}")

    def account_token(self, namespace: str, account: str) -> str:
        """A token of a service account that is made unless it is there; it has no rights yet."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        try:
            self.call("POST", path, {"metadata": {"name": account}})
        except Refused as refusal:
            if refusal.status != 409:
                raise
        answer = self.call("POST", f"{path}/{account}/token", {"spec": {}})
        token: str = answer["status"]["token"]
        return token


class Kube(Service):
    """The API server and its etcd, as one process tree."""

    name: ClassVar[str] = "kube"
    start_timeout: ClassVar[float] = 120

    def install(self) -> None:
        """Build both programs unless that has been done."""
        with exclusive(user_cache() / "kube.lock"):
            if not (server_program().exists() and etcd_program().exists()):
                build()

    def prepare(self, endpoint: Endpoint) -> None:
        """Write the keys, and the one token that is there from the start."""
        home = endpoint.home
        tokens = home / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text(f'{endpoint.secret},admin,admin,"system:masters"\n')
        run(["openssl", "genrsa", "-out", "accounts.key", "2048"], home)
        run(
            [
                *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30"),
                *("-subj", "/CN=kube-apiserver", "-addext", "subjectAltName=IP:127.0.0.1"),
                *("-keyout", "server.key", "-out", "server.crt"),
            ],
            home,
        )

    def command(self, endpoint: Endpoint) -> list[str]:
        """Return what runs both; the pair ends together."""
        etcd, peers = free_port(), free_port()
        home = endpoint.home
        etcd_url = f"http://127.0.0.1:{etcd}"
        peer_url = f"http://127.0.0.1:{peers}"
        store = [
            *(str(etcd_program()), "--data-dir", str(home / "etcd")),
            *("--listen-client-urls", etcd_url, "--advertise-client-urls", etcd_url),
            *("--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url),
            *("--initial-cluster", f"default={peer_url}", "--unsafe-no-fsync"),
        ]
        server = [
            str(server_program()),
            f"--etcd-servers={etcd_url}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={endpoint.port}",
            f"--tls-cert-file={home / 'server.crt'}",
            f"--tls-private-key-file={home / 'server.key'}",
            f"--token-auth-file={home / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={home / 'accounts.key'}",
            f"--service-account-key-file={home / 'accounts.key'}",
            "--service-cluster-ip-range=10.96.0.0/16",
            # It would wait for accounts and tokens that only a controller makes.
            "--disable-admission-plugins=ServiceAccount",
            "--endpoint-reconciler-type=none",
        ]
        together = Path(__file__).with_name("together.py")
        return [sys.executable, str(together), json.dumps([store, server])]

    def client(self, endpoint: Endpoint) -> KubeServer:
        """Return the address, the authority and a token."""
        authority = endpoint.home / "server.crt"
        return KubeServer(endpoint.host, endpoint.port, authority, endpoint.secret)

    def check(self, endpoint: Endpoint) -> None:
        """Ask for the namespace that the server makes itself, last of all that it needs."""
        self.client(endpoint).call("GET", "/api/v1/namespaces/default")


def server_program() -> Path:
    """Where the built server is kept, for all checkouts of this user."""
    return user_cache() / f"kube-apiserver-{VERSION}"


def etcd_program() -> Path:
    """Where its store is kept."""
    return user_cache() / f"etcd-{ETCD_VERSION}"


def build() -> None:
    """Build both in one module of our own; the staged modules are pinned to the version."""
    compiler = go()
    staged = f"v0.{VERSION.partition('.')[2]}"
    with TemporaryDirectory(prefix="ematix-kube-") as folder:
        work = Path(folder)
        run([compiler, "mod", "init", "build"], work)
        said = run([compiler, "mod", "download", "-json", f"{_MODULE}@v{VERSION}"], work)
        lines = Path(json.loads(said)["GoMod"]).read_text().splitlines()
        names = [line.split()[0] for line in lines if _STAGED in line]
        pinned = [f"-replace={name}={name}@{staged}" for name in names]
        run([compiler, "mod", "edit", f"-require={_MODULE}@v{VERSION}", *pinned], work)
        run([compiler, "get", f"{_SERVER}@v{VERSION}", f"{_ETCD}@v{ETCD_VERSION}"], work)
        flags = f"-s -w -X {_STAMP}=v{VERSION}"
        for package, target in ((_ETCD, etcd_program()), (_SERVER, server_program())):
            fresh = target.with_suffix(".new")
            # It takes minutes, beside tests that have the machine for themselves otherwise.
            run(["nice", compiler, "build", "-ldflags", flags, "-o", str(fresh), package], work)
            fresh.replace(target)


def run(command: list[str], folder: Path) -> str:
    """Run a program to its end; what it says is of interest when it fails."""
    result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)
    if result.returncode:
        line = " ".join(command[:4])
        raise ServiceError(f"`{line} …` failed: {result.stderr.strip()[-500:]}")
    return result.stdout
