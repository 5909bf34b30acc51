{# Makes the tables of an inbox, or brings them up to date, as `relaybox inbox create` does. What is there stays.

     dbt run-operation relaybox_create_inbox --args '{name: orders, ordering: true}'
     on-run-start: "{{ relaybox.relaybox_create_inbox('orders') }}"

   ordering  true, or {start: 1, missing: block or seconds, dead: block or skip}: messages of a key in the order of
             their numbers. An inbox that is there already gets no other order: that is for `relaybox inbox configure`
#}
{% macro relaybox_create_inbox(name='inbox', ordering=none, schema=none) %}
  {% if execute %}
    {% set at = relaybox.tables_at(name, schema) %}
    {% set order = relaybox.inbox_order(ordering) %}
    {% do relaybox.begin_operation() %}
    {% set there = relaybox.answer("SELECT to_regclass('" ~ at.prefix ~ '"' ~ at.name ~ "_migration\"')") is not none %}
    {% set migrations = 'SELECT count(*) FROM ' ~ at.prefix ~ '"' ~ at.name ~ '_migration"' %}
    {% if not there or relaybox.answer(migrations) < relaybox.inbox_migrations() %}
      {% do relaybox.new_inbox(at) %}
    {% endif %}
    {% if order %}
      {% set kept = relaybox.answer("SELECT value FROM " ~ at.prefix ~ '"' ~ at.name ~ "_meta\" WHERE name = 'order' AND value::jsonb = " ~ relaybox.literal(order) ~ '::jsonb') %}
      {% if not there %}
        {% do relaybox.new_order(at, order) %}
      {% elif kept is none %}
        {% do relaybox.refuse('inbox ' ~ name ~ ' is there already, in another order or in none; `relaybox inbox configure --inbox ' ~ name ~ ' --ordered` changes that, because messages that are there must be thought of') %}
      {% endif %}
    {% endif %}
    {% do relaybox.end_operation() %}
  {% endif %}
{% endmacro %}

{# As relaybox keeps it; none: no order. #}
{% macro inbox_order(ordering) %}
  {% if not ordering %}
    {{ return(none) }}
  {% endif %}
  {% set order = dict({'start': 1, 'missing': 'block', 'dead': 'block'}, **(ordering if ordering is mapping else {})) %}
  {% if order | length > 3 or not (ordering is mapping or ordering is boolean)
        or not (order.start is none or (order.start is integer and order.start >= 0))
        or not (order.missing == 'block' or (order.missing is number and order.missing > 0))
        or order.dead not in ('block', 'skip') %}
    {% do relaybox.refuse("expected ordering to be true or {'start': 1, 'missing': 'block' or seconds, 'dead': 'block' or 'skip'}, got " ~ ordering) %}
  {% endif %}
  {% if order.missing != 'block' %}
    {% do order.update({'missing': order.missing * 1.0}) %}
  {% endif %}
  {{ return(tojson(order)) }}
{% endmacro %}
