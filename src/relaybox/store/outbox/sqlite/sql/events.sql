-- name: outbox.events.pick -> rows
SELECT seq FROM {pending} WHERE seq {in_seqs}
