-- What groups were promised, when they last came back, and what they lost.

-- Events that some group was to have: those that `since` had not seen and `until` had. While a topic has a group that is
-- not cancelled, one of its promises has no end. `tick` is the tick whose snapshot `since` is; the tick itself may go.
CREATE TABLE {promise} (
  topic_id integer     NOT NULL REFERENCES {topic} (id) ON DELETE CASCADE,
  tick     bigint      NOT NULL,
  since    pg_snapshot NOT NULL,
  until    pg_snapshot,
  ended_at timestamptz
);

CREATE UNIQUE INDEX "{promise_name}_open" ON {promise} (topic_id) WHERE until IS NULL;

-- Of the topics there are nothing was noted: all that they hold counts as promised if there is any group.
INSERT INTO {promise} (topic_id, tick, since, until, ended_at)
SELECT g.topic_id, 0, '1:1:', CASE WHEN bool_and(g.state = 'cancelled') THEN pg_current_snapshot() END,
       CASE WHEN bool_and(g.state = 'cancelled') THEN clock_timestamp() END
FROM {group} g GROUP BY g.topic_id;

ALTER TABLE {group} ADD COLUMN alive_since timestamptz NOT NULL DEFAULT clock_timestamp();  -- it came back, or began
ALTER TABLE {group} ADD COLUMN lost bigint NOT NULL DEFAULT 0;  -- events that were deleted before it had them
