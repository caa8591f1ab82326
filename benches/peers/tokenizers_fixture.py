"""Writes what Python's `tokenizers` makes of some texts: tests/fixtures/tokenizers.json.

    python tokenizers_fixture.py --gpt2 DIR [--out FILE]       DIR has GPT-2's vocab.json and merges.txt

Three vocabularies are learnt here, from a text that the fixture holds, too, as a user of the library would; the fourth is
GPT-2's, of which the fixture only holds the ids of the texts.
"""

import argparse
import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

DEFAULT_OUT = Path(__file__).resolve().parents[2] / "tests/fixtures/tokenizers.json"
MARKS = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]

LEARNT_FROM = """\
A compiler reads a program and writes another one that means the same. The reader reads, the writer writes, and between them
stands a graph. Naïve readers read naïvely: they read every word again and again, whatever the words say. A good compiler
reads once, thinks twice, and writes as little as possible; what it does not write needs no reading.
    Reading costs time. Writing costs time. Thinking, too, costs time, but only once: the program that was thought about runs
a thousand times. So it pays to think.
"""

TEXTS = [
    "The compiler reads and writes.", "  Two blanks,\n\nthen lines\tand tabs. ", "Naïve café, STRASSE und Straße",
    "it's what we'll say, they'd've known", "世界 and 😀!", "numbers 12345 and 3.14", "", " ", "thinking about rereading",
]


def bytes_learnt():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([LEARNT_FROM], trainer)
    return tokenizer


def words_learnt():
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.BPEDecoder()
    return tokenizer, lambda size, first: trainers.BpeTrainer(
        vocab_size=size, special_tokens=first, end_of_word_suffix="</w>", show_progress=False)


def word_pieces_learnt():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer, lambda size, first: trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=first, show_progress=False)


def learnt_in_order(make):
    """Letters inside of words, or at their ends, are numbered in the order of a hash map; here they are sorted first."""
    tokenizer, trainer = make()
    tokenizer.train_from_iterator([LEARNT_FROM], trainer(len(MARKS), MARKS))
    letters = sorted(set(tokenizer.get_vocab()) - set(MARKS), key=lambda letter: (len(letter), letter))
    tokenizer, trainer = make()
    tokenizer.train_from_iterator([LEARNT_FROM], trainer(120, MARKS + letters))
    stored = json.loads(tokenizer.to_str())
    stored["added_tokens"] = [token for token in stored["added_tokens"] if token["content"] in MARKS]
    return Tokenizer.from_str(json.dumps(stored))


def gpt2(directory):
    tokenizer = Tokenizer(models.BPE.from_file(str(directory / "vocab.json"), str(directory / "merges.txt")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def judged(tokenizer):
    encodings = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    decoded = [tokenizer.decode(ids, skip_special_tokens=False) for ids in encodings]
    return {"vocabulary": tokenizer.get_vocab_size(), "ids": encodings, "decoded": decoded}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpt2", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    arguments = parser.parse_args()
    fixture = {"learnt_from": LEARNT_FROM, "texts": TEXTS, "gpt2": judged(gpt2(arguments.gpt2))}
    fixture["bytes"] = judged(bytes_learnt())
    fixture["words"] = judged(learnt_in_order(words_learnt))
    tokenizer = learnt_in_order(word_pieces_learnt)
    fixture["word_pieces"] = judged(tokenizer)
    marks = {mark: tokenizer.token_to_id(mark) for mark in ("[SEP]", "[CLS]")}
    tokenizer.post_processor = processors.BertProcessing(*marks.items())
    pair = tokenizer.encode("The reader reads", "and writes")
    fixture["pair"] = {"texts": ["The reader reads", "and writes"], "ids": pair.ids, "types": pair.type_ids}
    arguments.out.write_text(json.dumps(fixture, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
