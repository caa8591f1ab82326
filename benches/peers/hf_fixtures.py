"""Writes the fixtures of published checkpoints: a small random model of each architecture as transformers saves it, and its logits.

    python hf_fixtures.py [--out FOLDER] [--full]      default: tests/fixtures/hugging_face of this repository

Each folder has `config.json`, `model.safetensors` (or shards with an index), `tokenizer.json`, and `expected.safetensors`: `ids`
of i32[2, 64] and `logits` of f32[2, 64, vocabulary] that transformers computes from them in f32; a T5 reads `ids` and writes
`target`, whose logits these are given the tokens before. No parameter is trivial, so that no term can be missing. The same
versions give the same bytes.

With `--full` the folder gets one model instead, a random GPT-2 small of 124 M parameters.
"""

import argparse
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig, BertForMaskedLM, Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, GemmaConfig, GemmaForCausalLM,
    GPT2Config, GPT2LMHeadModel, GraniteConfig, GraniteForCausalLM, LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM,
    Olmo2Config, Olmo2ForCausalLM, Phi3Config, Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM,
    Qwen3MoeConfig, Qwen3MoeForCausalLM, SmolLM3Config, SmolLM3ForCausalLM, T5Config, T5ForConditionalGeneration,
)

DEFAULT_OUT = Path(__file__).resolve().parents[2] / "tests/fixtures/hugging_face"
LENGTH = 64
LETTERS = [chr(code) for code in range(33, 127)]


