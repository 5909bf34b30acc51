SELECT customer, count(*) AS orders, sum(amount) AS total
FROM {{ source('shop', 'orders') }}
GROUP BY customer
