SELECT
    100 * sum(CAST(
        CASE WHEN p_type LIKE 'PROMO%' THEN l_extendedprice * (1 - l_discount) ELSE 0 END AS DOUBLE
    )) / sum(CAST(l_extendedprice * (1 - l_discount) AS DOUBLE)) AS promo_revenue
FROM lineitem
JOIN part ON p_partkey = l_partkey
WHERE l_shipdate >= DATE '1995-09-01' AND l_shipdate < DATE '1995-10-01'
