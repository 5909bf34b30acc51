{# What is configured for a model, with everything filled in:

     dbt run-operation relaybox_feed_config --args '{model: totals}'    prints it
     relaybox.relaybox_feed_config()                                    in a model or a hook: of this model
#}
{% macro relaybox_feed_config(model=none) %}
  {% set node = relaybox.feed_node(model) %}
  {% set given = relaybox.feed_property(node, 'feed', {}) %}
  {% set known = ['name', 'key', 'scope', 'sources', 'mode', 'topic', 'outbox', 'outbox_schema'] + relaybox.feed_options() %}
  {% for option in given if option not in known %}
    {% do relaybox.refuse('model ' ~ node.name ~ ': feed has no option ' ~ option ~ '; it has ' ~ known | join(', ')) %}
  {% endfor %}
  {% if not given.key %}
    {% do relaybox.refuse("model " ~ node.name ~ " needs a key: feed={'key': 'id', 'sources': {'orders': 'id'}}") %}
  {% endif %}
  {% set mode = given.get('mode', 'auto') %}
  {% set options = {'mode': mode, 'sources': [], 'table': '"' ~ node.schema ~ '"."' ~ node.alias ~ '"'} %}
  {% do options.update({'scope': relaybox.as_list(given.scope) if given.scope else none}) %}
  {% for option in relaybox.feed_options() if option in given %}
    {% do options.update({option: given[option]}) %}
  {% endfor %}
  {% if mode != 'full' %}
    {% if not given.sources %}
      {% do relaybox.refuse('model ' ~ node.name ~ " needs sources, such as {'orders': 'customer'}, to know what a change means; or mode: full") %}
    {% endif %}
    {% set upstream = relaybox.feed_upstream(node) %}
    {% for name, mapped in given.sources.items() %}
      {% do options.sources.append(relaybox.feed_source(node, name, mapped, upstream)) %}
    {% endfor %}
  {% endif %}
  {% set name = given.name or node.alias %}
  {% set feed = {
    'name': name, 'key': relaybox.as_list(given.key), 'topic': given.topic or name, 'options': options,
    'outbox': given.outbox or var('relaybox_outbox', 'outbox_event') or 'outbox_event',
    'outbox_schema': given.outbox_schema or var('relaybox_outbox_schema', none),
    'groups': relaybox.feed_groups(node), 'inbox': relaybox.feed_inbox(node),
  } %}
  {% if flags.WHICH == 'run-operation' %}
    {% do print(tojson(feed)) %}
  {% endif %}
  {{ return(feed) }}
{% endmacro %}

{# A model by its name, or the one that is built. #}
{% macro feed_node(name) %}
  {% if name is none %}
    {{ return(relaybox.built_model()) }}
  {% endif %}
  {% for node in graph.nodes.values() if node.resource_type == 'model' and name in (node.name, node.unique_id) %}
    {{ return(node) }}
  {% endfor %}
  {% do relaybox.refuse('there is no model ' ~ name) %}
{% endmacro %}

{% macro built_model() %}
  {{ return(model) }}
{% endmacro %}

{# A property of ours: in the config, or below meta, where dbt wants what it does not know itself. #}
{% macro feed_property(node, name, otherwise=none) %}
  {{ return(node.config.get(name) or (node.config.get('meta') or {}).get(name) or otherwise) }}
{% endmacro %}

{% macro as_list(given) %}
  {{ return([given] if given is string else given | list) }}
{% endmacro %}

{# The tables that a model may read: through views and ephemeral models, but not beyond tables. #}
{% macro feed_upstream(node) %}
  {% set found = [] %}
  {% for id in node.depends_on.nodes %}
    {% set parent = graph.sources.get(id) or graph.nodes.get(id) %}
    {% if parent and parent.resource_type == 'model' and parent.config.materialized in ('view', 'ephemeral') %}
      {% do found.extend(relaybox.feed_upstream(parent)) %}
    {% elif parent %}
      {% do found.append(parent) %}
    {% endif %}
  {% endfor %}
  {{ return(found) }}
{% endmacro %}

{# How SQL has a table that is named as dbt has it: orders, shop.orders. What dbt does not know is taken as it is. #}
{% macro feed_relation(node, name, upstream) %}
  {% set found = [] %}
  {% for parent in upstream if name in (parent.name, (parent.source_name or parent.package_name) ~ '.' ~ parent.name) %}
    {% set relation = '"' ~ parent.schema ~ '"."' ~ (parent.identifier or parent.alias) ~ '"' %}
    {% if relation not in found %}
      {% do found.append(relation) %}
    {% endif %}
  {% endfor %}
  {% if found | length > 1 %}
    {% do relaybox.refuse('model ' ~ node.name ~ ': ' ~ name ~ ' may be ' ~ found | join(' or ') ~ '; write which') %}
  {% endif %}
  {{ return(found[0] if found else name) }}
{% endmacro %}

{# {'orders': 'customer'}, or {'orders': {'columns': …, 'resolve': 'SELECT … FROM touched t JOIN {orders} …'}}. #}
{% macro feed_source(node, name, mapped, upstream) %}
  {% set of = mapped if mapped is mapping else {'columns': mapped} %}
  {% for option in of if option not in ('columns', 'resolve', 'by_row') %}
    {% do relaybox.refuse('model ' ~ node.name ~ ': source ' ~ name ~ ' has no option ' ~ option ~ '; it has columns, resolve, by_row') %}
  {% endfor %}
  {% if not of.columns %}
    {% do relaybox.refuse('model ' ~ node.name ~ ': source ' ~ name ~ ' needs the columns by which a change there is mapped') %}
  {% endif %}
  {% set source = {'table': relaybox.feed_relation(node, name, upstream), 'columns': relaybox.as_list(of.columns), 'capture': 'row' if of.by_row else 'statement'} %}
  {% if of.resolve %}
    {% set parts = [] %}
    {% for part in modules.re.split('[{]([^{}]+)[}]', of.resolve) %}
      {% do parts.append(part if loop.index is odd else relaybox.feed_relation(node, part | trim, upstream)) %}
    {% endfor %}
    {% do source.update({'resolve': parts | join('')}) %}
  {% endif %}
  {{ return(source) }}
{% endmacro %}

{# 'mirror', or {'name': 'mirror', 'ordered': false, 'start': 'latest'}, or several of these. #}
{% macro feed_groups(node) %}
  {% set given = relaybox.feed_property(node, 'consumer_group', []) %}
  {% set groups = [] %}
  {% for one in ([given] if given is string or given is mapping else given) %}
    {% set group = {'name': one, 'ordered': true, 'start': 'earliest'} if one is string else dict({'ordered': true, 'start': 'earliest'}, **one) %}
    {% if not group.name or group.name == 'default' or group.name | length > 255 or group | length > 3 %}
      {% do relaybox.refuse('model ' ~ node.name ~ ": expected consumer_group to be a name or {'name': …, 'ordered': …, 'start': …}, got " ~ one) %}
    {% elif group.start not in ('earliest', 'latest') or group.ordered is not boolean %}
      {% do relaybox.refuse('model ' ~ node.name ~ ': group ' ~ group.name ~ ' starts with earliest or latest, and is ordered or not, got ' ~ one) %}
    {% endif %}
    {% do groups.append(group) %}
  {% endfor %}
  {{ return(groups) }}
{% endmacro %}

{# 'orders', or {'name': 'orders', 'schema': …, 'ordering': …}. #}
{% macro feed_inbox(node) %}
  {% set given = relaybox.feed_property(node, 'inbox') %}
  {% if given is none %}
    {{ return(none) }}
  {% endif %}
  {% set inbox = dict({'schema': none, 'ordering': none}, **({'name': given} if given is string else given)) %}
  {% if not inbox.name or inbox | length > 3 %}
    {% do relaybox.refuse('model ' ~ node.name ~ ": expected inbox to be a name or {'name': …, 'schema': …, 'ordering': …}, got " ~ given) %}
  {% endif %}
  {{ return(inbox) }}
{% endmacro %}
