CREATE MATERIALIZED VIEW positive AS
SELECT amount, count(*) AS orders
FROM orders
WHERE amount > 0
GROUP BY amount
