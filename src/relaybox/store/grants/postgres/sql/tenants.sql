-- Row-level security. The setting is one of a transaction (SET LOCAL), so that it stays behind in no pool. Where it is not
-- set nothing is anybody's: of events without a tenant too.

-- slot: of_tenant
tenant_id = nullif(pg_catalog.current_setting('relaybox.tenant', true), '')

-- slot: of_event
EXISTS (SELECT 1 FROM {event} e WHERE e.seq = {object}.seq)

-- name: tenants.enable -> count
-- FORCE: the owner too, and so what runs with its rights.
ALTER TABLE {object} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY

-- name: tenants.view -> count
-- It shows what who asks may see, and not what its owner may.
ALTER VIEW {object} SET (security_invoker = true)

-- name: tenants.again -> count
DROP POLICY IF EXISTS {policy} ON {object}

-- name: tenants.own -> count
CREATE POLICY {policy} ON {object} USING ({of_tenant}) WITH CHECK ({of_tenant})

-- name: tenants.part -> count
-- Of rows that belong to an event. A writer inserts such a row in the statement that inserts the event, which does not see
-- it yet.
CREATE POLICY {policy} ON {object} USING ({of_event}) WITH CHECK (true)

-- name: tenants.text -> count
-- The same where every writer inserts rows and is told their numbers: only the texts of errors say anything of an event.
-- Who does not see the event changes no such row, or a service would settle what it takes for deleted.
CREATE POLICY {policy} ON {object} FOR SELECT USING (last_error IS NULL OR {of_event})

-- name: tenants.left -> count
-- Numbers of events that a service has: nobody else changes them, for the same reason.
CREATE POLICY {policy} ON {object} FOR SELECT USING (true)

-- name: tenants.added -> count
CREATE POLICY {policy} ON {object} FOR INSERT WITH CHECK (true)

-- name: tenants.all -> count
CREATE POLICY {policy} ON {object} TO {role} USING (true) WITH CHECK (true)

-- name: tenants.owner -> count
-- Of the owner: what others call runs with its rights and is bound to their tenant all the same.
CREATE POLICY {policy} ON {object} TO {role}
USING (pg_catalog.pg_has_role(session_user, current_user, 'MEMBER'))
WITH CHECK (pg_catalog.pg_has_role(session_user, current_user, 'MEMBER'))

-- name: tenants.server -> rows
SELECT current_setting('server_version_num')::integer, pg_get_userbyid(c.relowner)::text FROM pg_class c
WHERE c.oid = to_regclass('{table}')

-- name: tenants.found -> rows
-- What of it is there: of each table or view who owns it, whether row security passes the owner by, and whether it is as
-- the recipe makes it, in whole or at all; and the policies of others, each of which lets more be seen.
SELECT c.relname::text, r.rolname::text, r.rolsuper OR r.rolbypassrls,
       c.relrowsecurity AND c.relforcerowsecurity
         AND EXISTS (SELECT 1 FROM pg_policy p WHERE p.polrelid = c.oid AND p.polname = 'relaybox_tenant'::name)
       OR EXISTS (SELECT 1 FROM pg_options_to_table(c.reloptions) o
                  WHERE o.option_name = 'security_invoker'::text AND o.option_value::boolean),
       c.relrowsecurity,
       ARRAY(SELECT p.polname::text FROM pg_policy p WHERE p.polrelid = c.oid AND p.polpermissive
             AND p.polname <> ALL (ARRAY['relaybox_tenant', 'relaybox_added', 'relaybox_all', 'relaybox_owner']::name[]) ORDER BY 1)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_roles r ON r.oid = c.relowner
WHERE n.nspname = :schema::text AND c.relname = ANY(:names::text[]) ORDER BY c.relname

-- name: tenants.bound -> rows
-- Which of these tables show the current role one tenant's rows alone.
SELECT t.name, current_user::text FROM unnest(:names::text[]) AS t(name)
WHERE row_security_active(to_regclass(t.name)) AND NOT EXISTS (
  SELECT 1 FROM pg_policy p, unnest(p.polroles) AS r(id)
  WHERE p.polrelid = to_regclass(t.name) AND p.polname IN ('relaybox_all'::name, 'relaybox_owner'::name)
    AND pg_has_role(r.id, 'USAGE'))
