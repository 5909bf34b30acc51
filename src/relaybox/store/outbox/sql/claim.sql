-- name: outbox.claim.sizes -> rows
-- Of events whose payload a claim has left here: how large it and the headers are, and whether the row is one at all.
SELECT e.seq, {size}(e.payload), {size}(e.headers), e.event_id IS NOT NULL AND e.event_type IS NOT NULL
FROM {event} e WHERE e.seq {in_seqs}

-- name: outbox.claim.payloads -> rows
SELECT e.seq, {whole_payload} FROM {event} e WHERE e.seq {in_seqs}

-- name: outbox.keys.newest -> rows
SELECT max(seq) FROM {pending}
