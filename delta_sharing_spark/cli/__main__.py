"""Runs the command line by ``python -m delta_sharing_spark.cli``."""

import sys

from delta_sharing_spark.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
