-- name: inbox.instance.owned -> rows
-- What dead instances had claimed. Rows that a transaction has locked are its own business: it commits or rolls back,
-- and then the lease runs out.
SELECT seq FROM {pending} WHERE owner IS NOT NULL AND JSON_CONTAINS(:owners, CAST(owner AS char))
{skip_locked}
