"""Holds Delta types and schemas, and converts them to Spark's and to the exact Arrow schema that Spark checks."""
