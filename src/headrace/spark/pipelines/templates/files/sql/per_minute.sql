-- A window closes, and its row is written, when rows a minute later than its end have come (the watermark of orders).
SELECT
  window.start AS minute,
  country,
  count(*) AS orders,
  round(sum(amount), 2) AS revenue
FROM clean
GROUP BY window(at, '1 minute'), country
