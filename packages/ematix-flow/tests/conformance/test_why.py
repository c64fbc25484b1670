"""Every backend tells which run wrote a row, by its run log or by its own history."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Annotated

import pytest

from conformance.conftest import Loader
from ematix_flow import BigInt, Date, Numeric, String, Text, ematix, pk
from ematix_flow.errors import DataError
from ematix_flow.run.log import NullRunLog, open_run_log
from ematix_flow.run.provenance import row_provenance
from harness.base import Harness

pytestmark = pytest.mark.needs("source")

ROWS = [
    (1, "a'b", date(2024, 2, 29), Decimal("1.50"), "one"),
    (2, "A", date(2024, 3, 1), Decimal("2.00"), "two"),
]


@ematix.table(schema="app")
class Rates:
    id: Annotated[BigInt, pk()]
    code: Annotated[String[20], pk()]
    day: Annotated[Date, pk()]
    size: Annotated[Numeric[10, 2], pk()]
    name: Text


def test_a_row_leads_to_its_run(backend: Harness, loader: Loader) -> None:
    load = loader(Rates, ROWS, "id bigint, code string, day date, size decimal(10, 2), name string")
    ran = load.sync()
    key = ["id=1", "code=a'b", "day=2024-02-29", "size=1.5"]
    log = open_run_log()
    try:
        (version,) = row_provenance(load.name, key, run_log=log).versions
        assert version.values["name"] == "one"
        assert version.run is not None
        assert (version.run.run_id, version.run.pipeline) == (ran.run_id, load.name)
        assert version.run.source == "DataFrame of load"
        assert version.loaded_at is not None
        with pytest.raises(DataError, match="has no row with id=1, code=A"):
            row_provenance(load.name, ["id=1", "code=A"], run_log=log)
        with pytest.raises(DataError, match="has no row with code=a"):
            row_provenance(load.name, ["code=a"], run_log=log)
    finally:
        log.close()
    (version,) = row_provenance(load.name, key, run_log=NullRunLog()).versions
    assert version.run is not None
    assert (version.run.run_id, version.run.recorded_in) == (ran.run_id, "target")
