{# Drops a model's feed with its table, triggers and waiting chunks. Its topic and the groups of that stay. The next run
   makes it anew: another epoch, by which readers see that they begin again.

     dbt run-operation relaybox_drop_feed --args '{model: totals}'
#}
{% macro relaybox_drop_feed(model) %}
  {% set feed = relaybox.relaybox_feed_config(model) %}
  {% set at = relaybox.tables_at(feed.outbox, feed.outbox_schema) %}
  {% set name = relaybox.literal(feed.name) %}
  {% do relaybox.begin_operation() %}
  {% do run_query('SELECT ' ~ relaybox.table_of(at, 'feed_drop') ~ '(' ~ name ~ ')') %}
  {% do run_query(relaybox.audit_line(at, relaybox.actor(), 'drop', 'feed ' ~ feed.name, 'dbt ' ~ invocation_id)) %}
  {% do relaybox.end_operation() %}
{% endmacro %}

{% macro actor() %}
  {{ return(var('relaybox_actor', none) or target.user ~ '@dbt') }}
{% endmacro %}
