"""What may be chosen for a kernel, as data: :class:`~convsmith.schedule.config.Config`."""
