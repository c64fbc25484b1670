WITH shipped AS (
    SELECT
        seller.n_name AS supp_nation,
        buyer.n_name AS cust_nation,
        year(l_shipdate) AS l_year,
        l_extendedprice * (1 - l_discount) AS volume
    FROM lineitem
    JOIN supplier ON s_suppkey = l_suppkey
    JOIN orders ON o_orderkey = l_orderkey
    JOIN customer ON c_custkey = o_custkey
    JOIN nation AS seller ON seller.n_nationkey = s_nationkey
    JOIN nation AS buyer ON buyer.n_nationkey = c_nationkey
    WHERE
        l_shipdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31'
        AND (
            (seller.n_name = 'FRANCE' AND buyer.n_name = 'GERMANY')
            OR (seller.n_name = 'GERMANY' AND buyer.n_name = 'FRANCE')
        )
)

SELECT supp_nation, cust_nation, l_year, sum(volume) AS revenue
FROM shipped
GROUP BY supp_nation, cust_nation, l_year
