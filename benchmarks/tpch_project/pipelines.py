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
    l_orderkey: BigInt
    revenue: Numeric[38, 4]
    o_orderdate: Date
    o_shippriority: Integer


@ematix.table(schema="tpch", name="q04")
class OrderPriority:
    o_orderpriority: Text
    order_count: BigInt


@ematix.table(schema="tpch", name="q05")
class LocalSupplierVolume:
    n_name: Text
    revenue: Numeric[38, 4]


@ematix.table(schema="tpch", name="q06")
class RevenueChange:
    revenue: Numeric[38, 4]


@ematix.table(schema="tpch", name="q07")
class VolumeShipping:
    supp_nation: Text
    cust_nation: Text
    l_year: Integer
    revenue: Numeric[38, 4]


@ematix.table(schema="tpch", name="q08")
class MarketShare:
    o_year: Integer
    mkt_share: Double


@ematix.table(schema="tpch", name="q09")
class ProductProfit:
    nation: Text
    o_year: Integer
    sum_profit: Numeric[38, 4]


@ematix.table(schema="tpch", name="q10")
class ReturnedItems:
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
    ps_partkey: BigInt
    value: Numeric[38, 2]


@ematix.table(schema="tpch", name="q12")
class ShippingModes:
    l_shipmode: Text
    high_line_count: BigInt
    low_line_count: BigInt


@ematix.table(schema="tpch", name="q13")
class CustomerDistribution:
    c_count: BigInt
    custdist: BigInt


@ematix.table(schema="tpch", name="q14")
class PromotionEffect:
    promo_revenue: Double


@ematix.table(schema="tpch", name="q15")
class TopSupplier:
    s_suppkey: BigInt
    s_name: Text
    s_address: Text
    s_phone: Text
    total_revenue: Numeric[38, 4]


@ematix.table(schema="tpch", name="q16")
class PartSuppliers:
    p_brand: Text
    p_type: Text
    p_size: Integer
    supplier_cnt: BigInt


@ematix.table(schema="tpch", name="q17")
class SmallQuantityOrders:
    avg_yearly: Double | None


@ematix.table(schema="tpch", name="q18")
class LargeVolumeCustomers:
    c_name: Text
    c_custkey: BigInt
    o_orderkey: BigInt
    o_orderdate: Date
    o_totalprice: Numeric[15, 2]
    quantity: Numeric[38, 2]


@ematix.table(schema="tpch", name="q19")
class DiscountedRevenue:
    revenue: Numeric[38, 4] | None


@ematix.table(schema="tpch", name="q20")
class PartPromotion:
    s_name: Text
    s_address: Text


@ematix.table(schema="tpch", name="q21")
class WaitingSuppliers:
    s_name: Text
    numwait: BigInt


@ematix.table(schema="tpch", name="q22")
class SalesOpportunities:
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
