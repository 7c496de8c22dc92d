"""A report as a page that people read: one HTML file without script or request."""