def gpt2():
    """One more token in the model than in the tokenizer, as in a vocabulary that was padded."""
    config = GPT2Config(vocab_size=98, n_positions=80, n_embd=16, n_layer=2, n_head=2, n_inner=40, bos_token_id=96, eos_token_id=96)
    vocabulary = {letter: place for place, letter in enumerate([*LETTERS, "Ġ", "Ċ"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return GPT2LMHeadModel(config), tokenizer


def letters_with(*marks):
    return {token: place for place, token in enumerate([*marks, *LETTERS, "▁"])}


def like_llama():
    vocabulary = letters_with("<unk>", "<s>", "</s>")
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="first")
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
    return tokenizer, len(vocabulary)


def llama():
    """Heads of another width than width / heads, which share keys and values."""
    tokenizer, size = like_llama()
    config = LlamaConfig(
        vocab_size=size, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=6, max_position_embeddings=96, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    )
    return LlamaForCausalLM(config), tokenizer


def llama3():
    """Scaled rotary positions: a pair whose wavelength stays, one in between, and one that is stretched."""
    tokenizer, size = like_llama()
    config = LlamaConfig(
        vocab_size=size, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, head_dim=6,
        max_position_embeddings=96, tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "llama3", "rope_theta": 30.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    )
    return LlamaForCausalLM(config), tokenizer


def mixtral():
    """A window that is shorter than the text."""
    tokenizer, size = like_llama()
    config = MixtralConfig(
        vocab_size=size, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=96, num_local_experts=4, num_experts_per_tok=2, sliding_window=24,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    return MixtralForCausalLM(config), tokenizer


def of_llama(configuration, model, **fields):
    """A small model of a relative of Llama, whose heads share keys and values."""
    tokenizer, size = like_llama()
    shape = dict(
        vocab_size=size, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=96, rope_parameters={"rope_type": "default", "rope_theta": 500.0}, bos_token_id=1, eos_token_id=2,
        pad_token_id=None,
    )
    return model(configuration(**{**shape, **fields})), tokenizer


def qwen3_moe():
    return of_llama(
        Qwen3MoeConfig, Qwen3MoeForCausalLM, head_dim=6, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12, norm_topk_prob=True,
    )


def gemma2():
    """Scores and logits near their soft limits, a window that is shorter than the text, and another scale of scores."""
    return of_llama(
        Gemma2Config, Gemma2ForCausalLM, head_dim=6, query_pre_attn_scalar=9, sliding_window=20, attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
    )


def gemma3():
    """Every third block sees all positions, and turns them by other angles."""
    turns = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0},
    }
    return of_llama(
        Gemma3TextConfig, Gemma3ForCausalLM, head_dim=6, num_hidden_layers=4, query_pre_attn_scalar=6, sliding_window=20,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"], rope_parameters=turns,
    )


def granite():
    scales = dict(embedding_multiplier=3.0, attention_multiplier=0.3, residual_multiplier=0.5, logits_scaling=4.0)
    return of_llama(GraniteConfig, GraniteForCausalLM, **scales)


def smollm3():
    """Every third block does not turn positions."""
    return of_llama(SmolLM3Config, SmolLM3ForCausalLM, num_hidden_layers=4, no_rope_layer_interval=3)


def bert():
    vocabulary = letters_with("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    del vocabulary["▁"]
    tokenizer = Tokenizer(models.WordPiece({**vocabulary, "##e": 99, "##n": 100}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    config = BertConfig(
        vocab_size=101, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40, max_position_embeddings=72,
        type_vocab_size=3,
    )
    return BertForMaskedLM(config), tokenizer


def t5(**changes):
    marks = ["<pad>", "</s>", "<unk>"]
    pieces = [(token, 0.0 if token in marks else -4.0) for token in letters_with(*marks)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.add_special_tokens(marks)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    shape = dict(
        vocab_size=len(pieces), d_model=16, d_kv=6, d_ff=24, num_layers=2, num_decoder_layers=3, num_heads=2,
        relative_attention_num_buckets=16, relative_attention_max_distance=40, feed_forward_proj="relu", decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(T5Config(**{**shape, **changes})), tokenizer


def t5_gated():
    """The later form: a gated GELU, and an output layer of its own, before which nothing is scaled."""
    model, tokenizer = t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False, num_layers=1, num_decoder_layers=1)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return model, tokenizer


ARCHITECTURES = {
    "gpt2": gpt2, "llama": llama, "mixtral": mixtral, "bert": bert, "t5": t5, "t5_gated": t5_gated, "llama3": llama3,
    "qwen2": lambda: of_llama(Qwen2Config, Qwen2ForCausalLM, tie_word_embeddings=True),
    "qwen3": lambda: of_llama(Qwen3Config, Qwen3ForCausalLM, head_dim=6),
    "qwen3_moe": qwen3_moe,
    "gemma": lambda: of_llama(GemmaConfig, GemmaForCausalLM, head_dim=6),
    "gemma2": gemma2, "gemma3": gemma3,
    "olmo2": lambda: of_llama(Olmo2Config, Olmo2ForCausalLM),
    "granite": granite, "smollm3": smollm3,
    "phi3": lambda: of_llama(Phi3Config, Phi3ForCausalLM, sliding_window=20),
}


def randomize(model, generator):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = parameter.dim() == 1 and "norm" in name.lower() or ".ln_" in name
            # Those of Gemma have one added.
            is_around_zero = model.config.model_type.startswith("gemma")
            around = 1.0 if is_norm and name.endswith("weight") and not is_around_zero else 0.0
            scale = 0.2 if parameter.dim() == 1 else 0.3
            parameter.copy_(around + scale * torch.randn(parameter.shape, generator=generator))


def expected(model, generator):
    """The ids, and what the model makes of them."""
    words = model.config.vocab_size
    draw = lambda: torch.randint(words, (2, LENGTH), generator=generator)
    ids = draw()
    with torch.no_grad():
        if not model.config.is_encoder_decoder:
            return {"ids": ids.int(), "logits": model(input_ids=ids).logits}
        target = draw()
        logits = model(input_ids=ids, labels=target).logits
    return {"ids": ids.int(), "target": target.int(), "logits": logits}


def write(folder, model, tokenizer, seed, shard="5GB"):
    generator = torch.Generator().manual_seed(seed)
    model = model.eval()
    randomize(model, generator)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, max_shard_size=shard)
    if tokenizer is not None:
        tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    save_file(expected(model, generator), folder / "expected.safetensors")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, default=DEFAULT_OUT)
    arguments.add_argument("--full", action="store_true")
    arguments = arguments.parse_args()
    if arguments.full:
        torch.manual_seed(1)
        config = GPT2Config()
        model = GPT2LMHeadModel(config).eval()
        arguments.out.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(arguments.out)
        save_file(expected(model, torch.Generator().manual_seed(2)), arguments.out / "expected.safetensors")
        return
    for seed, (name, make) in enumerate(ARCHITECTURES.items(), start=1):
        write(arguments.out / name, *make(), seed, shard="40KB" if name == "mixtral" else "5GB")


if __name__ == "__main__":
    main()
