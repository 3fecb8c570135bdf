# # Memory
#
# Memory is handed out in blocks of 512 bytes from segments that the device gave, and freed blocks are kept for the next
# tensor. The functions are those of `torch.cuda`.

import torch

MIB = 1 << 20


def used():
    return f"{torch.kunlun.memory_allocated() / MIB:g} MiB of {torch.kunlun.memory_reserved() / MIB:g} MiB"


x = torch.empty(4 * MIB, dtype=torch.uint8, device="kunlun")
y = torch.empty(6 * MIB, dtype=torch.uint8, device="kunlun")
print("two tensors:", used())
del x
print("one given back:", used())
z = torch.empty(3 * MIB, dtype=torch.uint8, device="kunlun")
print("its place is used again:", used())
print("the most so far:", torch.kunlun.max_memory_allocated() // MIB, "MiB")

# `empty_cache` gives unused segments back to the device.

del y, z
torch.kunlun.empty_cache()
print("all given back:", used())

# What does not fit is `torch.OutOfMemoryError`, and the device goes on as before. A limit for this process is set as a
# share of the device.

total = torch.kunlun.mem_get_info()[1]
torch.kunlun.set_per_process_memory_fraction(64 * MIB / total)
try:
    torch.empty(100 * MIB, dtype=torch.uint8, device="kunlun")
except torch.OutOfMemoryError as error:
    print(type(error).__name__, "-", str(error).split(".")[0])
torch.kunlun.set_per_process_memory_fraction(1.0)
print(torch.empty(100 * MIB, dtype=torch.uint8, device="kunlun").shape)
