"""Runs of every kind of start, and what is heard of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

import pytest

from ematix_flow import Pipeline, config
from ematix_flow.cli.main import main
from ematix_flow.errors import ConfigError, EmatixError
from ematix_flow.observe.alerts import register_alerter
from ematix_flow.observe.events import AlertEvent
from ematix_flow.observe.observer import RunObserver, open_observer, process_observer

from .ends import Answer, HttpEnd, free_port, http_end, otlp_http_end, wait_for


def events(end: HttpEnd) -> list[tuple[str, str]]:
    return [(r.json["kind"], r.json["pipeline"]) for r in end.requests]


@pytest.mark.usefixtures("project")
def test_flow_run_tells_of_failure_and_recovery(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with http_end() as end:
        url = f"http://{end.where}/"
        assert main(["run", "load_numbers", "--alerter", url]) == 0
        assert main(["run", "load_more", "--alerter", url, "--alerter", "stdout://"]) == 1
        assert "flow: alert: " in capsys.readouterr().err
        monkeypatch.setenv("MORE", "shop.numbers")
        assert main(["run", "load_more", "--alerter", url]) == 0
        assert main(["run", "load_more", "--alerter", url]) == 0
    assert events(end) == [("failed", "load_more"), ("recovered", "load_more")]
    told = end.requests[0].json
    assert (told["attempt_count"], told["max_attempts"], told["gave_up"]) == (1, 1, False)
    assert "missing" in told["error_message"]
    assert told["trigger"] == "cli"
    capsys.readouterr()
    assert main(["runs", "show", told["run_id"]]) == 0
    assert "load_more" in capsys.readouterr().out


@pytest.mark.usefixtures("project")
def test_results_on_stdout_stay_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    arguments = ["--metrics", "stdout://", "--traces", "otel://stdout", "--alerter", "stdout://"]
    assert main(["run", "load_numbers", "--format", "json", *arguments]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["ran"][0]["pipeline"] == "load_numbers"
    assert "pipeline_runs_total" in err
    assert "flow.pipeline.run" in err


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("option", ["--alerter", "--metrics", "--traces"])
def test_a_wrong_address_is_refused_before_anything_runs(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "load_numbers", option, "nonsense://"]) == 2
    assert "there is no" in capsys.readouterr().err
    assert main(["runs", "list"]) == 0
    assert "load_numbers" not in capsys.readouterr().out


def test_sync_obeys_the_project_and_the_environment(
    pipelines: Mapping[str, Pipeline], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with http_end() as mine, http_end() as others:
        file = project / ".ematix-flow.toml"
        file.write_text(file.read_text() + f'alerters = ["http://{mine.where}/"]\n')
        for _ in range(3):
            with pytest.raises(EmatixError, match="missing"):
                pipelines["load_more"].sync()
        wait_for(lambda: mine.requests)
        monkeypatch.setenv("EMATIX_FLOW_ALERTERS", f"stdout://,http://{others.where}/")
        with pytest.raises(EmatixError, match="missing"):
            pipelines["load_more"].sync()
        wait_for(lambda: others.requests)
        process_observer().close(5)
    assert events(mine) == [("failed", "load_more")]  # once, however often
    assert events(others) == [("failed", "load_more")]


def test_a_slot_gives_up_when_it_is_not_tried_again(pipelines: Mapping[str, Pipeline]) -> None:
    from dataclasses import replace

    from ematix_flow.run.batch import run_pipeline

    spec = pipelines["load_more"].spec
    assert spec.retry is not None
    ever, never = spec, replace(spec, retry=replace(spec.retry, retry_on=("transient",)))
    slot = datetime(2026, 1, 31, tzinfo=timezone.utc)
    with http_end() as end:
        for tried, attempt in ((ever, 1), (ever, 3), (never, 1)):
            observer = open_observer(config.ObserveSettings((f"http://{end.where}/",)))
            with pytest.raises(EmatixError, match="missing"):
                run_pipeline(
                    tried, trigger="run-due", slot=slot, attempt=attempt, observer=observer
                )
            observer.close(5)
    told = [(r.json["kind"], r.json["attempt_count"], r.json["max_attempts"]) for r in end.requests]
    assert told == [("failed", 1, 3), ("gave_up", 3, 3), ("gave_up", 1, 3)]


def test_run_due_tells_as_well(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = project / "pipelines.py"
    file.write_text(
        file.read_text().replace(
            'retry={"max_attempts": 3, "retry_on": ["any"]}',
            'retry={"max_attempts": 1}, schedule="* * * * *"',
        )
    )
    with http_end() as end:
        monkeypatch.setenv("EMATIX_FLOW_ALERTERS", f"http://{end.where}/")
        assert main(["run-due"]) == 1
        process_observer().close(5)
    (told,) = [request.json for request in end.requests]
    assert (told["kind"], told["pipeline"], told["trigger"]) == ("gave_up", "load_more", "run-due")


def test_sync_says_what_is_wrong_with_the_environment(
    pipelines: Mapping[str, Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATIX_FLOW_METRICS_URL", "prometeus://:9100")
    with pytest.raises(EmatixError, match="did you mean 'prometheus'"):
        pipelines["load_numbers"].sync()


def test_a_registered_alerter_hears_and_may_fail(
    pipelines: Mapping[str, Pipeline], caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[AlertEvent] = []

    class Mine:
        def notify(self, event: AlertEvent) -> None:
            heard.append(event)
            raise RuntimeError("a bug with password=hunter2")

    register_alerter(Mine())
    with pytest.raises(EmatixError, match="missing"):
        pipelines["load_more"].sync()
    process_observer().close(5)
    assert [e.kind for e in heard] == ["failed"]
    assert "did not get through to Mine" in caplog.text
    assert "hunter2" not in caplog.text


class Broken:
    """A sink every call of which fails."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(f"no {name}")


