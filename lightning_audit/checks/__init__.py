"""Every check, a module per subject: its declaration, statistic or rule, texts and faults."""
