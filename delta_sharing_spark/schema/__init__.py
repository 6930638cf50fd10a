"""Delta types and schemas, to Spark's and to the exact Arrow schema that Spark checks."""
