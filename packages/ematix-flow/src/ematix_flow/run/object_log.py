"""The run log in a bucket of an object store, written by many machines at once.

Nothing is ever read in order to be written: what becomes of a record are objects of their own,
and which of them counts is decided by their names (see ``object_keys``).
"""

from __future__ import annotations

import builtins
import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote

from ematix_flow.run.buckets import Bucket, open_bucket, parse_bucket_url
from ematix_flow.run.log import Records, check_filter, decisive, last_of, only_one_run
from ematix_flow.run.object_keys import (
    ENDED,
    LOST,
    RUNNING,
    STATES,
    SUCCEEDED,
    Entry,
    digest,
    inverted,
    part,
    state_of,
)
from ematix_flow.run.object_turns import BucketTurns
from ematix_flow.run.record_text import read_document, record_document
from ematix_flow.run.records import RunRecord, effective_status, utc_now
from ematix_flow.run.turns import Key, Standing, Turn
from ematix_flow.run.undelivered import BufferedRunLog, undelivered_folder

_PARALLEL = 16
_LARGEST_PAGE = 1000
_KEYS_PER_RECORD = 3

Item = TypeVar("Item")
Answer = TypeVar("Answer")
# A record's entry, with the states that are known of it.
Found = tuple[Entry, frozenset[str]]
Each = Callable[[Callable[[Any], Any], list[Any]], list[Any]]


def open_object_log(url: str) -> BufferedRunLog:
    """The run log in the bucket that a URL names; what it cannot take now is delivered later."""
    place = repr(parse_bucket_url(url))
    return BufferedRunLog(lambda: ObjectRunLog(open_bucket(url)), undelivered_folder(place))


