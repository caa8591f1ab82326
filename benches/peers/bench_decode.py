"""Times what `kernfusion bench --work prefill` and `--work decode` time, of gpt2-small in transformers: the first 128 tokens of
a prompt, and one token after another behind 512 others, with its cache of keys and values. Random weights, batch 1.

    python bench_decode.py [--dtype f32|bf16] [--threads 2] [--steps 40]
"""

import argparse
import statistics
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

PROMPT, BEFORE, WARMUP = 128, 512, 5


def timed(run):
    start = time.perf_counter()
    result = run()
    return result, time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    config = GPT2Config()
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[arguments.dtype]
    model = GPT2LMHeadModel(config).to(dtype).eval()

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
