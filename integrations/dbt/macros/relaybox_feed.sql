{# A model whose table is a feed: the result of its query, and one delta per run that changed it.

   Everything from `begin_transaction()` to `adapter.commit()` is one transaction: inbox, definition, groups, refresh, hooks.
   A hook that fails takes table, delta and what was consumed back with it.
#}
{% materialization relaybox_feed, adapter='postgres' %}
  {%- set target_relation = this.incorporate(type='table') -%}
  {%- set existing_relation = load_cached_relation(this) -%}
  {%- set feed = relaybox.relaybox_feed_config() -%}
  {%- set at = relaybox.tables_at(feed.outbox, feed.outbox_schema) -%}
  {%- set grant_config = config.get('grants') -%}
  {% do relaybox.check_run() %}

  {{ run_hooks(pre_hooks, inside_transaction=False) }}
  {% do relaybox.begin_transaction() %}
  {{ run_hooks(pre_hooks, inside_transaction=True) }}

  {% if config.get('contract').enforced %}
    {{ get_assert_columns_equivalent(sql) }}
  {% endif %}
  {% set is_new = relaybox.make_room(at, feed, existing_relation) %}
  {% if feed.inbox %}
    {% do relaybox.relaybox_create_inbox(feed.inbox.name, feed.inbox.ordering, feed.inbox.schema) %}
  {% endif %}
  {% set own_topic = relaybox.make_topic(at, feed.topic) %}
  {% for group in feed.groups %}
    {% do relaybox.make_group(at, feed.topic, group) %}
  {% endfor %}
  {% call statement('main') -%}
    {{ relaybox.feed_definition(at, feed, own_topic, sql) }}
  {%- endcall %}
  {% set done = relaybox.refresh_feed(at, feed) %}
  {% do store_raw_result('main', message=done.message, code='REFRESH', rows_affected=done.rows) %}

  {% do relaybox.keep_indexes(target_relation) %}
  {% set should_revoke = should_revoke(existing_relation, full_refresh_mode=is_new) %}
  {% do apply_grants(target_relation, grant_config, should_revoke=should_revoke) %}
  {% do persist_docs(target_relation, model) %}
  {{ run_hooks(post_hooks, inside_transaction=True) }}
  {{ adapter.commit() }}

  {{ run_hooks(post_hooks, inside_transaction=False) }}
  {{ return({'relations': [target_relation]}) }}
{% endmaterialization %}

{# What would tell readers something that is not so. #}
{% macro check_run() %}
  {% if invocation_args_dict.get('empty') or invocation_args_dict.get('sample') %}
    {% do relaybox.refuse('a relaybox_feed cannot be run with --empty or --sample: its readers would be told that the other rows are gone') %}
  {% elif target.autocommit %}
    {% do relaybox.refuse('a relaybox_feed needs a transaction, and the profile says autocommit: true') %}
  {% endif %}
{% endmacro %}

{# True: the feed's table is made by this run. A relation of another kind is dropped by --full-refresh only. #}
{% macro make_room(at, feed, existing) %}
  {% set table = relaybox.literal(feed.options.table) %}
  {% if relaybox.answer("SELECT to_regproc('" ~ relaybox.table_of(at, 'feed_create') ~ "')") is none %}
    {% do relaybox.refuse('there are no feeds of outbox ' ~ feed.outbox ~ ' here; run `relaybox migrate`, and set the vars relaybox_outbox and relaybox_outbox_schema if it is called otherwise or is elsewhere') %}
  {% endif %}
  {% set found = run_query('SELECT f.relation, to_regclass(f.relation) IS NOT NULL, to_regclass(f.relation) = to_regclass(' ~ table ~ ') FROM ' ~ relaybox.table_of(at, 'feed') ~ ' f WHERE f.name = ' ~ relaybox.literal(feed.name)) %}
  {% set kept = found.rows[0] if found.rows | length > 0 else none %}
  {% if kept is not none and not kept[1] %}
    {% do relaybox.refuse('feed ' ~ feed.name ~ ': its table ' ~ kept[0] ~ " was dropped; run `dbt run-operation relaybox_drop_feed --args '{model: " ~ model.name ~ "}'` and then this again: its readers begin anew") %}
  {% elif kept is not none and not kept[2] %}
    {% do relaybox.refuse('feed ' ~ feed.name ~ ' keeps ' ~ kept[0] ~ ', and this model is ' ~ feed.options.table ~ ': give it another name, such as name: "{{ target.name }}_' ~ feed.name ~ '"') %}
  {% elif kept is none and existing is not none %}
    {% if not should_full_refresh() %}
      {% do relaybox.refuse(existing ~ ' is there already and is no feed; --full-refresh drops it, with what depends on it, and makes the feed') %}
    {% endif %}
    {% do adapter.drop_relation(existing) %}
  {% endif %}
  {{ return(kept is none) }}
{% endmacro %}

{# True: it was not there. #}
{% macro make_topic(at, topic) %}
  {% set there = relaybox.answer('SELECT id FROM ' ~ relaybox.table_of(at, 'topic') ~ ' WHERE name = ' ~ relaybox.literal(topic)) %}
  {{ return(there is none and relaybox.new_topic(at, topic)) }}
{% endmacro %}

{# One that is there, or was cancelled by somebody, stays as it is. #}
{% macro make_group(at, topic_name, group) %}
  {% set row = relaybox.group_of(at, topic_name, group.name) %}
  {% if row[3] is none and row[2] == 'offset' %}
    {% set row = relaybox.group_of(at, topic_name, group.name, lock=true) %}
  {% endif %}
  {% if row[3] is not none %}
    {% if row[3] != group.ordered %}
      {% do relaybox.refuse('group ' ~ group.name ~ ' of topic ' ~ topic_name ~ ' reads ' ~ ('in order' if row[3] else 'in any order') ~ '; say so, or cancel it and take another name') %}
    {% endif %}
  {% elif row[2] != 'offset' %}
    {% do relaybox.refuse('group ' ~ group.name ~ ': topic ' ~ topic_name ~ ' is tracked by ' ~ row[2] ~ '; create the group by `relaybox groups create`') %}
  {% else %}
    {% set topic = {'id': row[0], 'shards': row[1], 'interval': "interval '" ~ row[4] ~ " seconds'"} %}
    {% if group.start == 'latest' %}
      {% do relaybox.new_group_latest(at, topic, group.name, group.ordered) %}
    {% else %}
      {% do relaybox.new_group_earliest(at, topic, group.name, group.ordered) %}
    {% endif %}
    {% do run_query(relaybox.audit_line(at, relaybox.actor(), 'create', 'group ' ~ topic_name ~ '/' ~ group.name, 'dbt ' ~ invocation_id)) %}
  {% endif %}
{% endmacro %}

{# A topic, and whether its last group of this name is ordered; NULL: there was none. #}
{% macro group_of(at, topic, group, lock=false) %}
  {% if lock %}
    {% do run_query('SELECT id FROM ' ~ relaybox.table_of(at, 'topic') ~ ' WHERE name = ' ~ relaybox.literal(topic) ~ ' FOR NO KEY UPDATE') %}
  {% endif %}
  {% set query %}
    SELECT t.id, t.shards, t.tracking,
           (SELECT g.ordered FROM {{ relaybox.table_of(at, 'group') }} g
            WHERE g.topic_id = t.id AND g.name = {{ relaybox.literal(group) }} ORDER BY g.generation DESC LIMIT 1),
           least((t.options::json ->> 'heartbeat_interval')::float8, 43200)
    FROM {{ relaybox.table_of(at, 'topic') }} t WHERE t.name = {{ relaybox.literal(topic) }}
  {% endset %}
  {{ return(run_query(query).rows[0]) }}
{% endmacro %}

{# The same definition changes nothing. The tag of the body is made from it, so nothing in it can end it. #}
{% macro feed_definition(at, feed, own_topic, query) %}
  {% set tag = '$relaybox_' ~ local_md5(query) ~ '$' %}
  {% set options = dict(feed.options, own_topic=own_topic) %}
DO {{ tag }}
BEGIN
  IF {{ relaybox.table_of(at, 'feed_create') }}({{ relaybox.literal(feed.name) }}, {{ relaybox.literal(query) }},
       ARRAY[{% for column in feed.key %}{{ relaybox.literal(column) }}{{ ', ' if not loop.last }}{% endfor %}], {{ relaybox.literal(feed.topic) }},
       {{ relaybox.literal(tojson(options)) }}) THEN
    {{ relaybox.audit_line(at, relaybox.actor(), 'create', 'feed ' ~ feed.name, 'dbt ' ~ invocation_id) }};
  END IF;
EXCEPTION WHEN SQLSTATE 'RBF06' OR SQLSTATE 'RBF14' THEN
  RAISE USING ERRCODE = SQLSTATE, MESSAGE = SQLERRM, HINT = {{ relaybox.literal("to drop it: dbt run-operation relaybox_drop_feed --args '{model: " ~ model.name ~ "}'; or give feed another name and this model another alias") }};
END {{ tag }}
{% endmacro %}

{% macro refresh_feed(at, feed) %}
  {% set how = 'full' if should_full_refresh() else none %}
  {% call statement('relaybox_refresh', fetch_result=True) %}
    SELECT r.how, r.inserted, r.deleted, r.n, r.seq IS NOT NULL
    FROM {{ relaybox.table_of(at, 'feed_refresh') }}({{ relaybox.literal(feed.name) }}, {{ relaybox.literal(how) }}) AS r
  {% endcall %}
  {% set row = load_result('relaybox_refresh').table.rows[0] %}
  {% set told = 'delta ' ~ row[3] if row[4] else 'no delta' %}
  {{ return({'message': told ~ ', ' ~ row[0] ~ ': +' ~ row[1] ~ ' -' ~ row[2], 'rows': (row[1] + row[2]) | int}) }}
{% endmacro %}

{# The indexes of the config, by names that say what they are. Those of an earlier config go. #}
{% macro keep_indexes(relation) %}
  {% set wanted = [] %}
  {% for given in config.get('indexes', default=[]) %}
    {% set index = adapter.parse_index(given) %}
    {% do wanted.append({'name': 'relaybox_' ~ local_md5(relation.schema ~ '.' ~ relation.identifier ~ tojson(given)), 'index': index}) %}
  {% endfor %}
  {% set names = wanted | map(attribute='name') | list %}
  {% set there = run_query("SELECT indexname FROM pg_indexes WHERE schemaname = " ~ relaybox.literal(relation.schema) ~ " AND tablename = " ~ relaybox.literal(relation.identifier) ~ " AND indexname ~ '^relaybox_[0-9a-f]{32}$'") %}
  {% set there = there.columns[0].values() | list %}
  {% for name in there if name not in names %}
    {% do run_query('DROP INDEX "' ~ relation.schema ~ '"."' ~ name ~ '"') %}
  {% endfor %}
  {% for one in wanted if one.name not in there %}
    {% if one.index.unique %}
      {% do relaybox.refuse('a feed takes no unique index besides its key: a refresh changes rows one after the other, and two may have the same value meanwhile') %}
    {% endif %}
    {% do run_query('CREATE INDEX "' ~ one.name ~ '" ON ' ~ relation ~ ' USING ' ~ (one.index.type or 'btree') ~ ' (' ~ one.index.columns | join(', ') ~ ')') %}
  {% endfor %}
{% endmacro %}
