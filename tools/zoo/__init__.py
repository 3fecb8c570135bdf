"""Small models with random weights, one for each architecture, made on the spot, and what they write on the CPU.

``checkpoint("llama3")`` is a folder that transformers and the engines load, with ``reference.json`` in it: the tokens
that transformers writes on the CPU, in a process that never loads the extension.

    python -m tools.zoo llama3 gemma2      # makes these two; no name means all
"""

from tools.zoo.cache import ZooError, checkpoint, ensure, reference, unavailable

__all__ = ["ZooError", "checkpoint", "ensure", "reference", "unavailable"]
