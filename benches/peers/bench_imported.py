"""Models from elsewhere at the size of a small experiment: exported for us, and timed as PyTorch runs them.

    python bench_imported.py export NAME FOLDER      NAME.pt2, NAME.safetensors (inputs by name, and "target")
    python bench_imported.py check NAME FOLDER [--work int8]    how far our outputs are from PyTorch's, by the program KERNFUSION; fails above 1e-4
    python bench_imported.py time NAME FOLDER [--by eager|compile|onnxruntime|tract] [--work forward|train|int8] [--steps N] [--threads N] [--json FILE]

A forward step gives the outputs of an evaluating model without gradients. A training step is the cross-entropy of the first output and
"target" (the mean square where that has floats), its gradients and AdamW. Inputs are those of the file, the same in each step.
int8: a forward step whose products with parameters are of bytes; outputs may be a tenth from those of f32 then, as root mean squares. Ours has a scale
for each column of a matrix and each row (of a convolution, each image), made anew in each step. PyTorch quantizes linear layers dynamically, with one
scale for a matrix and one for all activations of a product; onnxruntime either MatMul and Gemm dynamically, with a scale for each column, or all that it
can, convolutions among it, with scales of activations that it has found with these inputs before: whichever is faster. (Both are in memory then, and
in its peak.)
onnxruntime and tract run what torch.onnx.export writes (NAME.onnx, kept in the folder) with all their optimizations; they do not train.
Rows have the keys of `kernfusion bench --json`. imported.sh measures all of them beside ours, in turn.
"""

import argparse
import copy
import json
import os
import subprocess
import tempfile
import time
import timeit
from pathlib import Path

import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from bench_decode import in_bytes
from bench_torch import machine, peak_rss_mib
from export_fixtures import loss_of, outputs_of
from export_models import Tagger, UNet

VOCABULARY, WIDTH, LAYERS, HEADS, BATCH, LENGTH = 8192, 512, 6, 8, 4, 128
DECODER = dict(vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=1376, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
               num_key_value_heads=2, max_position_embeddings=LENGTH, use_cache=False, pad_token_id=None, bos_token_id=0, eos_token_id=1)
ENCODER = dict(vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=2048, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
               max_position_embeddings=LENGTH + 2)
EXPERTS = DECODER | dict(num_hidden_layers=4, intermediate_size=512, experts_implementation="batched_mm", num_experts_per_tok=2)


def tokens(*shape):
    return torch.randint(2, VOCABULARY, shape)


def text(config, model, length=LENGTH):
    return lambda: (model(config), {"input_ids": tokens(BATCH, length)})


