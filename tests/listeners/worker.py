"""A program with a listener, to be killed: writes `key number` to a file once a record is handled."""

import asyncio
import os
import sys

from headrace.client.api.types import Record
from headrace.listeners.app import App

bootstrap, path = sys.argv[1:]
app = App("billing", bootstrap=bootstrap)
out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@app.listener("orders", concurrency=4, commit_interval_s=0.05)
async def bill(record: Record) -> None:
    await asyncio.sleep(0.001)
    os.write(out, b"%b %b\n" % (record.key, record.value))


if __name__ == "__main__":
    app.run_forever()
