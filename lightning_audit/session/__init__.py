"""One optimizer under audit: plan, canaries in, reading, record."""
