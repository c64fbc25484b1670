"""``flow-worker`` from the outside; what it does in a run is tested in ``tests/cluster``."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ematix_flow.cli.worker import main
from ematix_flow.engine.peer_client import PeerClient
from ematix_flow.peers import Peer


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--cert, --key and --ca are needed together"),
        (("--cert", "a.pem"), "--cert, --key and --ca are needed together"),
        (("--insecure",), "would let anybody who reaches 0.0.0.0:9000 run code here"),
        (("--insecure", "--listen", "9000"), "'9000' is not HOST:PORT"),
        (("--insecure", "--listen", "127.0.0.1:0", "--memory", "5"), "is not a size from 1g"),
        (("--cert", "no", "--key", "no", "--ca", "no"), "the TLS file no does not exist"),
        (("--cores", "0"), "--cores"),
    ],
)
def test_what_is_refused(
    arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert told.err.startswith("flow-worker: error: ")
    assert says in told.err
    assert len(told.err.splitlines()) == 1


def test_an_unusable_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.pem"
    file.write_text("not a certificate")
    options = [v for name in ("--cert", "--key", "--ca") for v in (name, str(file))]
    assert main([*options, "--listen", "127.0.0.1:0"]) == 2
    assert "cannot be used" in capsys.readouterr().err


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "Lend this machine to pipelines that name it in peers=" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("flow-worker, version ")


def test_it_serves_until_it_is_told_to_stop() -> None:
    program = Path(sys.executable).with_name("flow-worker")
    options = ("--insecure", "--listen", "127.0.0.1:0", "--cores", "2", "--memory", "2g")
    with subprocess.Popen([program, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().rpartition(":")[2])
            peer = Peer("127.0.0.1", port, "127.0.0.1", tls=False)
            offer = PeerClient(peer, None, seconds=10).offer()
            assert (offer.cores, offer.memory_bytes, offer.busy) == (2, 2 << 30, False)
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
