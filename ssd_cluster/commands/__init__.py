"""The commands of ``ssd-cluster``, one module each: ``add_arguments(parser)`` and ``run(arguments) -> exit code``."""
