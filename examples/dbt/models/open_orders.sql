SELECT o.id, o.amount, c.name
FROM {{ source('shop', 'orders') }} o
JOIN {{ source('shop', 'customer') }} c ON c.id = o.customer
WHERE NOT o.shipped
