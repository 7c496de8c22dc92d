"""Shows reports: console, figures, loggers, HTML pages."""
