# # Streams, events and copies
#
# An operator returns before the chip has computed it. What is put on one stream runs in order; a thread has a current
# stream on each device, which is the default stream at first.

import torch

x = torch.ones(1000, 1000, device="kunlun")
y = x @ x
print("the shape is known at once:", y.shape)
torch.kunlun.synchronize()
print("done:", torch.kunlun.current_stream().query())

# Work on another stream is not ordered with the default stream's, unless one waits for the other.

side = torch.kunlun.Stream()
side.wait_stream(torch.kunlun.current_stream())
with torch.kunlun.stream(side):
    z = y * 2
torch.kunlun.current_stream().wait_stream(side)
print((z - y).max().item())

# Memory belongs to the stream it was made on. Whoever uses it on another one says so, and it is not handed out again
# before that use is over.

with torch.kunlun.stream(side):
    total = y.sum()
y.record_stream(side)
del y
side.synchronize()
print(total.item())

# An event is a mark in a stream that others can wait for; with `enable_timing` the time between two can be asked.

begin, end = torch.kunlun.Event(enable_timing=True), torch.kunlun.Event(enable_timing=True)
begin.record()
for _ in range(3):
    x = x @ x / 1000
end.record()
end.synchronize()
print("passed:", begin.query(), end.query(), "- took time:", begin.elapsed_time(end) > 0)

# Copies from and to pinned host memory do not hold up the caller. A copy to the host is there when the stream has
# passed it, so the host waits before it looks.

batch = torch.arange(4.0).pin_memory()
on_device = batch.to("kunlun", non_blocking=True)
back = torch.empty(4, pin_memory=True)
back.copy_(on_device * 10, non_blocking=True)
torch.kunlun.current_stream().synchronize()
print(back)
