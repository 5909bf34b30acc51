"""The peers: small programs that speak one line protocol (see benchmarks/peers/python/peer.py)."""
