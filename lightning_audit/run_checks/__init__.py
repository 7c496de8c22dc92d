"""Checks of a whole run: accountant, loader, batches, records."""
