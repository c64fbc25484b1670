"""The files of a new project, as ``flow init`` writes them."""

from __future__ import annotations

PIPELINES = '''\
"""Two pipelines to begin with: a CSV file into DuckDB, and a summary of what landed."""

from __future__ import annotations

from typing import Annotated

from ematix_flow import BigInt, Date, Numeric, Text, ematix, pk


@ematix.table(schema="shop")
class Orders:
    """One row per order."""

    order_id: Annotated[BigInt, pk()]
    customer: Text
    country: Text
    amount: Numeric[10, 2]
    ordered_on: Date


@ematix.pipeline(
    target=Orders,
    source_connection="files",
    target_connection="warehouse",
    mode="truncate",
    schedule="0 6 * * *",
)
def load_orders(conn):
    """Replace shop.orders with what is in data/orders.csv."""
    return """
        SELECT CAST(order_id AS BIGINT) AS order_id,
               TRIM(customer) AS customer,
               UPPER(country) AS country,
               CAST(amount AS DECIMAL(10, 2)) AS amount,
               CAST(ordered_on AS DATE) AS ordered_on
        FROM `orders.csv`
    """


@ematix.table(schema="shop")
class CountrySales:
    """Orders and revenue of each country."""

    country: Annotated[Text, pk()]
    orders: BigInt
    revenue: Numeric[12, 2]


@ematix.pipeline(
    target=CountrySales,
    target_connection="warehouse",
    mode="truncate",
    depends_on=["load_orders"],
)
def sum_up_countries(conn):
    """Source and target are the same database, so this one runs inside it, without Spark."""
    return """
        SELECT country,
               COUNT(*) AS orders,
               CAST(SUM(amount) AS DECIMAL(12, 2)) AS revenue
        FROM shop.orders
        GROUP BY country
    """
'''

SETTINGS = """\
# Where this project's pipelines are declared, and the connections they use.
# A value may refer to a secret: url = "postgres://me:${PGPASSWORD}@host/database"

[project]
modules = ["pipelines.py"]

[connections.files]
kind = "object_store_local"
path = "data"
format = "csv"

[connections.warehouse]
kind = "duckdb"
path = "warehouse.duckdb"
"""

ORDERS = """\
order_id,customer,country,amount,ordered_on
1,Ada Lovelace,gb,120.50,2026-01-05
2,Grace Hopper,us,75.00,2026-01-05
3,  Emmy Noether,de,230.25,2026-01-06
4,Ada Lovelace,gb,19.99,2026-01-07
5,Katherine Johnson,us,310.00,2026-01-09
6,Sofia Kovalevskaya,se,64.10,2026-01-10
7,Emmy Noether  ,de,12.75,2026-01-10
8,Mary Somerville,gb,88.80,2026-01-12
"""

README = """\
# {name}

Data pipelines, declared in `pipelines.py`. The connections they use are in `.ematix-flow.toml`.

    flow run                        # run all, in order of their dependencies
    flow list                       # what is declared
    flow preview load_orders        # what a run would do
    flow status                     # what ran, and what is due
    flow runs list                  # every run so far

The rows land in `warehouse.duckdb`:

    >>> import duckdb
    >>> duckdb.connect("warehouse.duckdb").sql("FROM shop.country_sales").show()

Change `data/orders.csv`, run again, and see the tables follow.
"""

GITIGNORE = """\
.venv/
__pycache__/
*.duckdb
*.duckdb.wal
"""


def starter_files(name: str) -> dict[str, str]:
    """The files of a project of that name, by relative path."""
    return {
        ".ematix-flow.toml": SETTINGS,
        ".gitignore": GITIGNORE,
        "README.md": README.format(name=name),
        "data/orders.csv": ORDERS,
        "pipelines.py": PIPELINES,
    }
