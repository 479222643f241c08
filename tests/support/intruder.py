"""A bare gRPC client of a draft that sends whatever bytes it is told to."""

from __future__ import annotations

import queue

import grpc

from ssd_cluster.link.codec import decode_to_target, encode
from ssd_cluster.link.grpc_transport import PATH
from ssd_cluster.link.limits import Limits
from ssd_cluster.link.messages import Message, Nack


class Intruder:
    """One stream to the draft at ``endpoint``; ``token`` is shown where there is one."""

    def __init__(self, endpoint: str, token: str | None = None) -> None:
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        self._channel = grpc.insecure_channel(endpoint, options=options)
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.call = self._channel.stream_stream(PATH)(iter(self._frames.get, None), metadata=metadata)

    def send(self, *frames: bytes | Message) -> None:
        for frame in frames:
            self._frames.put(frame if isinstance(frame, bytes) else encode(frame))

    def ended(self) -> grpc.StatusCode:
        """The status with which the draft ends the call; answers before that are read and dropped."""
        try:
            for _ in self.call:
                continue
        except grpc.RpcError:
            pass
        code: grpc.StatusCode = self.call.code()
        return code

    def nacks(self, n: int) -> list[Nack]:
        """The first ``n`` refusals."""
        found: list[Nack] = []
        while len(found) < n:
            message = decode_to_target(next(self.call), Limits())
            if isinstance(message, Nack):
                found.append(message)
        return found

    def close(self) -> None:
        self._frames.put(None)
        self.call.cancel()
        self._channel.close()
