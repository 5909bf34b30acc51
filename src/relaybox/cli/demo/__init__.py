"""`relaybox demo`: two services, each a program with a SQLite file of its own, and what becomes of their messages while
one of them is killed. `play` is the command and its acts, `shop` and `billing` are the programs."""
