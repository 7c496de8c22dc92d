"""Details of a run for its report: growth of e-values, tensors, claim, course, circumstances."""
