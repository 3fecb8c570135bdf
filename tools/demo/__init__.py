# The demo: a language model writes the same text on the chip and on the CPU.
