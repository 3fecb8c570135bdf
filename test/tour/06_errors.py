# # When something goes wrong
#
# What can be seen without the contents of a tensor is raised at the call, with torch's own words.

import torch

import torch_xpu_kunlun


def attempt(function):
    try:
        function()
        torch.kunlun.synchronize()
    except Exception as error:
        text = str(error).splitlines()[0].split(", work item")[0]  # its number differs from run to run
        print(f"{type(error).__name__}: {text}")


x = torch.ones(2, 3, device="kunlun")
attempt(lambda: x @ x)
attempt(lambda: x + torch.ones(2, 3))
attempt(lambda: x.to("kunlun:99"))
attempt(x.numpy)

# What only the contents tell is found while the chip computes. It is raised at the next synchronisation, copy to the
# host, or launch on the stream, once, with the type it has on the CPU, and names the operator and its number among the
# stream's work. `KUNLUN_LAUNCH_BLOCKING=1` raises it at the call itself. Afterwards the stream is clean.

index = torch.tensor([0, 7], device="kunlun")
attempt(lambda: x.index_select(0, index))
print(x.index_select(0, index[:1]))

# Work that was given to the stream behind a failure is skipped, and other streams never see it.

side = torch.kunlun.Stream()
picked = x.index_select(0, index)
with torch.kunlun.stream(side):
    print("on the other stream:", (x[0, 0] + 1).item())
attempt(lambda: print(picked.sum().item()))

# Every operator counts as one of three kinds: launched, boxed (the caller waits while a kernel of the CPU works on the
# device's memory), or computed on copies, which happens only on a chip whose memory the host cannot reach.

torch_xpu_kunlun.reset_operator_statistics()
(x * 2).sum()
x.unique()
counts = torch_xpu_kunlun.operator_statistics()
print({kind: counts[kind] for kind in ("launcher", "boxed", "fallback")}, list(counts["boxed_ops"]))
