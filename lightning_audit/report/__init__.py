"""Shows reports: console, figures, loggers. Depends on results only, not on torch."""
