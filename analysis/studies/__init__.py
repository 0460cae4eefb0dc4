"""One file per paper: its claims as data, the runs they need, the measurement, and the findings."""
