"""The tensor channel: draft laws as tensors over torch.distributed, beside the gRPC stream that carries all the rest.

One private pair of ranks per stream: 0 is the target, 1 the draft. The rendezvous needs no port of its own: both ends
share a store whose entries travel on the stream (``Attach``, ``Attached``). The draft announces each law on the stream
(a ``Law`` with its shape and the number of the transfer) and sends the entries; the target's helper thread receives
them while the forward runs. Everything here that may block does so on a helper thread and with a deadline.
"""