class ObjectRunLog:
    """The run log in a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.path = str(bucket.url)
        self._lock = threading.Lock()
        self._begun: dict[Entry, tuple[RunRecord, int]] = {}
        self._last_number = 0
        self._turns = BucketTurns(bucket)
        self._pool = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="ematix-run-log")

    def begin(self, record: RunRecord) -> None:
        """Record a run that has started."""
        entry = Entry.of(record)
        with self._lock:
            known = self._begun.get(entry)
            number = known[1] if known else self._next_number()
        if known is None:
            # First how it is found: a record that nobody finds would never be settled.
            self._mark(entry, RUNNING, record, [entry.open_key])
        with self._lock:
            self._begun[entry] = record, number
        self._keep(entry, RUNNING, record, number)

    def heartbeat(self, run_id: str) -> None:
        """Say that a run is still alive."""
        run = quote(run_id, safe="")
        with self._lock:
            ours = [e for e in self._begun if e.run == run]
        entries = ours or [Entry.from_id_key(k) for k in self.bucket.list(f"ids/{run}/")]
        self._each(self._beat, entries)

    def _beat(self, entry: Entry) -> None:
        with self._lock:
            known = self._begun.get(entry)
        if known is None and (known := self._read(entry, [RUNNING])) is None:
            return
        record = dataclasses.replace(known[0], heartbeat_at=utc_now())
        self._keep(entry, RUNNING, record, known[1])

    def finish(self, record: RunRecord) -> None:
        """Record how a run ended."""
        entry, state = Entry.of(record), state_of(record)
        with self._lock:
            known = self._begun.get(entry)
        known = known or self._read(entry, [RUNNING])
        with self._lock:
            number = known[1] if known else self._next_number()
        self._mark(entry, state, record, [entry.open_key] if state in (LOST, RUNNING) else [])
        self._keep(entry, state, record, number)
        if state in (SUCCEEDED, ENDED):
            self.bucket.delete(entry.open_key)
        with self._lock:
            self._begun.pop(entry, None)

    def list(
        self, *, pipeline: str | None = None, status: str | None = None, limit: int = 50
    ) -> Records:
        """The latest records, newest first."""
        check_filter(status, limit)
        if status in (RUNNING, LOST):
            now = utc_now()
            held = self._undecided(None if pipeline is None else part(pipeline))
            return [r for r in held if effective_status(r, now) == status][:limit]
        wanted = SUCCEEDED if status == SUCCEEDED else ENDED if status else None
        page = _LARGEST_PAGE if status else min(_LARGEST_PAGE, _KEYS_PER_RECORD * limit + 1)
        newest = self._all(page) if pipeline is None else self._of_pipeline(pipeline, page)
        found: builtins.list[tuple[RunRecord, int]] = []
        for some in _together(newest, wanted, limit):
            read = self._each(lambda f: self._read(f[0], f[1]), some)
            found += [r for r in read if r and status in (None, r[0].status)]
            if len(found) >= limit:
                break
        return _newest_first(found)[:limit]

    def get(self, run_id: str) -> Records:
        """The records of one run."""
        begins = f"ids/{quote(run_id, safe='')}"
        keys = builtins.list(self.bucket.list(f"{begins}/")) or self.bucket.list(begins)
        entries = [Entry.from_id_key(key) for key in keys]
        if len({e.run for e in entries}) > 1:
            return only_one_run(run_id, [_only_id(e.run_id) for e in entries])
        return self._current(entries)[::-1]

    def running(self, pipeline: str) -> Records:
        """The records of a pipeline whose end is not known."""
        return self._undecided(part(pipeline))

    def last(self, pipeline: str, *, declared_in: str) -> RunRecord | None:
        """The record that tells how the last run of this file's pipeline ended."""
        return self._last(pipeline, declared_in, self._each)

    def _last(self, pipeline: str, declared_in: str, each: Each) -> RunRecord | None:
        ours = digest(declared_in)
        keys = self.bucket.list(f"pipelines/{part(pipeline)}/", page=20)
        for entry, _, file in map(Entry.from_pipeline_key, keys):
            if file != ours:
                continue
            same = map(Entry.from_id_key, self.bucket.list(f"ids/{entry.run}/"))
            wanted = [e for e in same if e.pipeline == entry.pipeline]
            records = _newest_first(r for r in each(self._read_listed, wanted) if r is not None)
            if records := [r for r in records if r.declared_in == declared_in]:
                return decisive(records)
        return None

    def prune(self, before: datetime, *, dry_run: bool = False) -> frozenset[str]:
        """Remove what began before; the ids of the runs. The last of each pipeline stays."""
        start = f"runs/{inverted(before)}0"
        old: dict[Entry, builtins.list[str]] = {}
        for key in self.bucket.list("runs/", after=start):
            old.setdefault(Entry.from_run_key(key)[0], []).append(key)
        indexed: dict[Entry, builtins.list[str]] = {}
        kept = {Entry.of(r) for r in self._undecided(None)}
        for pipeline in {e.pipeline for e in old}:
            latest: dict[str, str] = {}
            for key in self.bucket.list(f"pipelines/{pipeline}/"):
                entry, _, file = Entry.from_pipeline_key(key)
                indexed.setdefault(entry, []).append(key)
                if latest.setdefault(file, entry.run) == entry.run:
                    kept.add(entry)
        gone = [e for e in old if e not in kept]
        if not dry_run:
            # The record goes last: what is left half done is found and finished the next time.
            self._each(
                self.bucket.delete, [k for e in gone for k in (e.id_key, *indexed.get(e, ()))]
            )
            self._each(self.bucket.delete, [k for e in gone for k in old[e]])
        return frozenset(e.run_id for e in gone)

    def standings(self, origins: Iterable[str]) -> dict[Key, Standing]:
        """How the pipelines of these origins stand."""
        asked = builtins.list(dict.fromkeys(origins))
        keys = [key for known in self._each(self._turns.known, asked) for key in sorted(known)]
        return dict(zip(keys, self._each(self._standing, keys), strict=True))

    def _standing(self, key: Key) -> Standing:
        # On this thread alone: those of the pool are busy with the other pipelines.
        record = self._last(key.pipeline, key.origin, lambda act, items: [act(i) for i in items])
        return Standing(last_of(record), self._turns.get(key))

    def enter(self, turns: Mapping[Key, Turn]) -> None:
        """Write first turns down; those of pipelines that have one already stay."""
        self._each(lambda item: self._turns.enter(*item), builtins.list(turns.items()))

    def move(self, key: Key, before: Turn, after: Turn) -> bool:
        """Change a turn; False if somebody else has changed it since it was read."""
        return self._turns.move(key, before, after)

    def clock(self) -> datetime:
        """The store's."""
        return self.bucket.clock()

    def close(self) -> None:
        """Give back connections."""
        self._pool.shutdown()
        self.bucket.close()

    def _next_number(self) -> int:
        """What tells which of two records that began at one time was recorded first."""
        self._last_number = max(self._last_number + 1, time.time_ns())
        return self._last_number

    def _mark(self, entry: Entry, state: str, record: RunRecord, more: builtins.list[str]) -> None:
        keys = [entry.pipeline_key(state, digest(record.declared_in)), entry.id_key, *more]
        self._each(lambda key: self.bucket.put(key, b""), keys)
        self._turns.note(Key(record.declared_in, record.pipeline))

    def _keep(self, entry: Entry, state: str, record: RunRecord, number: int) -> None:
        document = record_document(record, number=number)
        self.bucket.put(entry.run_key(state), document, if_absent=state == ENDED)

    def _read(self, entry: Entry, states: Iterable[str]) -> tuple[RunRecord, int] | None:
        """What counts of these states. One may be announced and not yet written."""
        for state in sorted(states, key=STATES.index):
            data = self.bucket.get(entry.run_key(state))
            if data is not None:
                where = f"{self.bucket.url}/{entry.run_key(state)}"
                record, beside = read_document(data, where=where)
                return record, int(beside.get("number", 0))
        return None

    def _read_listed(self, entry: Entry) -> tuple[RunRecord, int] | None:
        keys = self.bucket.list(entry.folder)
        return self._read(entry, [Entry.from_run_key(key)[1] for key in keys])

    def _current(self, entries: Iterable[Entry]) -> Records:
        read = self._each(self._read_listed, builtins.list(entries))
        return _newest_first(r for r in read if r is not None)

    def _undecided(self, pipeline: str | None) -> Records:
        """The records whose end is not known, of one pipeline or of all."""
        keys = self.bucket.list("open/" if pipeline is None else f"open/{pipeline}/")
        records = self._current(Entry.from_open_key(key) for key in keys)
        decided = [r for r in records if r.status not in (RUNNING, LOST)]
        # Whoever recorded these did not come to it.
        self._each(self.bucket.delete, [Entry.of(r).open_key for r in decided])
        return [r for r in records if r.status in (RUNNING, LOST)]

    def _all(self, page: int) -> Iterator[Found]:
        keys = self.bucket.list("runs/", page=page)
        return _grouped(Entry.from_run_key(key) for key in keys)

    def _of_pipeline(self, pipeline: str, page: int) -> Iterator[Found]:
        keys = self.bucket.list(f"pipelines/{part(pipeline)}/", page=page)
        return _grouped(Entry.from_pipeline_key(key)[:2] for key in keys)

    def _each(
        self, act: Callable[[Item], Answer], items: builtins.list[Item]
    ) -> builtins.list[Answer]:
        """Do it for all of them side by side."""
        if len(items) == 1:
            return [act(items[0])]
        return builtins.list(self._pool.map(act, items))


