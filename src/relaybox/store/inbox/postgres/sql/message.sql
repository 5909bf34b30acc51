-- name: inbox.message.find -> rows
-- One by its id. The newest, should an adopted table have more.
SELECT m.seq, {message_columns}, m.source,
       {found}
FROM (SELECT * FROM {message} WHERE event_id = :event_id AND payload IS NOT NULL OFFSET 0) m LEFT JOIN {pending} p ON p.seq = m.seq
LEFT JOIN {dead} d ON d.seq = m.seq
LEFT JOIN {done} f ON f.seq = m.seq
ORDER BY m.seq DESC LIMIT 1
