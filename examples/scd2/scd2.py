"""`mode="scd2"` by event time: the history of every key, whatever the order in which events arrive.

A CRM sends changes of addresses, some of them late. Run it from anywhere:
``python examples/scd2/scd2.py``.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from ematix_flow import Annotated, BigInt, Text, TimestampTZ, connect, ematix, pk

DATA = Path(__file__).resolve().parent / "demo-data"


@ematix.connection
class crm:
    """Where changes arrive, one file per day."""

    kind = "object_store_local"
    path = str(DATA)
    format = "csv"


@ematix.connection
class warehouse:
    """Where the history is kept."""

    kind = "duckdb"
    path = str(DATA / "warehouse.duckdb")


@ematix.table(schema="crm", name="addresses")
class Address:
    """Where a customer lives, and since when."""

    customer_id: Annotated[BigInt, pk()]
    city: Text
    changed_at: TimestampTZ


# valid_from, valid_to, is_current and row_hash are added to the table.
@ematix.pipeline(
    target=Address,
    source_connection="crm",
    target_connection="warehouse",
    mode="scd2",
    compare_columns=["city"],
    event_timestamp_column="changed_at",
    delete_when="op = 'D'",
)
def load_addresses(run):
    return f"SELECT customer_id, city, changed_at, op FROM `{run.parameters['file']}`"  # noqa: S608


def history() -> list[str]:
    """The versions of customer 1, as one line each."""
    query = (
        "SELECT city, valid_from, valid_to FROM crm.addresses "
        "WHERE customer_id = 1 ORDER BY valid_from"
    )
    with connect("warehouse") as live:
        rows = live.query(query)
    days = [(r["city"], f"{r['valid_from']:%d %b}", r["valid_to"]) for r in rows]
    return [
        f"{city} from {begin} to {end:%d %b}" if end else f"{city} since {begin}"
        for city, begin, end in days
    ]


def main() -> None:
    """Events in order, then late ones and a delete."""
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir()
    head = "customer_id,city,changed_at,op\n"
    (DATA / "monday.csv").write_text(f"{head}1,Rome,2026-01-01,U\n1,Bari,2026-03-01,U\n")
    (DATA / "tuesday.csv").write_text(f"{head}1,Pisa,2026-02-01,U\n1,Bari,2026-04-01,D\n")

    load_addresses.sync(parameters={"file": "monday.csv"})
    assert history() == ["Rome from 01 Jan to 01 Mar", "Bari since 01 Mar"]

    load_addresses.sync(parameters={"file": "tuesday.csv"})
    # The same file again changes nothing.
    again = load_addresses.sync(parameters={"file": "tuesday.csv"}).counts
    assert (again.inserted, again.updated, again.closed, again.deleted) == (0, 0, 0, 0)
    print("\n".join(history()))
    assert history() == [
        "Rome from 01 Jan to 01 Feb",
        "Pisa from 01 Feb to 01 Mar",
        "Bari from 01 Mar to 01 Apr",
    ]


if __name__ == "__main__":
    main()
