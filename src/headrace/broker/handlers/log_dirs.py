"""DescribeLogDirs v1-5. v2: for those who ask, how far files are checked for damage
(`protocol/private_fields/scrub.py`), what is reserved and how fast a dir fills
(`protocol/private_fields/disk_space.py`). v3: an error for the whole answer. v4: the file system's size. v5: cordoned
directories."""

from msgspec import structs

from headrace.broker.maintenance.scrubber import Scrubber
from headrace.broker.net.request import Request
from headrace.broker.replicas.disk_space import DiskSpace
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.replicas.partition import Partition
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.private_fields.disk_space import is_asked, space_tagged
from headrace.protocol.private_fields.scrub import answer, question_in, replica_answer
from headrace.storage.files import Disk
from headrace.storage.manager import LogManager

R = m.DescribeLogDirsResponse


class LogDirHandlers:
    """How full the log dirs are, and what lies in them."""

    def __init__(
        self, logs: LogManager, replicas: Replicas, disk: Disk, scrubber: Scrubber, disk_space: DiskSpace
    ) -> None:
        self._logs = logs
        self._replicas = replicas
        self._disk = disk
        self._scrubber = scrubber
        self._disk_space = disk_space

    def describe_log_dirs(self, request: Request, message: m.DescribeLogDirsRequest) -> m.DescribeLogDirsResponse:
        wanted: set[tuple[str, int]] | None = None
        if message.topics is not None:
            wanted = {(topic.topic, index) for topic in message.topics for index in topic.partitions}
        by_dir: dict[str, list[Partition]] = {log_dir.path: [] for log_dir in self._logs.dirs}
        for partition in self._replicas:
            directory = partition.log.path.rpartition("/")[0]
            if directory in by_dir and (wanted is None or (partition.topic, partition.index) in wanted):
                by_dir[directory].append(partition)
        response = R()
        scrubber = self._scrubber
        question = question_in(message.unknown_tags)
        if question is not None:
            if question.start:
                scrubber.start_now(question.topics)
            status = scrubber.status()
            if question.compare is not None:
                status = structs.replace(status, digests=scrubber.comparison.answer(question.compare))
            response.unknown_tags = answer(status)
        for log_dir in self._logs.dirs:
            path, partitions = log_dir.path, by_dir[log_dir.path]
            if log_dir.failed is not None:
                response.results.append(R.DescribeLogDirsResult(error_code=Err.KAFKA_STORAGE_ERROR, log_dir=path))
                continue
            total, usable = self._disk.free_bytes(path)
            topics: dict[str, R.DescribeLogDirsTopic] = {}
            for partition in partitions:
                topic = topics.setdefault(partition.topic, R.DescribeLogDirsTopic(name=partition.topic))
                row = R.DescribeLogDirsPartition(partition_index=partition.index, partition_size=partition.log.size)
                if question is not None:
                    row.unknown_tags = replica_answer(scrubber.checked_ms(partition), len(partition.log.holes))
                topic.partitions.append(row)
            result = R.DescribeLogDirsResult(
                log_dir=path, topics=list(topics.values()), total_bytes=total, usable_bytes=usable
            )
            if is_asked(message.unknown_tags) and (space := self._disk_space.space(path)) is not None:
                result.unknown_tags = space_tagged(space)
            response.results.append(result)
        return response
