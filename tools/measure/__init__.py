# The same work on the chip and on the CPU, each side in a process of its own, for the demo and the benchmarks.
