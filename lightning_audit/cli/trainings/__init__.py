"""Commands on audits over many trainings."""