def test_nothing_that_goes_wrong_with_telling_is_the_runs_fault(
    pipelines: Mapping[str, Pipeline], caplog: pytest.LogCaptureFixture
) -> None:
    from ematix_flow.run.batch import run_pipeline

    broken = Broken()
    observer = RunObserver(alerts=broken, metrics=broken, traces=broken)  # type: ignore[arg-type]
    result = run_pipeline(pipelines["load_numbers"].spec, trigger="python", observer=observer)
    observer.close(1)
    assert result.counts.inserted == 5
    assert "the run goes on" in caplog.text


def test_a_slow_or_dead_receiver_does_not_delay_a_run(pipelines: Mapping[str, Pipeline]) -> None:
    import threading

    from ematix_flow.run.batch import run_pipeline

    release = threading.Event()
    with http_end(Answer(wait=release)) as slow:
        settings = config.ObserveSettings(
            (f"http://{slow.where}/", f"http://127.0.0.1:{free_port()}/"),
            metrics=f"prometheus+push://127.0.0.1:{free_port()}",
            traces=f"otel+otlp+http://127.0.0.1:{free_port()}",
        )
        observer = open_observer(settings)
        began = time.monotonic()
        with pytest.raises(EmatixError, match="missing"):
            run_pipeline(pipelines["load_more"].spec, trigger="python", observer=observer)
        run_took = time.monotonic() - began
        began = time.monotonic()
        observer.close(1.0)
        assert time.monotonic() - began < 4
        release.set()
    assert run_took < 5


