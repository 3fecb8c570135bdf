"""What vLLM leaves in /dev/shm: it kills processes that take long to end, with those that would clean up after them."""

from __future__ import annotations

import functools

from vllm.distributed.device_communicators.shm_broadcast import MessageQueue


def unlink_queues() -> None:
    """Lets the segments of the queues between processes lose their names as soon as all readers have mapped them."""
    upstream = MessageQueue.wait_until_ready
    if hasattr(upstream, "__wrapped__"):
        return  # plug-ins may be loaded again

    @functools.wraps(upstream)
    def wait_until_ready(self: MessageQueue) -> None:
        upstream(self)
        ring = self.buffer
        if self._is_writer and ring is not None and ring.is_creator:
            ring.shared_memory.unlink()
            ring.is_creator = False  # or its destructor would unlink the name again

    MessageQueue.wait_until_ready = wait_until_ready
