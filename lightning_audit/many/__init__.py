"""Audits over many trainings: plan, store, engines, looks and result."""
