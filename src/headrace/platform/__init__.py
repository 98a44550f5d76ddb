"""The one door to what systems do differently: Linux's own calls, or what every POSIX system has.

Chosen once, when this is first imported. `HEADRACE_PORTABLE=1` takes the portable ways on Linux too, which is how tests
run them. Nothing outside of this package may name a call that only Linux has; a test looks.
"""

import os
import sys
from typing import TYPE_CHECKING

PORTABLE_VARIABLE = "HEADRACE_PORTABLE"
IS_PORTABLE = not sys.platform.startswith("linux") or os.environ.get(PORTABLE_VARIABLE) == "1"
"""Whether the portable ways were chosen."""

if TYPE_CHECKING or not IS_PORTABLE:
    from headrace.platform import linux as _chosen
else:
    from headrace.platform import portable as _chosen

# -- files and their pages

sync_data = _chosen.sync_data
sync_all = _chosen.sync_all
start_writeback = _chosen.start_writeback
page_counter = _chosen.page_counter
read_cached = _chosen.read_cached
will_need = _chosen.will_need
read_no_further = _chosen.read_no_further
drop_cached = _chosen.drop_cached
file_in_memory = _chosen.file_in_memory

# -- sockets

CAN_SENDFILE = _chosen.CAN_SENDFILE
MORE_FOLLOWS = _chosen.MORE_FOLLOWS
send_file = _chosen.send_file
send_unpaced = _chosen.send_unpaced
keep_alive = _chosen.keep_alive

# -- processes and memory

end_with_parent = _chosen.end_with_parent
process_started = _chosen.process_started
process_age_s = _chosen.process_age_s
name_process = _chosen.name_process
yield_processor = _chosen.yield_processor
use_idle_disk_time = _chosen.use_idle_disk_time
put_session_behind = _chosen.put_session_behind
open_files_max = _chosen.open_files_max
return_freed_memory = _chosen.return_freed_memory
keep_freed_memory = _chosen.keep_freed_memory
use_huge_pages = _chosen.use_huge_pages
