"""Answers options that this reader does not have: those of the JVM connector and of Delta's and Spark's readers say what to do instead."""

from __future__ import annotations

from delta_sharing_spark.errors import OptionError
from delta_sharing_spark.options import values
from delta_sharing_spark.options.declared import OPTIONS

_SCHEMA = "a stream fixes its schema when it starts, and a restart picks up the new one; leave it out"
_FILES = "a shared table is all of its files: use where, versionAsOf or timestampAsOf"
_SKIPPED = "a file that cannot be read is an error, for its rows would be missing; leave it out, or set it to false"
_WRITING = "Delta Sharing is read-only, and this one is for writing; leave it out"

#: Options of other readers in lower case: the value that changes nothing here, which is accepted, and why others are refused.
_FOREIGN: dict[str, tuple[str | None, str]] = {
    "schematrackinglocation": (None, _SCHEMA),
    "schemalocation": (None, _SCHEMA),
    "streamingsourcetrackingid": (None, _SCHEMA),
    "allowsourcecolumndrop": ("false", _SCHEMA),
    "allowsourcecolumnrename": ("false", _SCHEMA),
    "allowsourcecolumnrenameanddrop": ("false", _SCHEMA),
    "allowsourcecolumntypechange": ("false", _SCHEMA),
    "failondataloss": (
        "true",
        "a stream never goes on without a version that the server no longer has; leave it out, and after a loss start with a new "
        "checkpoint",
    ),
    "ignorefiledeletion": (
        "false",
        "it is Delta's former name of ignoreChanges; use that, or ignoreDeletes or skipChangeCommits",
    ),
    "excluderegex": (None, "a sharing server shows no paths to leave files out by; use where"),
    "pathglobfilter": (None, _FILES),
    "modifiedbefore": (None, _FILES),
    "modifiedafter": (None, _FILES),
    "basepath": (None, _FILES),
    "recursivefilelookup": ("false", _FILES),
    "ignorecorruptfiles": ("false", _SKIPPED),
    "ignoremissingfiles": ("false", _SKIPPED),
    "mergeschema": ("false", "the table's log says its schema, and older files are read by it; leave it out"),
    "datetimerebasemode": (None, "dates are read as Delta writes them, by the proleptic Gregorian calendar; leave it out"),
    "int96rebasemode": (None, "dates are read as Delta writes them, by the proleptic Gregorian calendar; leave it out"),
    "sharecredentialstype": (None, "the option is called type"),
    **dict.fromkeys(("checkpointlocation", "queryname"), (None, "it is one of writeStream; set it there")),
    **dict.fromkeys(
        (
            "replacewhere", "replaceon", "replaceusing", "targetalias", "overwriteschema", "usermetadata", "datachange",
            "partitionoverwritemode", "optimizewrite", "maxrecordsperfile", "compression", "txnappid", "txnversion",
            "parquet.writer.version", "writepartitioncolumns", "usenullintolerantequalitywithdpo",
        ),
        (None, _WRITING),
    ),
}  # fmt: skip


def refuse_foreign(key: str, value: str) -> None:
    """Refuse an option that this reader does not have, unless its value changes nothing here.

    Raises:
        OptionError: Says what takes its place, or names the nearest known one.
    """
    if key.lower() in _FOREIGN:
        harmless, why = _FOREIGN[key.lower()]
        if value.strip().lower() == harmless:
            return
        raise OptionError(f"option '{key}' of other readers is not read here: {why}", option=key)
    close = values.nearest(key, (option.name for option in OPTIONS))
    known = (
        f"did you mean '{close}'?"
        if close
        else "python -c 'import delta_sharing_spark.options as o; print(o.options_page())' prints the known ones"
    )
    raise OptionError(f"unknown option '{key}'; {known}", option=key)
