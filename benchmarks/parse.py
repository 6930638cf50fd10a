"""How long a query's answer takes to parse, and what it leaves behind: ``python benchmarks/parse.py [lines]``."""

from __future__ import annotations

import json
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator

from delta_sharing_spark.sharing.response import line_blocks, parse_page

HEAD = {
    "parquet": [
        {"protocol": {"minReaderVersion": 1}},
        {"metaData": {"id": "t", "format": {"provider": "parquet"}, "schemaString": "{}", "partitionColumns": ["day"]}},
    ],
    "delta": [
        {"protocol": {"deltaProtocol": {"minReaderVersion": 3, "readerFeatures": ["deletionVectors"]}}},
        {"metaData": {"deltaMetadata": {"id": "t", "format": {"provider": "parquet"}, "schemaString": "{}"}}},
    ],
}
STATS = json.dumps(
    {"numRecords": 1000, "minValues": {"a": 1, "b": "x"}, "maxValues": {"a": 9, "b": "z"}, "nullCount": {"a": 0}}
)


def line(response_format: str, i: int) -> dict[str, object]:
    url = f"https://bucket.s3.amazonaws.com/t/part-{i:05d}.parquet?X-Amz-Expires=3600&X-Amz-Signature={i:064x}"
    values = {"day": f"2026-01-{i % 28 + 1:02d}"}
    if response_format == "parquet":
        return {
            "file": {
                "url": url,
                "id": f"{i:032x}",
                "partitionValues": values,
                "size": 1 << 20,
                "stats": STATS,
                "expirationTimestamp": 1,
            }
        }
    add = {
        "path": url,
        "partitionValues": values,
        "size": 1 << 20,
        "modificationTime": 1,
        "dataChange": True,
        "stats": STATS,
    }
    return {"file": {"id": f"{i:064x}", "expirationTimestamp": 1, "deltaSingleAction": {"add": add}}}


class Dropped:
    """Takes records and keeps none: what is left is the parser's own."""

    def append(self, record: object) -> None:
        pass


def main(lines: int) -> None:
    for response_format, head in HEAD.items():
        body = b"".join(json.dumps(each).encode() + b"\n" for each in head)
        body += b"".join(json.dumps(line(response_format, i)).encode() + b"\n" for i in range(lines))

        def chunks(body: bytes = body) -> Iterator[bytes]:
            for start in range(0, len(body), 64 << 10):
                yield body[start : start + (64 << 10)]

        best = min(_timed(lambda: parse_page(line_blocks(chunks()), "s.d.t")) for _ in range(3))
        peaks = {}
        for name, sink in (("kept", list), ("dropped", Dropped)):
            tracemalloc.start()
            page = parse_page(line_blocks(chunks()), "s.d.t", sink=sink)
            peaks[name] = tracemalloc.get_traced_memory()[1] >> 20
            tracemalloc.stop()
            del page
        print(
            f"{response_format}: {lines:,} lines ({len(body) >> 20} MiB) in {best:.2f} s; peak {peaks['kept']} MiB with the records, {peaks['dropped']} MiB without"
        )


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
