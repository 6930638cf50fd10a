"""The command line: ``delta-sharing-spark``, or ``python -m delta_sharing_spark.cli``."""
