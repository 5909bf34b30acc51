-- name: inbox.message.find -> rows
-- One by its id. The newest, should there be an older one whose id was forgotten.
SELECT m.seq, {message_columns}, m.source,
       {found}
FROM {message} m LEFT JOIN {pending} p ON p.seq = m.seq LEFT JOIN {dead} d ON d.seq = m.seq
LEFT JOIN {done} f ON f.seq = m.seq
WHERE m.event_id = :event_id
ORDER BY m.seq DESC LIMIT 1
