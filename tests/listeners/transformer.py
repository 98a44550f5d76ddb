"""A program with an exactly-once listener, to be killed: each number to another topic, doubled."""

import asyncio
import sys

from headrace.client.api.types import Record
from headrace.listeners.app import App, Restart
from headrace.listeners.handlers import Send

(bootstrap,) = sys.argv[1:]
app = App("doubling", bootstrap=bootstrap, restart=Restart(delay_s=0.1, delay_s_max=1))


@app.listener("numbers", concurrency=4, exactly_once=True, commit_interval_s=0.03, transactional_id="doubling-1")
async def double(record: Record) -> Send:
    await asyncio.sleep(0.002)
    return Send(topic="doubled", value=str(2 * int(record.value)), key=record.key)


if __name__ == "__main__":
    app.run_forever()
