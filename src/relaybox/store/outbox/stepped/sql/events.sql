-- name: outbox.events.pick -> rows
SELECT t.seq FROM {pending_rows} WHERE {these} {for_update}
