"""Addresses of peers, and what becomes of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ematix_flow.errors import EngineError
from ematix_flow.peers import Peer, resolved


def known(name: str, port: int) -> Sequence[str]:
    names = {
        "workers": ["10.0.0.2", "10.0.0.1", "10.0.0.1"],
        "w.prod.svc.cluster.local": ["10.1.1.1"],
    }
    if name not in names:
        raise OSError(-2, "Name or service not known")
    return names[name]


def test_every_address_behind_a_name_is_a_peer() -> None:
    found = resolved(["dns://workers:9000", "k8s://w.prod:9001", "https://[::1]:9002"], known)
    assert found == (
        Peer("10.0.0.1", 9000, "workers"),
        Peer("10.0.0.2", 9000, "workers"),
        Peer("10.1.1.1", 9001, "w.prod.svc.cluster.local"),
        Peer("::1", 9002, "::1"),
    )
    assert [str(peer) for peer in found] == [
        "https://10.0.0.1:9000 (workers)",
        "https://10.0.0.2:9000 (workers)",
        "https://10.1.1.1:9001 (w.prod.svc.cluster.local)",
        "https://[::1]:9002",
    ]


def test_a_peer_is_asked_once_however_often_it_is_named() -> None:
    assert len(resolved(["dns://workers:9000", "https://10.0.0.1:9000"], known)) == 2


def test_a_name_that_nobody_knows() -> None:
    with pytest.raises(EngineError, match=r"peer dns://gone:1: the name gone is not known \(Name"):
        resolved(["dns://gone:1"], known)


@pytest.mark.parametrize(
    ("address", "loopback"),
    [("http://127.0.0.1:1", True), ("http://localhost:1", True), ("http://10.0.0.1:1", False)],
)
def test_what_is_on_this_machine(address: str, loopback: bool) -> None:
    (peer,) = resolved([address])
    assert peer.is_loopback == loopback
    assert not peer.tls
