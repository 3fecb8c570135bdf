"""The model matrix of the engines: which architectures run on ``kunlun``, and whether the text is transformers' own."""
