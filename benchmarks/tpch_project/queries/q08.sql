WITH sold AS (
    SELECT
        year(o_orderdate) AS o_year,
        l_extendedprice * (1 - l_discount) AS volume,
        seller.n_name AS nation_name
    FROM part
    JOIN lineitem ON l_partkey = p_partkey
    JOIN supplier ON s_suppkey = l_suppkey
    JOIN orders ON o_orderkey = l_orderkey
    JOIN customer ON c_custkey = o_custkey
    JOIN nation AS buyer ON buyer.n_nationkey = c_nationkey
    JOIN region ON r_regionkey = buyer.n_regionkey
    JOIN nation AS seller ON seller.n_nationkey = s_nationkey
    WHERE
        r_name = 'AMERICA'
        AND o_orderdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31'
        AND p_type = 'ECONOMY ANODIZED STEEL'
)

SELECT
    o_year,
    sum(CAST(CASE WHEN nation_name = 'BRAZIL' THEN volume ELSE 0 END AS DOUBLE))
    / sum(CAST(volume AS DOUBLE)) AS mkt_share
FROM sold
GROUP BY o_year
