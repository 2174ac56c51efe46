# One database per service, and a role that can open no other. Run once, when the volume is new.
psql -v ON_ERROR_STOP=1 --quiet -U "$POSTGRES_USER" -d "$POSTGRES_USER" -v own="$POSTGRES_USER" <<'SQL'
REVOKE CONNECT, TEMPORARY ON DATABASE :"own", postgres, template1 FROM PUBLIC;
SQL
for file in /run/secrets/*_database_url; do
  name=$(basename "$file" _database_url)
  password=$(sed 's|.*://[^:]*:\([^@]*\)@.*|\1|' "$file")
  psql -v ON_ERROR_STOP=1 --quiet -U "$POSTGRES_USER" -d "$POSTGRES_USER" -v name="$name" -v password="$password" <<'SQL'
CREATE ROLE :"name" LOGIN PASSWORD :'password';
CREATE DATABASE :"name" OWNER :"name";
REVOKE CONNECT, TEMPORARY ON DATABASE :"name" FROM PUBLIC;
SQL
done
