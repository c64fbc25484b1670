WITH usual AS (
    SELECT l_partkey AS partkey, 0.2 * avg(l_quantity) AS little
    FROM lineitem
    GROUP BY l_partkey
)

SELECT CAST(sum(l_extendedprice) AS DOUBLE) / 7 AS avg_yearly
FROM lineitem
JOIN part ON p_partkey = l_partkey
JOIN usual ON partkey = l_partkey
WHERE p_brand = 'Brand#23' AND p_container = 'MED BOX' AND l_quantity < little
