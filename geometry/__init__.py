"""Pure mathematics on flat parameter vectors: no files, tasks, plots or progress bars."""
