"""The ``flow-worker`` command: lends this machine to drivers that name it among their peers."""

from __future__ import annotations

import logging
import re
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import click

from ematix_flow.cli.output import complain
from ematix_flow.errors import ConfigError, EmatixError

_CANCELLED, _MISUSED = 130, 2
_SIZE = re.compile(r"(\d+)([mgt])b?", re.IGNORECASE)
_UNITS = {"m": 20, "g": 30, "t": 40}
_SMALLEST = 1 << 30
# What the operating system and the JVM of the worker itself need.
_SHARE = 0.8
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="0.0.0.0:9000",
    show_default=True,
    help="Where to listen.",
)
@click.option("--cert", type=_FILE, help="This worker's certificate, PEM.")
@click.option("--key", type=_FILE, help="The key of that certificate, PEM.")
@click.option("--ca", type=_FILE, help="The authority that signs the certificates of drivers, PEM.")
@click.option("--cores", type=click.IntRange(1), help="Cores to lend. Otherwise all.")
@click.option("--memory", metavar="SIZE", help="Memory to lend, such as 8g. Otherwise four fifths.")
@click.option("--insecure", is_flag=True, help="Without TLS; for this machine's own drivers only.")
@click.version_option(package_name="ematix-flow", prog_name="flow-worker")
def worker(
    *,
    listen: str,
    cert: Path | None,
    key: Path | None,
    ca: Path | None,
    cores: int | None,
    memory: str | None,
    insecure: bool,
) -> int:
    """Lend this machine to pipelines that name it in peers=.

    A driver asks for a Spark worker; it is started, joins the driver, and ends with the run, or
    when the driver falls silent. Driver and worker show certificates of the same authority. What
    is not given is taken from EMATIX_FLOW_TLS_CERT, EMATIX_FLOW_TLS_KEY and EMATIX_FLOW_TLS_CA.

    "flow-worker executor" is what pods run that a master= of k8s:// has made.
    """
    from ematix_flow.config import TlsFiles, tls_files
    from ematix_flow.engine import machine
    from ematix_flow.engine.peer_protocol import server_tls
    from ematix_flow.engine.peer_server import Lending, PeerServer

    address = _address(listen)
    files = None
    if not insecure:
        if cert and key and ca:
            files = TlsFiles(cert, key, ca)
        elif not (cert or key or ca):
            files = tls_files()
        if files is None:
            raise ConfigError(
                "--cert, --key and --ca are needed together",
                fix="drivers show certificates; --insecure is for this machine's own drivers",
            )
    elif address[0] not in ("127.0.0.1", "::1", "localhost"):
        raise ConfigError(
            f"--insecure would let anybody who reaches {listen} run code here",
            fix="listen on 127.0.0.1, or give --cert, --key and --ca",
        )
    lending = Lending(
        cores=cores or machine.cores(),
        memory_bytes=int(machine.memory_bytes() * _SHARE) if memory is None else _size(memory),
    )
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    logging.getLogger("py4j").setLevel(logging.WARNING)
    try:
        server = PeerServer(address, None if files is None else server_tls(files), lending)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {listen} ({error.strerror or error})", fix="choose another --listen"
        ) from error
    stopped = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopped.set())
    with server:
        serving = threading.Thread(target=server.serve_forever, name="listener", daemon=True)
        serving.start()
        host, port = server.server_address[:2]
        click.echo(f"listening on {host!s}:{port}")
        lending.watch(stopped)
        server.shutdown()
        serving.join()
    return 0


def _address(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not (host and colon and port.isdigit()):
        raise click.BadParameter(f"{listen!r} is not HOST:PORT", param_hint="--listen")
    return host.strip("[]"), int(port)


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    size = int(found[1]) << _UNITS[found[2].lower()] if found else 0
    if size < _SMALLEST:
        raise click.BadParameter(f"{text!r} is not a size from 1g upwards", param_hint="--memory")
    return size


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until told to stop; every failure is one line."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given == ["executor"]:
            from ematix_flow.engine.executor import become_executor

            become_executor()
        code = worker.main(
            given,
            prog_name="flow-worker",
            standalone_mode=False,
        )
    except click.ClickException as error:
        complain(f"{error.format_message()}; see flow-worker --help", as_="flow-worker: error")
        return _MISUSED
    except (click.Abort, KeyboardInterrupt):
        return _CANCELLED
    except EmatixError as error:
        complain(str(error), as_="flow-worker: error")
        return error.exit_code
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
