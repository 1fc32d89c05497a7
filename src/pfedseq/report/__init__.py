"""Output for people: progress, tables, figures and the report page."""
