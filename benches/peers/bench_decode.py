"""Times what `kernfusion bench --work prefill` and `--work decode` time, of gpt2-small in transformers: the first 128 tokens of
a prompt, and one token after another behind 512 others, with its cache of keys and values. Random weights, batch 1. int8: all
matrices of linear layers are kept as bytes, and what they multiply is rounded to bytes for each product (PyTorch's dynamic quantization).

    python bench_decode.py [--dtype f32|bf16|int8] [--threads 2] [--steps 40]
"""

import argparse
import statistics
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D

PROMPT, BEFORE, WARMUP = 128, 512, 5


def timed(run):
    start = time.perf_counter()
    result = run()
    return result, time.perf_counter() - start


def in_bytes(model):
    """The model with dynamically quantized matrices; GPT-2's own layers keep them transposed."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Conv1D):
                linear = torch.nn.Linear(*child.weight.shape)
                linear.weight.data, linear.bias.data = child.weight.data.t().contiguous(), child.bias.data
                setattr(module, name, linear)
    return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--dtype", choices=["f32", "bf16", "int8"], default="f32")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    config = GPT2Config()
    dtype = torch.bfloat16 if arguments.dtype == "bf16" else torch.float32
    model = GPT2LMHeadModel(config).to(dtype).eval()
    if arguments.dtype == "int8":
        model = in_bytes(model)

    def tokens(count):
        return torch.randint(0, config.vocab_size, (1, count))

    def read(ids, past=None):
        return model(ids, past_key_values=past, use_cache=True, logits_to_keep=1)

    with torch.inference_mode():
        prompt = tokens(PROMPT)
        prefills = [timed(lambda: read(prompt))[1] for _ in range(2 + max(arguments.steps // 8, 3))][2:]
        past, steps = read(tokens(BEFORE)).past_key_values, []
        for _ in range(WARMUP + arguments.steps):
            output, seconds = timed(lambda: read(tokens(1), past))
            past = output.past_key_values
            steps.append(seconds)
    for name, count, seconds in [("prefill", PROMPT, prefills), ("decode", 1, steps[WARMUP:])]:
        median = statistics.median(seconds)
        print(f"gpt2-small {name}, {arguments.dtype}, {arguments.threads} threads: {1e3 * median:.2f} ms, {count / median:.0f} tokens/s")


if __name__ == "__main__":
    main()
