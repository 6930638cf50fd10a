"""Names the scalar types as the Delta schema does, and as Spark SQL does."""

from __future__ import annotations

from delta_sharing_spark.schema.types import DataType, Primitive

VOID, BOOLEAN, STRING, BINARY = Primitive("void"), Primitive("boolean"), Primitive("string"), Primitive("binary")
BYTE, SHORT, INTEGER, LONG = Primitive("byte"), Primitive("short"), Primitive("integer"), Primitive("long")
FLOAT, DOUBLE = Primitive("float"), Primitive("double")
DATE, TIMESTAMP, TIMESTAMP_NTZ = Primitive("date"), Primitive("timestamp"), Primitive("timestamp_ntz")

BITS: dict[DataType, int] = {BYTE: 8, SHORT: 16, INTEGER: 32, LONG: 64}
#: What an INTERVAL literal is: microseconds of whole days, microseconds, months. No column has these types here.
INTERVAL_DAY, INTERVAL_TIME, INTERVAL_MONTH = (
    Primitive("interval day"),
    Primitive("interval day to second"),
    Primitive("interval year to month"),
)


def spark_name(kind: DataType) -> str:
    """The type's name in Spark SQL, for messages."""
    names = {"integer": "INT", "long": "BIGINT", "short": "SMALLINT", "byte": "TINYINT"}
    return names.get(str(kind), str(kind).upper())


#: Names that a CAST takes.
SQL_TYPES: dict[str, DataType] = {
    "BOOLEAN": BOOLEAN,
    "TINYINT": BYTE,
    "BYTE": BYTE,
    "SMALLINT": SHORT,
    "SHORT": SHORT,
    "INT": INTEGER,
    "INTEGER": INTEGER,
    "BIGINT": LONG,
    "LONG": LONG,
    "FLOAT": FLOAT,
    "REAL": FLOAT,
    "DOUBLE": DOUBLE,
    "STRING": STRING,
    "BINARY": BINARY,
    "DATE": DATE,
    "TIMESTAMP": TIMESTAMP,
    "TIMESTAMP_LTZ": TIMESTAMP,
    "TIMESTAMP_NTZ": TIMESTAMP_NTZ,
}
