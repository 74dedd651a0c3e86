"""What may be chosen for a kernel, as data: :class:`~convsmith.plan.config.Config`."""
