-- name: grants.table -> count
GRANT {privileges} ON {object} TO {role}

-- name: grants.home -> rows
SELECT database(), current_user()
