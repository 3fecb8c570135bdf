# Tokenizers trained on the spot. Every token is printable ASCII, so that any sequence of them is a text.
import pydoc_data.topics
import string

VOCABULARY = 512
PAD, BOS, EOS, UNK = range(4)
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")


def corpus() -> list[str]:
    """Some English: what Python's own help says about its language."""
    topics = pydoc_data.topics.topics
    return ["".join(c for c in topics[name] if c in string.printable) for name in sorted(topics)[:24]]


def byte_pairs(extra: tuple[str, ...] = (), adds_bos: bool = True):
    """A tokenizer of VOCABULARY tokens, as decoders use it; `extra` are more special tokens, at the end."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    # Byte-level tokenizers write a space as Ġ and a line's end as Ċ.
    alphabet = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(extra),
        special_tokens=list(SPECIAL),
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens(list(extra))
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", BOS)]
        )
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise RuntimeError(f"the tokenizer has {tokenizer.get_vocab_size()} tokens, not {VOCABULARY}")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def word_pieces():
    """A tokenizer as encoders use it: lower case, [CLS] and [SEP] around."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=list(special), show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    names = ("pad_token", "cls_token", "sep_token", "unk_token", "mask_token")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **dict(zip(names, special, strict=True)),
    )
