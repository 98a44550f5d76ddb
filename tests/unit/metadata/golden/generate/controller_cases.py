"""Send the requests of `tests.unit.metadata.cases` to a fresh Apache Kafka and print the summaries of its answers.

    python -m tests.unit.metadata.golden.generate.controller_cases 127.0.0.1:9092 > controller-kafka-4.3.1.json

The broker has node.id 1, listeners PLAINTEXT and CONTROLLER and nothing else that is set, and is formatted with every
feature but metadata.version at level 0.
"""

import json
import socket
import sys
import time
from struct import Struct

from headrace.protocol.api import API, ApiKey
from headrace.protocol.frames import decode_response, encode_request
from tests.unit.metadata.cases import CASES, summary

LENGTH = Struct(">i")


def receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise SystemExit("the broker closed the connection")
        data += piece
    return data


def main(address: str) -> None:
    host, _, port = address.rpartition(":")
    answers = []
    with socket.create_connection((host, int(port))) as connection:
        for number, case in enumerate(CASES):
            if case.api is ApiKey.DESCRIBE_CLIENT_QUOTAS:
                time.sleep(0.3)  # Kafka answers this from the broker's image, which follows the controller's
            api = API[case.api]
            connection.sendall(b"".join(encode_request(api, case.version, number, "golden", case.request)))
            (length,) = LENGTH.unpack(receive(connection, LENGTH.size))
            _, response = decode_response(api, case.version, receive(connection, length))
            answers.append(summary(case.api, response))
    print(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1])
