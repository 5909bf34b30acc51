{# What the tables of an outbox or an inbox are called: as relaybox calls them, so none is longer than 63 bytes. #}
{% macro tables_at(name, schema=none) %}
  {% for kind, given in (('outbox or inbox', name), ('schema', schema or 'public')) %}
    {% if not modules.re.match('^[A-Za-z_][A-Za-z0-9_]{0,47}$', given | string) or '\n' in given | string %}
      {% do exceptions.raise_compiler_error('expected the name of the ' ~ kind ~ ' to be a letter or underscore followed by at most 47 letters, digits or underscores, got ' ~ given) %}
    {% endif %}
  {% endfor %}
  {% set base = name %}
  {% if name | length > 31 %}
    {% set hash = local_md5(name) %}
    {% set base = name[:22] ~ '_' ~ (hash[0] | int(base=16)) % 8 ~ hash[1:8] %}
  {% endif %}
  {{ return({'name': name, 'base': base, 'prefix': '"' ~ schema ~ '".' if schema else '', 'namespace': schema or ''}) }}
{% endmacro %}

{# A table or function of feeds and topics. #}
{% macro table_of(at, part) %}
  {{ return(at.prefix ~ '"' ~ at.base ~ '_' ~ part ~ '"') }}
{% endmacro %}

{% macro literal(text) %}
  {{ return('NULL' if text is none else "'" ~ (text | string | replace("'", "''")) ~ "'") }}
{% endmacro %}

{# The first column of the first row; none: there is no row. #}
{% macro answer(query) %}
  {% set found = run_query(query) %}
  {{ return(found.rows[0][0] if found and found.rows | length > 0 else none) }}
{% endmacro %}

{% macro refuse(what) %}
  {% do exceptions.raise_compiler_error(what) %}
{% endmacro %}

{# Said in SQL: after a COMMIT, such as that of a hook outside of the transaction, the driver of dbt begins none itself. #}
{% macro begin_transaction() %}
  {% call statement('relaybox_begin', auto_begin=True) %}
    BEGIN ISOLATION LEVEL READ COMMITTED
  {% endcall %}
{% endmacro %}

{# An operation, and a hook of a whole run, get a transaction; a model has its own. #}
{% macro begin_operation() %}
  {% if not relaybox.in_model() %}
    {% do relaybox.begin_transaction() %}
  {% endif %}
{% endmacro %}

{% macro end_operation() %}
  {% if not relaybox.in_model() %}
    {% do adapter.commit() %}
  {% endif %}
{% endmacro %}

{% macro in_model() %}
  {% set node = relaybox.built_model() %}
  {{ return(node is mapping and node.resource_type == 'model') }}
{% endmacro %}
