"""TPC-H as pipelines: each of the 22 queries reads the lake and fills a table of its own.

Connections `lake` and `answers` come from the project's TOML; where Spark runs, from there or from
the environment.
"""

from __future__ import annotations

from pathlib import Path

from ematix_flow import BigInt, Date, Double, Integer, Numeric, Text, ematix

QUERIES = Path(__file__).parent / "queries"


@ematix.table(schema="tpch", name="q01")
class PricingSummary:
    """What was sold, billed and returned until shortly before the last shipment."""

    l_returnflag: Text
    l_linestatus: Text
    sum_qty: Numeric[38, 2]
    sum_base_price: Numeric[38, 2]
    sum_disc_price: Numeric[38, 4]
    sum_charge: Numeric[38, 6]
    avg_qty: Double
    avg_price: Double
    avg_disc: Double
    count_order: BigInt


@ematix.table(schema="tpch", name="q02")
class MinimumCostSupplier:
    """Who in a region sells a part the cheapest."""

    s_acctbal: Numeric[15, 2]
    s_name: Text
    n_name: Text
    p_partkey: BigInt
    p_mfgr: Text
    s_address: Text
    s_phone: Text
    s_comment: Text


@ematix.table(schema="tpch", name="q03")
class ShippingPriority:
    """The dearest orders that had not been shipped on a day."""

    l_orderkey: BigInt
    revenue: Numeric[38, 4]
    o_orderdate: Date
    o_shippriority: Integer


@ematix.table(schema="tpch", name="q04")
class OrderPriority:
    """Orders with a late item, by priority."""

    o_orderpriority: Text
    order_count: BigInt


@ematix.table(schema="tpch", name="q05")
class LocalSupplierVolume:
    """Revenue where buyer and seller are of the same nation."""

    n_name: Text
    revenue: Numeric[38, 4]


@ematix.table(schema="tpch", name="q06")
class RevenueChange:
    """What certain discounts have cost in a year."""

    revenue: Numeric[38, 4]


@ematix.table(schema="tpch", name="q07")
class VolumeShipping:
    """Trade between two nations, by year."""

    supp_nation: Text
    cust_nation: Text
    l_year: Integer
    revenue: Numeric[38, 4]


@ematix.table(schema="tpch", name="q08")
class MarketShare:
    """The share of a nation in the sales of a part, by year."""

    o_year: Integer
    mkt_share: Double


@ematix.table(schema="tpch", name="q09")
class ProductProfit:
    """Profit on a line of parts, by nation and year."""

    nation: Text
    o_year: Integer
    sum_profit: Numeric[38, 4]


@ematix.table(schema="tpch", name="q10")
class ReturnedItems:
    """Customers who have sent back the most."""

    c_custkey: BigInt
    c_name: Text
    revenue: Numeric[38, 4]
    c_acctbal: Numeric[15, 2]
    n_name: Text
    c_address: Text
    c_phone: Text
    c_comment: Text


@ematix.table(schema="tpch", name="q11")
class ImportantStock:
    """Parts that make up much of a nation's stock."""

    ps_partkey: BigInt
    value: Numeric[38, 2]


@ematix.table(schema="tpch", name="q12")
class ShippingModes:
    """Late items of urgent and other orders, by mode of shipment."""

    l_shipmode: Text
    high_line_count: BigInt
    low_line_count: BigInt


@ematix.table(schema="tpch", name="q13")
class CustomerDistribution:
    """How many customers have how many orders."""

    c_count: BigInt
    custdist: BigInt


@ematix.table(schema="tpch", name="q14")
class PromotionEffect:
    """The share of promoted parts in the revenue of a month."""

    promo_revenue: Double


@ematix.table(schema="tpch", name="q15")
class TopSupplier:
    """The supplier with the largest revenue in a quarter."""

    s_suppkey: BigInt
    s_name: Text
    s_address: Text
    s_phone: Text
    total_revenue: Numeric[38, 4]


@ematix.table(schema="tpch", name="q16")
class PartSuppliers:
    """How many suppliers there are for parts of a kind."""

    p_brand: Text
    p_type: Text
    p_size: Integer
    supplier_cnt: BigInt


@ematix.table(schema="tpch", name="q17")
class SmallQuantityOrders:
    """What would be lost without orders of small quantities."""

    avg_yearly: Double | None


@ematix.table(schema="tpch", name="q18")
class LargeVolumeCustomers:
    """Customers with very large orders."""

    c_name: Text
    c_custkey: BigInt
    o_orderkey: BigInt
    o_orderdate: Date
    o_totalprice: Numeric[15, 2]
    quantity: Numeric[38, 2]


@ematix.table(schema="tpch", name="q19")
class DiscountedRevenue:
    """Revenue of parts that were handled in a certain way."""

    revenue: Numeric[38, 4] | None


@ematix.table(schema="tpch", name="q20")
class PartPromotion:
    """Suppliers with more of a part than they need."""

    s_name: Text
    s_address: Text


@ematix.table(schema="tpch", name="q21")
class WaitingSuppliers:
    """Suppliers who alone kept an order waiting."""

    s_name: Text
    numwait: BigInt


@ematix.table(schema="tpch", name="q22")
class SalesOpportunities:
    """Customers with money and without orders, by country."""

    cntrycode: Text
    numcust: BigInt
    totacctbal: Numeric[38, 2]


def declare(name: str, table: type) -> None:
    """The pipeline of one query, named after its file."""

    @ematix.pipeline(
        target=table,
        source_connection="lake",
        target_connection="answers",
        mode="truncate",
        name=name,
    )
    def answer() -> str:
        return (QUERIES / f"{name}.sql").read_text()


TABLES = (
    PricingSummary,
    MinimumCostSupplier,
    ShippingPriority,
    OrderPriority,
    LocalSupplierVolume,
    RevenueChange,
    VolumeShipping,
    MarketShare,
    ProductProfit,
    ReturnedItems,
    ImportantStock,
    ShippingModes,
    CustomerDistribution,
    PromotionEffect,
    TopSupplier,
    PartSuppliers,
    SmallQuantityOrders,
    LargeVolumeCustomers,
    DiscountedRevenue,
    PartPromotion,
    WaitingSuppliers,
    SalesOpportunities,
)
for number, table in enumerate(TABLES, start=1):
    declare(f"q{number:02d}", table)
