"""Every named fault point, killed and failed once, on each engine."""