def test_a_program_that_just_ends_has_told_all(project: Path) -> None:
    program = (
        "from ematix_flow.errors import EmatixError\n"
        "from pipelines import load_more, load_numbers\n"
        "load_numbers.sync()\n"
        "try:\n    load_more.sync()\nexcept EmatixError:\n    pass\n"
    )
    with http_end(Answer(503)) as end, otlp_http_end() as collector:
        where = f"127.0.0.1:{collector.port}"
        settings = {
            "EMATIX_FLOW_ALERTERS": f"http://{end.where}/",
            "EMATIX_FLOW_METRICS": f"otlp://{where}",
            "EMATIX_FLOW_TRACES": f"otel+otlp+http://{where}",
        }
        ran = subprocess.run(
            [sys.executable, "-c", program],
            cwd=project,
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stderr == ""
        assert events(end) == [("failed", "load_more")] * 2  # the second try of one alert
        assert len([s for s in collector.spans if s.name == "flow.pipeline.run"]) == 2
        assert "pipeline_runs_total" in collector.points()


def test_no_address_gives_away_its_secret(project: Path, private_home: Path) -> None:
    words = ("s3cret-of-slack", "s3cret-of-pagerduty", "s3cret-of-mail", "s3cret-of-a-webhook")
    gone = f"127.0.0.1:{free_port()}"
    addresses = [
        f"slack://{gone}/services/T0/B0/{words[0]}",
        f"pagerduty://{words[1]}?endpoint=http://{gone}/",
        f"email://me:{words[2]}@{gone}?from=a@x.org&to=b@x.org",
        f"http://me:{words[2]}@{gone}/{words[3]}?key={words[3]}",
    ]
    more = [
        *("--metrics", f"prometheus+push://me:{words[2]}@{gone}"),
        *("--traces", f"otel+otlp+http://me:{words[2]}@{gone}"),
    ]
    program = "import sys; from ematix_flow.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = ["run", "load_more", "--log-level", "debug", "--verbose"]
    alerters = [word for url in addresses for word in ("--alerter", url)]
    ran = subprocess.run(
        [sys.executable, "-c", program, *command, *alerters, *more],
        cwd=project,
        env=dict(os.environ),
        capture_output=True,
        check=False,
    )
    assert ran.returncode == 1
    kept = b"".join(p.read_bytes() for p in private_home.rglob("*") if p.is_file())
    assert ran.stderr.count(b"did not get through to") >= len(addresses)
    for word in words:
        for text in (ran.stdout, ran.stderr, kept):
            assert word.encode() not in text


def test_what_nobody_asked_for_is_not_loaded(project: Path) -> None:
    program = (
        "import sys; from ematix_flow.cli.main import main; code = main(sys.argv[1:]); "
        "print(*sorted(sys.modules)); sys.exit(code)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, "run", "load_numbers"],
        cwd=project,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(ran.stdout.split())
    assert "ematix_flow.observe.observer" in loaded
    heavy = {
        "opentelemetry",
        "prometheus_client",
        "tenacity",
        "smtplib",
        "ematix_flow.observe.alerts",
    }
    assert not loaded & heavy


def test_a_list_of_urls_may_hold_commas() -> None:
    text = "stdout://, email://h?from=a@b.c&to=d@e.f,g@h.i,slack://hooks.slack.com/x,"
    assert config.split_urls(text) == (
        "stdout://",
        "email://h?from=a@b.c&to=d@e.f,g@h.i",
        "slack://hooks.slack.com/x",
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('alerters = "stdout://"', "alerters in [project] must be a list"),
        ("metrics = 3", "metrics in [project] must be a text"),
        ("traces = []", "traces in [project] must be a text"),
        ('alert_repeat_seconds = "6h"', "alert_repeat_seconds in [project] must be a number"),
        ('alerter = ["stdout://"]', "did you mean 'alerters'?"),
    ],
)
def test_the_project_file_is_checked(project: Path, line: str, says: str) -> None:
    (project / ".ematix-flow.toml").write_text(f"[project]\n{line}\n")
    with pytest.raises(EmatixError) as caught:
        config.observe_settings()
    assert says in str(caught.value)


def test_settings_show_no_secret(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_ALERTERS", "pagerduty://0123456789abcdef")
    assert "0123456789abcdef" not in repr(config.observe_settings())
    monkeypatch.setenv("EMATIX_FLOW_ALERT_REPEAT_SECONDS", "soon")
    with pytest.raises(ConfigError, match="no number of seconds"):
        config.observe_settings()
