"""The demo's pipelines, in three steps: CSV → clean Parquet → DuckDB star schema → SQLite report.

Every one replaces its target (``mode="truncate"``), so that running them again changes nothing.
"""

from __future__ import annotations

import shop

from ematix_flow import (
    Annotated,
    BigInt,
    Boolean,
    Date,
    Integer,
    Numeric,
    String,
    Text,
    TimestampTZ,
    ematix,
    pk,
)
from ematix_flow.normalize import (
    default,
    email_normalize,
    empty_to_null,
    lower,
    parse_bool,
    parse_date,
    parse_int,
    parse_numeric,
    parse_timestamp,
    phone_normalize,
    trim,
    upper,
    whitespace_to_null,
)

# Step 1: the shop's CSV files, cleaned by what the columns declare, become Parquet.


@ematix.table(schema="clean", name="customers")
class CleanCustomer:
    """A customer as exported, but tidy; one that was exported twice is here twice."""

    customer_id: Annotated[BigInt, pk(), parse_int()]
    name: Annotated[Text, trim()]
    email: Annotated[Text | None, email_normalize(), empty_to_null()]
    phone: Annotated[Text | None, phone_normalize(), empty_to_null()]
    country: Annotated[String[2] | None, trim(), upper(), empty_to_null()]
    signed_up: Annotated[Date | None, parse_date(on_failure="null")]
    newsletter: Annotated[Boolean, whitespace_to_null(), parse_bool(), default(False)]


@ematix.table(schema="clean", name="orders")
class CleanOrder:
    """An order, with a real timestamp."""

    order_id: Annotated[BigInt, pk(), parse_int()]
    customer_id: Annotated[BigInt, parse_int()]
    ordered_at: Annotated[TimestampTZ, parse_timestamp()]
    status: Annotated[Text, trim(), lower()]
    discount_percent: Annotated[
        Numeric[5, 2], whitespace_to_null(), parse_numeric(precision=5, scale=2), default(0)
    ]


@ematix.table(schema="clean", name="line_items")
class CleanLineItem:
    """One product of one order."""

    order_id: Annotated[BigInt, pk(), parse_int()]
    line_number: Annotated[BigInt, pk(), parse_int()]
    product: Annotated[Text, trim(), lower()]
    quantity: Annotated[BigInt, parse_int()]
    unit_price: Annotated[Numeric[10, 2], parse_numeric(precision=10, scale=2)]


@ematix.pipeline(
    target=CleanCustomer,
    source_connection="shop",
    source_table="customers.csv",
    target_connection="lake",
    mode="truncate",
)
def clean_customers():
    """Customers with trimmed names, one spelling of e-mail, phone and country, real dates."""
    shop.export()


@ematix.pipeline(
    target=CleanOrder,
    source_connection="shop",
    source_table="orders.csv",
    target_connection="lake",
    mode="truncate",
)
def clean_orders():
    """Orders with real timestamps and a discount that is never missing."""
    shop.export()


@ematix.pipeline(
    target=CleanLineItem,
    source_connection="shop",
    source_table="line_items.csv",
    target_connection="lake",
    mode="truncate",
)
def clean_line_items():
    """Line items with numbers that are numbers."""
    shop.export()


# Step 2: the clean files become a star schema in DuckDB.


@ematix.table(schema="star", name="dim_customer")
class DimCustomer:
    """Who buys."""

    customer_id: Annotated[BigInt, pk()]
    name: Text
    email: Text | None
    country: String[2]
    newsletter: Boolean


@ematix.table(schema="star", name="dim_product")
class DimProduct:
    """What is bought."""

    product: Annotated[Text, pk()]
    unit_price: Numeric[10, 2]


@ematix.table(schema="star", name="fact_sales")
class FactSale:
    """What was bought, by whom, when, for how much."""

    order_id: Annotated[BigInt, pk()]
    line_number: Annotated[BigInt, pk()]
    customer_id: BigInt
    product: Text
    sold_on: Date
    quantity: BigInt
    amount: Numeric[12, 2]


@ematix.pipeline(
    target=DimCustomer,
    source_connection="lake",
    target_connection="warehouse",
    mode="truncate",
    depends_on=[clean_customers],
)
def dim_customer():
    """One row per customer: rows that differed in spacing only are equal by now."""
    return """
        SELECT DISTINCT customer_id, name, email, coalesce(country, '??') AS country, newsletter
        FROM clean.customers
    """


@ematix.pipeline(
    target=DimProduct,
    source_connection="lake",
    target_connection="warehouse",
    mode="truncate",
    depends_on=[clean_line_items],
)
def dim_product():
    """One row per product, at the highest price it was sold for."""
    return """
        SELECT product, max(unit_price) AS unit_price FROM clean.line_items GROUP BY product
    """


@ematix.pipeline(
    target=FactSale,
    source_connection="lake",
    target_connection="warehouse",
    mode="truncate",
    depends_on=[clean_orders, clean_line_items],
)
def fact_sales():
    """Every line of every order that was not cancelled, with its discounted amount."""
    return """
        SELECT i.order_id, i.line_number, o.customer_id, i.product,
               CAST(o.ordered_at AS DATE) AS sold_on,
               i.quantity,
               CAST(round(i.quantity * i.unit_price * (100 - o.discount_percent) / 100, 2)
                    AS DECIMAL(12, 2)) AS amount
        FROM clean.line_items i
        JOIN clean.orders o ON o.order_id = i.order_id
        WHERE o.status <> 'cancelled'
    """


# Step 3: DuckDB sums up, SQLite holds the report.


@ematix.table(name="sales_by_country")
class SalesByCountry:
    """A line of the report."""

    month: Annotated[String[7], pk()]
    country: Annotated[String[2], pk()]
    customers: Integer
    items: BigInt
    revenue: Numeric[14, 2]


@ematix.pipeline(
    target=SalesByCountry,
    source_connection="warehouse",
    target_connection="reports",
    mode="truncate",
    depends_on=[dim_customer, dim_product, fact_sales],
)
def sales_by_country():
    """Revenue by month and country, for people who only have SQLite."""
    return """
        SELECT strftime(f.sold_on, '%Y-%m') AS month,
               c.country,
               CAST(count(DISTINCT f.customer_id) AS INTEGER) AS customers,
               CAST(sum(f.quantity) AS BIGINT) AS items,
               CAST(sum(f.amount) AS DECIMAL(14, 2)) AS revenue
        FROM star.fact_sales f
        JOIN star.dim_customer c ON c.customer_id = f.customer_id
        GROUP BY ALL
    """
