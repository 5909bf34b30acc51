"""relaybox and the hand-written baselines."""
