"""Making runs and keeping them: configuration, tasks, models, the trainer and the store."""
