"""Lets PySpark's daemons import what Python workers do before they fork them: each load of the Python source starts two or three.

Python runs it at its start where this directory is on its path, as it is for the JVMs of most tests' sessions. Those of the
local cluster and the bare Connect server have workers that import all of it themselves.
"""

import gc
import importlib
import pkgutil
import sys

#: Modules by worker; what other workers do is seldom asked for.
_WORKERS = {
    "pyspark.worker": ["pandas", "pyarrow.parquet"],
    "pyspark.sql.worker.create_data_source": ["pyarrow.parquet"],
    "pyspark.sql.worker.plan_data_source_read": ["pyarrow.json"],
}
#: Folders and modules of the package, of which all is imported but what Flight alone needs.
_OURS = ("access", "deltalog", "predicates", "scan", "sharing", "spark.datasource", "spark.session_settings", "spark.streaming", "storage")  # fmt: skip

if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"] and sys.orig_argv[3] in _WORKERS:
    _worker = sys.orig_argv[3]
    for _name in (_worker, *_WORKERS[_worker], *(f"delta_sharing_spark.{name}" for name in _OURS)):
        _module = importlib.import_module(_name)
        if _name.startswith("delta_sharing_spark.") and hasattr(_module, "__path__"):
            for _info in pkgutil.walk_packages(_module.__path__, f"{_name}."):
                if "flight" not in _info.name:
                    importlib.import_module(_info.name)
    gc.collect()
    gc.freeze()