def masked(config, model):
    """With a mask of what is padding: a quarter of one row."""
    def build():
        mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
        mask[-1, 3 * LENGTH // 4:] = 0
        return model(config), {"input_ids": tokens(BATCH, LENGTH), "attention_mask": mask}
    return build


def images(config, model, size=224):
    return lambda: (model(config), {"pixel_values": torch.randn(BATCH, 3, size, size)})


def two_texts(config, model):
    return lambda: (model(config), {"input_ids": tokens(BATCH, LENGTH), "decoder_input_ids": tokens(BATCH, LENGTH)})


def speech(config, model):
    return lambda: (model(config), {"input_features": torch.randn(BATCH, 80, 600), "decoder_input_ids": tokens(BATCH, 64)})


def begin(model):
    """Convolutions as He, Zhang, Ren, Sun (2015) start them, and batch norm from 1: with some of transformers' numbers deep networks give zeros."""
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(module.weight)
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.ones_(module.weight)
    return model


def begun(build):
    def built():
        model, inputs = build()
        return begin(model), inputs
    return built


MODELS = {
    "gpt2": text(hf.GPT2Config(vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=LENGTH, use_cache=False,
                               bos_token_id=0, eos_token_id=1), hf.GPT2LMHeadModel),
    "llama": text(hf.LlamaConfig(**DECODER), hf.LlamaForCausalLM),
    "qwen2": text(hf.Qwen2Config(**DECODER), hf.Qwen2ForCausalLM),
    "qwen3": text(hf.Qwen3Config(**DECODER, head_dim=64), hf.Qwen3ForCausalLM),
    "gemma": text(hf.GemmaConfig(**DECODER, head_dim=64), hf.GemmaForCausalLM),
    "phi": text(hf.PhiConfig(**DECODER | dict(num_key_value_heads=HEADS), partial_rotary_factor=0.5), hf.PhiForCausalLM),
    "mixtral": text(hf.MixtralConfig(**EXPERTS, num_local_experts=8), hf.MixtralForCausalLM),
    "mamba": text(hf.MambaConfig(vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=2, state_size=16, use_cache=False,
                                 bos_token_id=0, eos_token_id=1, pad_token_id=0), hf.MambaForCausalLM, length=32),
    "bert": masked(hf.BertConfig(**ENCODER), hf.BertForMaskedLM),
    "roberta": masked(hf.RobertaConfig(**ENCODER, pad_token_id=1), hf.RobertaForMaskedLM),
    "distilbert": masked(hf.DistilBertConfig(vocab_size=VOCABULARY, dim=WIDTH, hidden_dim=2048, n_layers=LAYERS, n_heads=HEADS,
                                             max_position_embeddings=LENGTH), hf.DistilBertForMaskedLM),
    "t5": two_texts(hf.T5Config(vocab_size=VOCABULARY, d_model=WIDTH, d_kv=64, d_ff=2048, num_layers=4, num_heads=HEADS, use_cache=False,
                                decoder_start_token_id=0), hf.T5ForConditionalGeneration),
    "whisper": speech(hf.WhisperConfig(vocab_size=VOCABULARY, num_mel_bins=80, d_model=384, encoder_layers=4, decoder_layers=4,
                                       encoder_attention_heads=6, decoder_attention_heads=6, encoder_ffn_dim=1536, decoder_ffn_dim=1536,
                                       max_source_positions=300, max_target_positions=64, use_cache=False, pad_token_id=0,
                                       bos_token_id=0, eos_token_id=1, decoder_start_token_id=0), hf.WhisperForConditionalGeneration),
    "vit": images(hf.ViTConfig(hidden_size=384, intermediate_size=1536, num_hidden_layers=LAYERS, num_attention_heads=6,
                               num_labels=100), hf.ViTForImageClassification),
    "convnext": images(hf.ConvNextConfig(depths=[2, 2, 4, 2], num_labels=100), hf.ConvNextForImageClassification),
    "resnet18": images(hf.ResNetConfig(layer_type="basic", depths=[2, 2, 2, 2], embedding_size=64, hidden_sizes=[64, 128, 256, 512],
                                       num_labels=100), hf.ResNetForImageClassification),
    "mobilenet_v2": images(hf.MobileNetV2Config(num_labels=100), hf.MobileNetV2ForImageClassification),
    "efficientnet": begun(images(hf.EfficientNetConfig(image_size=224, width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280,
                                                       num_labels=100), hf.EfficientNetForImageClassification)),
    "swin": images(hf.SwinConfig(embed_dim=96, depths=[2, 2, 6, 2], num_heads=[3, 6, 12, 24], num_labels=100), hf.SwinForImageClassification),
    "segformer": images(hf.SegformerConfig(num_labels=20), hf.SegformerForSemanticSegmentation),
    "deberta": masked(hf.DebertaV2Config(**ENCODER, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=64,
                                         max_relative_positions=-1, position_biased_input=False), hf.DebertaV2ForMaskedLM),
    "mamba2": text(hf.Mamba2Config(vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=2, state_size=64, head_dim=64, num_heads=16,
                                   n_groups=1, chunk_size=64, use_cache=False, bos_token_id=0, eos_token_id=1, pad_token_id=0), hf.Mamba2ForCausalLM),
    "wav2vec2": lambda: (hf.Wav2Vec2ForCTC(hf.Wav2Vec2Config(vocab_size=32, hidden_size=384, intermediate_size=1536, num_hidden_layers=LAYERS,
                                                            num_attention_heads=6, conv_dim=(256,) * 7, mask_time_prob=0.0)),
                         {"input_values": torch.randn(2, 16000)}),
    "lstm": lambda: (Tagger(VOCABULARY, 256, 256), {"ids": tokens(16, 64)}),
    "unet": lambda: (UNet(64, 128, 128), {"x": torch.randn(BATCH, 3, 32, 32), "t": torch.arange(BATCH)}),
}


def build(name):
    """The model in evaluating mode, its inputs, and a target for its first output."""
    torch.manual_seed(sum(map(ord, name)))
    model, inputs = MODELS[name]()
    model.eval()
    with torch.no_grad():
        output = outputs_of(model, inputs)[0]
    target = torch.randn(output.shape) if name == "unet" else torch.randint(0, output.shape[-1], output.shape[:-1])
    return model, inputs, target


def narrow(tensors):
    """Whole numbers as our programs take them."""
    return {key: value.int() if value.dtype == torch.long else value for key, value in tensors.items()}


def export(name, folder):
    model, inputs, target = build(name)
    folder.mkdir(parents=True, exist_ok=True)
    program = torch.export.export(model, (), inputs)
    torch.export.save(program, folder / f"{name}.pt2")
    save_file(narrow(inputs | {"target": target}), folder / f"{name}.safetensors")


def read(name, folder):
    """The inputs of the file, and the target."""
    wide = lambda value: value.long() if value.dtype == torch.int else value
    tensors = {key: wide(value) for key, value in load_file(folder / f"{name}.safetensors").items()}
    return tensors, tensors.pop("target")


def deviation(found, expected, work):
    """How far an output is from PyTorch's in f32, beside that output, and how far it may be: the largest numbers, or root mean squares."""
    error = found - expected
    if work == "int8":
        return (error.norm() / expected.norm()).item(), 0.1
    return (error.abs().max() / expected.abs().max()).item(), 1e-4


@torch.no_grad()
def check(name, folder, work):
    """How far outputs of ours are from PyTorch's."""
    model, _, _ = build(name)
    tensors, _ = read(name, folder)
    with tempfile.TemporaryDirectory() as scratch:
        inputs, outputs = (f"{scratch}/{file}.safetensors" for file in ("inputs", "outputs"))
        save_file(narrow(tensors), inputs)
        command = [os.environ["KERNFUSION"], "run", folder / name, "--inputs", inputs, "--outputs", outputs]
        command += ["--dtype", "int8"] if work == "int8" else []
        if subprocess.run(command).returncode:
            raise SystemExit(f"{name}: our program gave no outputs")
        ours = load_file(outputs)
    pairs = [(ours[f"output.{number}"], output) for number, output in enumerate(outputs_of(model, tensors))]
    deviations = [deviation(found, expected, work) for found, expected in pairs]
    print(f"{name}: {max(deviations)[0]:.1e} from PyTorch")
    if not all(found <= bound for found, bound in deviations):
        raise SystemExit(f"{name}: outputs are not PyTorch's")


def onnx_file(name, folder, model, tensors):
    """What torch.onnx.export makes of a model, kept in the folder."""
    file = folder / f"{name}.onnx"
    if not file.exists():
        torch.onnx.export(model, (), str(file), kwargs=tensors, dynamo=True, verbose=False)
    return file


def judge(arguments, output, model, tensors):
    """A peer whose first output is not PyTorch's is not timed."""
    with torch.no_grad():
        expected = outputs_of(model, tensors)[0]
    found, bound = deviation(output, expected, arguments.work)
    if not found <= bound:
        raise SystemExit(f"{arguments.name}: the output of {arguments.by} is {found:.1e} from PyTorch's")
    print(f"{arguments.name}: {found:.1e} from PyTorch")


def quantized(file, inputs):
    """The ONNX file with matrices of bytes in both ways of onnxruntime, kept beside it; one that fails is left out."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Inputs(CalibrationDataReader):
        given = [inputs]

        def get_next(self):
            return self.given.pop() if self.given else None

    def static(name):
        with tempfile.TemporaryDirectory() as scratch:
            prepared = Path(scratch, "prepared.onnx")
            quant_pre_process(str(file), str(prepared))
            quantize_static(str(prepared), str(name), Inputs(), quant_format=QuantFormat.QDQ, per_channel=True,
                            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)

    def dynamic(name):
        quantize_dynamic(file, name, op_types_to_quantize=["MatMul", "Gemm"], per_channel=True, weight_type=QuantType.QInt8)

    files = []
    for way in (dynamic, static):
        name = file.with_suffix(f".{way.__name__}.onnx")
        try:
            if not name.exists():
                way(name)
            files.append(name)
        except Exception as error:
            print(f"{name}: {error}")
    return files


def onnxruntime_step(arguments, model, tensors):
    """A forward step of onnxruntime."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = arguments.threads
    file = onnx_file(arguments.name, arguments.folder, model, tensors)
    inputs = {given.name: tensors[given.name].numpy() for given in onnx.load(file, load_external_data=False).graph.input}
    steps = []
    for file in quantized(file, inputs) if arguments.work == "int8" else [file]:
        try:
            session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
            judge(arguments, torch.from_numpy(session.run(None, inputs)[0]), model, tensors)
        except (SystemExit, Exception) as error:
            print(f"{file}: {error}")
            continue
        step = lambda session=session: session.run(None, inputs)
        steps.append((min(timeit.repeat(step, number=1, repeat=5)), file.name, step))
    if not steps:
        raise SystemExit(f"{arguments.name}: onnxruntime does not run it, or its outputs are not PyTorch's")
    print("onnxruntime:", *(f"{name} {1e3 * seconds:.1f} ms" for seconds, name, _ in steps))
    return min(steps, key=lambda one: one[0])[2]


def tract_row(arguments, model, tensors):
    """What the program of rust/ measures of tract, named by PEERS."""
    file = onnx_file(arguments.name, arguments.folder, model, tensors)
    with tempfile.TemporaryDirectory() as scratch:
        outputs, row = f"{scratch}/outputs.safetensors", Path(scratch, "row.json")
        command = [os.environ["PEERS"], "onnx", file, "--inputs", arguments.folder / f"{arguments.name}.safetensors", "--outputs", outputs,
                   "--json", row]
        command += [f"--{key}={getattr(arguments, key)}" for key in ["steps", "warmup", "threads"]]
        if subprocess.run(command).returncode:
            raise SystemExit(f"{arguments.name}: tract does not run it")
        judge(arguments, load_file(outputs)["output.0"], model, tensors)
        return json.loads(row.read_text())["results"][0] | {"preset": arguments.name}


def torch_step(arguments, model, tensors, target):
    """A step of PyTorch, eager or compiled; a training step gives its loss."""
    compiled = arguments.by == "compile"
    if hasattr(getattr(model, "config", None), "num_local_experts"):
        # Exported as a copy of an expert's matrix for each token, which torch.export needs; PyTorch is timed in what is fastest for it.
        model.set_experts_implementation("grouped_mm" if compiled else "eager")

    timed = in_bytes(copy.deepcopy(model)) if arguments.work == "int8" else model

    def first_output(inputs):
        return outputs_of(timed, inputs)[0]

    def loss(inputs, target):
        return loss_of(first_output(inputs), target)

    if compiled:
        first_output, loss = torch.compile(first_output), torch.compile(loss)
    if arguments.work == "int8":
        with torch.no_grad():
            judge(arguments, first_output(tensors), model, tensors)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def train():
        value = loss(tensors, target)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return value.item()

    @torch.no_grad()
    def forward():
        first_output(tensors)

    return train if arguments.work == "train" else forward


def measure(arguments):
    torch.set_num_threads(arguments.threads)
    model, _, _ = build(arguments.name)
    tensors, target = read(arguments.name, arguments.folder)
    if arguments.by == "tract":
        return tract_row(arguments, model, tensors)
    if arguments.by == "onnxruntime":
        step = onnxruntime_step(arguments, model, tensors)
    else:
        step = torch_step(arguments, model, tensors, target)
    seconds, losses = [], []
    for _ in range(arguments.warmup + arguments.steps):
        start = time.perf_counter()
        value = step()
        seconds.append(time.perf_counter() - start)
        losses.append(value if arguments.work == "train" else None)
    timed = sorted(seconds[arguments.warmup:])
    mode = arguments.by if arguments.by == "onnxruntime" else f"torch-{arguments.by}"
    return {"mode": mode, "preset": arguments.name, "work": arguments.work,
            "dtype": "int8" if arguments.work == "int8" else "f32", "device": "cpu", "threads": arguments.threads, "steps": arguments.steps,
            "median_step_s": timed[len(timed) // 2], "fastest_step_s": timed[0], "slowest_step_s": timed[-1],
            "first_step_s": seconds[0], "peak_rss_mib": peak_rss_mib(), "loss_first": losses[0], "loss_last": losses[-1],
            "torch": torch.__version__}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=["export", "check", "time", "names"])
    parser.add_argument("name", nargs="?", choices=[*MODELS])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--work", default="forward", choices=["forward", "train", "int8"])
    parser.add_argument("--by", default="eager", choices=["eager", "compile", "onnxruntime", "tract"], help="who runs the step")
    parser.add_argument("--steps", type=int, default=5, help="timed steps")
    parser.add_argument("--warmup", type=int, default=2, help="steps before them, not timed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="file to write; without it the row goes to standard output")
    arguments = parser.parse_args()
    if arguments.task == "names":
        return print(*MODELS)
    if not arguments.folder:
        parser.error("a name and a folder are needed")
    if arguments.by in ("onnxruntime", "tract") and arguments.work == "train":
        parser.error(f"{arguments.by} does not train")
    if arguments.by == "tract" and "PEERS" not in os.environ:
        parser.error("tract needs the path of the program of benches/peers/rust in PEERS")
    if arguments.task == "check" and "KERNFUSION" not in os.environ:
        parser.error("check needs the path of our program in KERNFUSION")
    if arguments.by == "tract" and arguments.work == "int8":
        parser.error("tract is timed in f32")
    if arguments.task == "export":
        return export(arguments.name, arguments.folder)
    if arguments.task == "check":
        return check(arguments.name, arguments.folder, arguments.work)
    document = json.dumps({"machine": machine(), "results": [measure(arguments)]}, indent=1)
    if arguments.json:
        arguments.json.write_text(document + "\n")
    else:
        print(document)


if __name__ == "__main__":
    main()
