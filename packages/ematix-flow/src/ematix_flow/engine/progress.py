"""A live view of a job on the terminal, and its end on Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from ematix_flow.engine.protocol import Engine, Job, Progress
from ematix_flow.errors import Cancelled

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

_POLL_SECONDS = 0.2
_AGAIN_SECONDS = 0.5


@contextlib.contextmanager
def live_progress(engine: Engine, job: Job, description: str) -> Iterator[None]:
    """Show stages and tasks of ``job`` while the block runs; Ctrl-C cancels it.

    The bar appears only when standard error is a terminal. A Ctrl-C inside the block always
    ends in ``Cancelled``, once Spark has let go, so keep out of it what must not be cut short.
    """
    interruption = _Interruption(engine, job)
    with contextlib.ExitStack() as stack:
        if sys.stderr.isatty():
            stack.enter_context(_bar(engine, job, description))
        stack.enter_context(interruption)
        try:
            yield
        except KeyboardInterrupt as error:
            interruption.settle()
            raise _cancelled(description) from error
        except Exception as error:
            if interruption.asked:
                raise _cancelled(description) from error
            raise
        if interruption.asked:
            raise _cancelled(description)


def _cancelled(description: str) -> Cancelled:
    return Cancelled(f"{description}: cancelled by Ctrl-C, nothing was written")


class _Interruption:
    """Turns Ctrl-C into a cancelled Spark job.

    Raising inside a call to the JVM would leave the connection with an answer nobody reads.
    While such a call is under way the job is cancelled from a second thread instead, and
    Spark's own error ends the call; anywhere else KeyboardInterrupt is raised as usual.
    """

    def __init__(self, engine: Engine, job: Job) -> None:
        self._engine = engine
        self._job = job
        self._ended = threading.Event()
        self._canceller: threading.Thread | None = None
        self._before: Any = None
        self.asked = False

    def __enter__(self) -> _Interruption:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if self._canceller is not None:
            self._canceller.join()

    def settle(self) -> None:
        """Cancel what is still running on Spark and wait until it has stopped."""
        self.asked = True
        with contextlib.suppress(Exception):
            self._job.cancel()
            for _ in range(50):
                if not self._job.progress().active:
                    return
                self._ended.wait(_POLL_SECONDS)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        again = self.asked
        self.asked = True
        if again or not _inside_jvm_call(frame):
            raise KeyboardInterrupt
        self._canceller = threading.Thread(target=self._cancel, name="ematix-cancel", daemon=True)
        self._canceller.start()

    def _cancel(self) -> None:
        # Repeated, because the block may be between two Spark jobs of the same work.
        while True:
            with contextlib.suppress(Exception):
                self._job.cancel()
            if self._ended.wait(_AGAIN_SECONDS):
                _leave_thread(self._engine)
                return


def _inside_jvm_call(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("py4j."):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def _bar(engine: Engine, job: Job, description: str) -> Iterator[None]:
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    bar = RichProgress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[counts]}", markup=False),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        # What the user prints goes above the bar, unless it is meant for a file or a pipe.
        redirect_stdout=sys.stdout.isatty(),
    )
    ended = threading.Event()
    task = bar.add_task(description, total=None, counts="")
    poller = threading.Thread(
        target=_poll, args=(engine, job, bar, task, ended), name="ematix-progress", daemon=True
    )
    with bar:
        poller.start()
        try:
            yield
        finally:
            ended.set()
            poller.join()


def _poll(engine: Engine, job: Job, bar: Bar, task: TaskID, ended: threading.Event) -> None:
    while not ended.wait(_POLL_SECONDS):
        # A view that cannot be drawn is no reason to disturb the work.
        with contextlib.suppress(Exception):
            seen = job.progress()
            bar.update(
                task, total=seen.tasks_total or None, completed=seen.tasks_done, counts=counts(seen)
            )
    _leave_thread(engine)


def counts(seen: Progress) -> str:
    """Stages and tasks in words."""
    if seen.stages_total == 0:
        return ""
    return (
        f"stage {min(seen.stages_done + 1, seen.stages_total)} of {seen.stages_total}, "
        f"task {seen.tasks_done} of {seen.tasks_total}"
    )


def _leave_thread(engine: Engine) -> None:
    from ematix_flow.engine.classic import ClassicEngine

    if isinstance(engine, ClassicEngine):
        with contextlib.suppress(Exception):
            engine.leave_thread()
