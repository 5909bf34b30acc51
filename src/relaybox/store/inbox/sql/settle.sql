-- name: inbox.settle.forget -> count
DELETE FROM {pending} WHERE seq {in_seqs}
