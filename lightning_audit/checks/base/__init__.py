"""What every check declares, its e-process, the registry, and what of it is shown."""
