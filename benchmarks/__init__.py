"""Side-by-side measurements of relaybox and its peers on one private PostgreSQL."""
