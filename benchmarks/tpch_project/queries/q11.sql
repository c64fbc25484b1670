-- The limit is 0.0001 divided by the scale factor, and for each of those 10,000 there is a supplier.
WITH held AS (
    SELECT ps_partkey, ps_supplycost * ps_availqty AS worth
    FROM partsupp
    JOIN supplier ON s_suppkey = ps_suppkey
    JOIN nation ON n_nationkey = s_nationkey
    WHERE n_name = 'GERMANY'
)

SELECT ps_partkey, sum(worth) AS value
FROM held
GROUP BY ps_partkey
HAVING sum(worth) * (SELECT count(*) FROM supplier) > (SELECT sum(worth) FROM held)