def _grouped(keys: Iterable[tuple[Entry, str]]) -> Iterator[Found]:
    """The states of each entry; they are neighbours."""
    held: Entry | None = None
    states: set[str] = set()
    for entry, state in keys:
        if held is not None and entry != held:
            yield held, frozenset(states)
            states = set()
        held = entry
        states.add(state)
    if held is not None:
        yield held, frozenset(states)


def _together(found: Iterator[Found], wanted: str | None, count: int) -> Iterator[list[Found]]:
    """So many in the wanted state at a time, and with the last all that began when it did."""
    some: list[Found] = []
    for entry, states in found:
        if len(some) >= count and entry.time != some[-1][0].time:
            yield some
            some = []
        if wanted is None or _best(states) == wanted:
            some.append((entry, states))
    if some:
        yield some


def _best(states: Iterable[str]) -> str:
    return min(states, key=STATES.index)


def _newest_first(found: Iterable[tuple[RunRecord, int]]) -> Records:
    order = sorted(found, key=lambda f: (f[0].started_at, f[1]), reverse=True)
    return [record for record, _ in order]


def _only_id(run_id: str) -> RunRecord:
    fields: dict[str, Any] = {"pipeline": "", "target": "", "trigger": "cli"}
    return RunRecord(run_id=run_id, started_at=utc_now(), **fields)
