-- Feeds: the results of queries kept as tables, and who changed what they are made of.

CREATE TABLE {feed} (
  id            integer      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name          text         COLLATE "C" NOT NULL CHECK (length(name) <= 128),
  topic_id      integer      NOT NULL REFERENCES {topic} (id) ON DELETE RESTRICT,
  own_topic     boolean      NOT NULL,              -- the topic was made with the feed, and goes with it
  version       integer      NOT NULL DEFAULT 1,    -- raised by each redefinition: work tables of sessions are named by it
  state         text         NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused')),
  query         text         NOT NULL,
  sources       text         NOT NULL DEFAULT '[]', -- JSON: the mappings as they were given
  relation      text         NOT NULL DEFAULT '',   -- the kept table; like all names here qualified and quoted
  query_view    text         NOT NULL DEFAULT '',   -- the query as a view: it holds columns, types and sources
  rows_of       text         NOT NULL DEFAULT '',   -- function: what the query says of some scopes
  key           text[]       NOT NULL,              -- identity of a row
  scope         text[]       NOT NULL,              -- what changes are mapped to and the query is narrowed by
  columns       text[]       NOT NULL DEFAULT '{}',
  reads         regclass[]   NOT NULL DEFAULT '{}', -- every table the query reads
  mode          text         NOT NULL CHECK (mode IN ('full', 'differential', 'auto')),
  auto_share    float8       NOT NULL,
  inline_rows   integer      NOT NULL,
  inline_bytes  integer      NOT NULL,
  chunk_rows    integer      NOT NULL CHECK (chunk_rows > 0),
  skip_empty    boolean      NOT NULL,
  definition    text         NOT NULL DEFAULT '',   -- hash of what readers or triggers depend on
  fingerprint   text         NOT NULL DEFAULT '',   -- triggers and partitions as the last refresh saw them
  epoch         uuid         NOT NULL DEFAULT gen_random_uuid(),
  n             bigint       NOT NULL DEFAULT 0,    -- deltas written: without gaps, because the feed is locked meanwhile
  created_at    timestamptz  NOT NULL DEFAULT clock_timestamp(),
  refreshed_at  timestamptz,
  last_how      text,
  last_inserted bigint,
  last_deleted  bigint,
  CONSTRAINT "{feed_name}_name_key" UNIQUE (name)
) WITH (fillfactor = 50);

-- A table that a feed reads, and which of its columns say what a change means.
CREATE TABLE {feed_source} (
  feed_id   integer  NOT NULL REFERENCES {feed} (id) ON DELETE CASCADE,
  ord       integer  NOT NULL,
  relid     regclass NOT NULL,
  mapped    text[]   NOT NULL,        -- the columns that triggers store, of the row before and after
  used      text[]   NOT NULL,        -- an update that changes none of these means nothing
  touched   text     NOT NULL,        -- table: what changed and was not looked at yet
  scopes    text,                     -- view: touched rows as scopes; without one they are scopes themselves
  captured  text     NOT NULL,        -- function: the trigger's
  by_row    boolean  NOT NULL,
  PRIMARY KEY (feed_id, ord)
);

-- Append-only marks: the whole feed must be evaluated again.
CREATE TABLE {feed_stale} (
  feed_id integer     NOT NULL,
  reason  text        NOT NULL,
  at      timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Deltas whose rows are in chunks, and their places in the log.
CREATE TABLE {feed_delta} (
  feed_id  integer     NOT NULL REFERENCES {feed} (id) ON DELETE CASCADE,
  n        bigint      NOT NULL,
  shard    smallint    NOT NULL,
  seq      bigint      NOT NULL,
  chunks   integer     NOT NULL,
  inserted bigint      NOT NULL,
  deleted  bigint      NOT NULL,
  at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (feed_id, n)
);

-- A chunk is a JSON array of rows: a reader's batch is one look into the index. Deleted rows come before inserted ones; of a
-- delta that has both, the k-th chunks of both have the same keys.
CREATE TABLE {feed_chunk} (
  feed_id integer NOT NULL,
  n       bigint  NOT NULL,
  chunk   integer NOT NULL,
  op      text    NOT NULL CHECK (op IN ('D', 'I')),
  rows    integer NOT NULL,
  payload text    NOT NULL,
  PRIMARY KEY (feed_id, n, chunk)
);

-- Read once or twice, and whole: compressing it costs more than it saves.
ALTER TABLE {feed_chunk} ALTER payload SET STORAGE EXTERNAL;

-- For people: one row each.
CREATE VIEW {feed_row} AS
SELECT f.name AS feed, c.n,
       row_number() OVER (PARTITION BY c.feed_id, c.n ORDER BY c.chunk, e.ord) AS row_num,
       c.op, e.value AS payload
FROM {feed_chunk} c JOIN {feed} f ON f.id = c.feed_id,
     json_array_elements(c.payload::json) WITH ORDINALITY AS e(value, ord);

CREATE TYPE {feed_refreshed} AS (
  n           bigint,    -- of the delta, or of the last one if none was written
  how         text,
  reasons     text[],    -- why it had to be full
  inserted    bigint,
  deleted     bigint,
  claim_check boolean,
  seq         bigint     -- the number of the delta in its topic; NULL: none was written
);
