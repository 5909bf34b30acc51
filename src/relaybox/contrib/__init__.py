"""For frameworks that programs are made with; each module needs its framework and nothing else."""
