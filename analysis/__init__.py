"""Questions about runs: one analysis a file, its result, its figure, its command."""
