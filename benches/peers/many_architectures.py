"""Small random models of a hundred classes of transformers: exported, imported, run and trained, and compared with PyTorch.

    KERNFUSION=target/release/kernfusion python many_architectures.py [NAME ..]

A line for each: the largest difference of an output as a share of its largest number, and of the loss after five steps of AdamW on
one batch. A model that PyTorch does not export is said to be such, and counts as no failure.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch.utils._pytree import tree_leaves

from bench_imported import begin, narrow
from export_fixtures import outputs_of, train

VOCABULARY, WIDTH, INNER, LAYERS, HEADS, BATCH, LENGTH, SIZE, STEPS = 512, 64, 128, 2, 4, 2, 16, 64, 5
# That of `kernfusion bench`.
RATE = 3e-4
TOLERANCE = 1e-4


def tokens(*shape):
    return torch.randint(2, VOCABULARY, shape)


def model(config, model, **settings):
    return getattr(hf, model)(getattr(hf, config)(**settings))


def text(*classes, **settings):
    return lambda: (model(*classes, **settings), {"input_ids": tokens(BATCH, LENGTH)})


def two_texts(*classes, **settings):
    return lambda: (model(*classes, **settings), {"input_ids": tokens(BATCH, LENGTH), "decoder_input_ids": tokens(BATCH, 8)})


def images(*classes, **settings):
    return lambda: (model(*classes, **settings), {"pixel_values": torch.randn(BATCH, 3, SIZE, SIZE)})


def classes(name, config=None, **settings):
    return images(config or f"{name}Config", f"{name}ForImageClassification", num_labels=10, **settings)


def sound(*classes, **settings):
    return lambda: (model(*classes, **settings), {"input_values": torch.randn(BATCH, 3200)})


def causal(name, **settings):
    return text(f"{name}Config", f"{name}ForCausalLM", **settings)


def masked(name, **settings):
    return text(f"{name}Config", f"{name}ForMaskedLM", **settings)


def other(build, **inputs):
    return lambda: (build(), {name: value() for name, value in inputs.items()})


SIZES = dict(vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
             max_position_embeddings=64)
DECODER = SIZES | dict(num_key_value_heads=2, use_cache=False, pad_token_id=None, bos_token_id=0, eos_token_id=1)
WIDE = DECODER | dict(head_dim=16)
EXPERTS = DECODER | dict(num_experts_per_tok=2, experts_implementation="batched_mm")
OLD = dict(vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=64)
BART = dict(vocab_size=VOCABULARY, d_model=WIDTH, encoder_layers=LAYERS, decoder_layers=LAYERS, encoder_attention_heads=HEADS,
            decoder_attention_heads=HEADS, encoder_ffn_dim=INNER, decoder_ffn_dim=INNER, max_position_embeddings=64, use_cache=False,
            pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=None)
T5 = dict(vocab_size=VOCABULARY, d_model=WIDTH, d_kv=16, d_ff=INNER, num_layers=LAYERS, num_heads=HEADS, use_cache=False, decoder_start_token_id=0)
IMAGE = dict(image_size=SIZE, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=HEADS)
STAGES = dict(hidden_sizes=[16, 32, 32, 64], depths=[1, 1, 1, 1])
SOUND = dict(vocab_size=32, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=HEADS, conv_dim=(32, 32, 32),
             conv_stride=(5, 4, 4), conv_kernel=(10, 8, 4), num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, mask_time_prob=0.0)

MODELS = {
    "mistral": causal("Mistral", **DECODER, sliding_window=8),
    "gemma2": causal("Gemma2", **WIDE, sliding_window=8),
    "gemma3": text("Gemma3TextConfig", "Gemma3ForCausalLM", **WIDE, sliding_window=8),
    "phi3": causal("Phi3", **DECODER),
    "starcoder2": causal("Starcoder2", **DECODER),
    "cohere": causal("Cohere", **DECODER),
    "cohere2": causal("Cohere2", **DECODER),
    "olmo": causal("Olmo", **DECODER),
    "olmo2": causal("Olmo2", **DECODER),
    "granite": causal("Granite", **DECODER),
    "stablelm": causal("StableLm", **DECODER),
    "smollm3": causal("SmolLM3", **DECODER),
    "glm": causal("Glm", **WIDE),
    "glm4": causal("Glm4", **WIDE),
    "helium": causal("Helium", **WIDE),
    "nemotron": causal("Nemotron", **DECODER),
    "opt": causal("OPT", vocab_size=VOCABULARY, hidden_size=WIDTH, ffn_dim=INNER, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
                  max_position_embeddings=64, word_embed_proj_dim=WIDTH, use_cache=False, pad_token_id=1),
    "bloom": causal("Bloom", vocab_size=VOCABULARY, hidden_size=WIDTH, n_layer=LAYERS, n_head=HEADS, use_cache=False),
    "falcon": causal("Falcon", vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, use_cache=False),
    "gpt_neox": causal("GPTNeoX", **SIZES, use_cache=False),
    "gpt_neo": causal("GPTNeo", vocab_size=VOCABULARY, hidden_size=WIDTH, num_layers=2, attention_types=[[["global", "local"], 1]], num_heads=HEADS,
                      window_size=8, max_position_embeddings=64, use_cache=False),
    "gptj": causal("GPTJ", **OLD, rotary_dim=8, use_cache=False),
    "codegen": causal("CodeGen", **OLD, rotary_dim=8, n_ctx=64, use_cache=False),
    "gpt_bigcode": causal("GPTBigCode", **OLD, use_cache=False),
    "mpt": causal("Mpt", vocab_size=VOCABULARY, d_model=WIDTH, n_layers=LAYERS, n_heads=HEADS, max_seq_len=64, use_cache=False),
    "openai_gpt": text("OpenAIGPTConfig", "OpenAIGPTLMHeadModel", **OLD),
    "ctrl": text("CTRLConfig", "CTRLLMHeadModel", **OLD, dff=INNER, use_cache=False),
    "xglm": causal("XGLM", vocab_size=VOCABULARY, d_model=WIDTH, num_layers=LAYERS, attention_heads=HEADS, ffn_dim=INNER,
                   max_position_embeddings=64, use_cache=False),
    "biogpt": causal("BioGpt", **SIZES, use_cache=False),
    "mamba2": causal("Mamba2", vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS, state_size=16, head_dim=16, num_heads=8,
                     expand=2, n_groups=1, chunk_size=8, use_cache=False),
    "falcon_mamba": causal("FalconMamba", vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS, state_size=8, use_cache=False),
    "rwkv": causal("Rwkv", vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS, context_length=64, rescale_every=0, use_cache=False),
    "recurrent_gemma": causal("RecurrentGemma", vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=3,
                              num_attention_heads=HEADS, lru_width=WIDTH, attention_window_size=8, use_cache=False, pad_token_id=0),
    "deepseek_v3": causal("DeepseekV3", **EXPERTS | dict(num_key_value_heads=4), moe_intermediate_size=32, n_routed_experts=8, n_shared_experts=1,
                          n_group=2, topk_group=1, first_k_dense_replace=1, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=8,
                          v_head_dim=16, qk_nope_head_dim=8),
    "qwen3_moe": causal("Qwen3Moe", **EXPERTS, head_dim=16, num_experts=4, moe_intermediate_size=32),
    "gpt_oss": causal("GptOss", **EXPERTS, head_dim=16, num_local_experts=4, sliding_window=8),
    "olmoe": causal("Olmoe", **EXPERTS, num_experts=4),
    "qwen3_next": causal("Qwen3Next", **EXPERTS, head_dim=16, num_experts=4, moe_intermediate_size=32, shared_expert_intermediate_size=32,
                         linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=16, linear_value_head_dim=16,
                         layer_types=["linear_attention", "full_attention"]),
    "lfm2": causal("Lfm2", **DECODER, layer_types=["conv", "full_attention"]),
    "modernbert": masked("ModernBert", **SIZES | dict(num_hidden_layers=3), pad_token_id=0, bos_token_id=0, eos_token_id=1, cls_token_id=0, sep_token_id=1),
    "albert": masked("Albert", **SIZES, embedding_size=32),
    "electra": masked("Electra", **SIZES, embedding_size=32),
    "deberta_v2": masked("DebertaV2", **SIZES, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8,
                         max_relative_positions=-1, position_biased_input=False),
    "deberta": masked("Deberta", **SIZES, relative_attention=True, pos_att_type=["p2c", "c2p"], max_relative_positions=-1),
    "xlnet": text("XLNetConfig", "XLNetLMHeadModel", vocab_size=VOCABULARY, d_model=WIDTH, n_layer=LAYERS, n_head=HEADS, d_inner=INNER),
    "mobilebert": masked("MobileBert", vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
                         intermediate_size=64, embedding_size=32, intra_bottleneck_size=32),
    "mpnet": masked("MPNet", **SIZES),
    "xlm_roberta": masked("XLMRoberta", **SIZES, pad_token_id=1),
    "squeezebert": masked("SqueezeBert", **SIZES, embedding_size=WIDTH),
    "convbert": masked("ConvBert", **SIZES, embedding_size=32),
    "roformer": masked("RoFormer", **SIZES),
    "fnet": masked("FNet", vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS, max_position_embeddings=64),
    "esm": masked("Esm", **SIZES, pad_token_id=1, mask_token_id=3),
    "funnel": masked("Funnel", vocab_size=VOCABULARY, d_model=WIDTH, n_head=HEADS, d_head=16, d_inner=INNER, block_sizes=[1, 1]),
    "big_bird": masked("BigBird", **SIZES, attention_type="original_full"),
    "layoutlm": masked("LayoutLM", **SIZES),
    "canine": text("CanineConfig", "CanineModel", hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
                   max_position_embeddings=64, local_transformer_stride=8, downsampling_rate=4),
    "longformer": masked("Longformer", **SIZES, attention_window=8),
    "bart": two_texts("BartConfig", "BartForConditionalGeneration", **BART),
    "mbart": two_texts("MBartConfig", "MBartForConditionalGeneration", **BART),
    "marian": two_texts("MarianConfig", "MarianMTModel", **BART),
    "pegasus": two_texts("PegasusConfig", "PegasusForConditionalGeneration", **BART),
    "m2m_100": two_texts("M2M100Config", "M2M100ForConditionalGeneration", **BART),
    "blenderbot": two_texts("BlenderbotConfig", "BlenderbotForConditionalGeneration", **BART),
    "mt5": two_texts("MT5Config", "MT5ForConditionalGeneration", **T5),
    "prophetnet": two_texts("ProphetNetConfig", "ProphetNetForConditionalGeneration", vocab_size=VOCABULARY, hidden_size=WIDTH,
                            num_encoder_layers=LAYERS, num_decoder_layers=LAYERS, num_encoder_attention_heads=HEADS,
                            num_decoder_attention_heads=HEADS, encoder_ffn_dim=INNER, decoder_ffn_dim=INNER, max_position_embeddings=64, use_cache=False),
    "mobilenet_v1": classes("MobileNetV1", image_size=SIZE, depth_multiplier=0.25),
    "mobilenet_v2": classes("MobileNetV2", image_size=SIZE, depth_multiplier=0.35),
    "efficientnet": classes("EfficientNet", image_size=SIZE, width_coefficient=0.5, depth_coefficient=0.5, hidden_dim=640),
    "resnet50": classes("ResNet", embedding_size=16, hidden_sizes=[32, 64, 64, 64], depths=[1, 1, 1, 1]),
    "regnet": classes("RegNet", embedding_size=16, groups_width=8, **STAGES),
    "swin": classes("Swin", image_size=SIZE, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4),
    "swinv2": classes("Swinv2", image_size=SIZE, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4),
    "deit": classes("DeiT", **IMAGE),
    "beit": classes("Beit", **IMAGE, use_relative_position_bias=True),
    "dinov2": classes("Dinov2", image_size=SIZE, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS),
    "dinov3": images("DINOv3ViTConfig", "DINOv3ViTModel", **IMAGE),
    "convnextv2": classes("ConvNextV2", depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32]),
    "segformer": images("SegformerConfig", "SegformerForSemanticSegmentation", **STAGES, num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=32, num_labels=10),
    "poolformer": classes("PoolFormer", **STAGES),
    "mobilevit": classes("MobileViT", image_size=SIZE, hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 16, 24, 32, 64]),
    "mobilevitv2": classes("MobileViTV2", image_size=SIZE, width_multiplier=0.25),
    "pvt": classes("Pvt", image_size=SIZE, hidden_sizes=[8, 16, 40, 64], depths=[1, 1, 1, 1]),
    "pvt_v2": classes("PvtV2", image_size=SIZE, hidden_sizes=[8, 16, 40, 64], depths=[1, 1, 1, 1]),
    "levit": classes("Levit", image_size=SIZE, hidden_sizes=[16, 32, 48], num_attention_heads=[1, 2, 3], depths=[1, 1, 1], key_dim=[8, 8, 8]),
    "focalnet": classes("FocalNet", image_size=SIZE, embed_dim=16, depths=[1, 1], focal_levels=[2, 2], focal_windows=[3, 3]),
    "vit_msn": classes("ViTMSN", **IMAGE),
    "hiera": classes("Hiera", image_size=[SIZE, SIZE], embed_dim=16, depths=[1, 1, 1, 1], num_heads=[1, 2, 4, 8]),
    "bit": classes("Bit", embedding_size=16, hidden_sizes=[32, 32, 64, 64], depths=[1, 1, 1, 1], num_groups=8),
    "dpt": images("DPTConfig", "DPTForDepthEstimation", **IMAGE | dict(num_hidden_layers=4), backbone_out_indices=[0, 1, 2, 3],
                  neck_hidden_sizes=[16, 16, 32, 32], fusion_hidden_size=16, is_hybrid=False),
    "yolos": images("YolosConfig", "YolosForObjectDetection", **IMAGE | dict(image_size=[SIZE, SIZE]), num_detection_tokens=8),
    "detr": other(lambda: model("DetrConfig", "DetrForObjectDetection", use_timm_backbone=False, use_pretrained_backbone=False, backbone=None,
                                backbone_config=hf.ResNetConfig(embedding_size=16, **STAGES, out_features=["stage4"]), d_model=WIDTH,
                                encoder_layers=LAYERS, decoder_layers=LAYERS, encoder_attention_heads=HEADS, decoder_attention_heads=HEADS,
                                encoder_ffn_dim=INNER, decoder_ffn_dim=INNER, num_queries=8), pixel_values=lambda: torch.randn(BATCH, 3, SIZE, SIZE)),
    "upernet": other(lambda: model("UperNetConfig", "UperNetForSemanticSegmentation", hidden_size=16, num_labels=10, auxiliary_in_channels=24,
                                   backbone_config=hf.ConvNextConfig(depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32],
                                                                     out_features=["stage1", "stage2", "stage3", "stage4"])),
                     pixel_values=lambda: torch.randn(BATCH, 3, SIZE, SIZE)),
    "sam_vision": images("SamVisionConfig", "SamVisionModel", hidden_size=32, output_channels=16, num_hidden_layers=2, num_attention_heads=2,
                         image_size=SIZE, patch_size=16, global_attn_indexes=[1], window_size=2, mlp_dim=64),
    "wav2vec2": sound("Wav2Vec2Config", "Wav2Vec2ForCTC", **SOUND),
    "hubert": sound("HubertConfig", "HubertForCTC", **SOUND),
    "wavlm": sound("WavLMConfig", "WavLMForCTC", **SOUND),
    "ast": other(lambda: model("ASTConfig", "ASTForAudioClassification", hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS,
                               num_attention_heads=HEADS, max_length=64, num_mel_bins=32, num_labels=10), input_values=lambda: torch.randn(BATCH, 64, 32)),
    "hifigan": other(lambda: model("SpeechT5HifiGanConfig", "SpeechT5HifiGan", model_in_dim=16, upsample_initial_channel=32, upsample_rates=[4, 4],
                                   upsample_kernel_sizes=[8, 8]), spectrogram=lambda: torch.randn(BATCH, 20, 16)),
    "patchtst": other(lambda: model("PatchTSTConfig", "PatchTSTForPrediction", num_input_channels=3, context_length=64, patch_length=8,
                                    patch_stride=8, d_model=32, num_attention_heads=4, num_hidden_layers=2, ffn_dim=64, prediction_length=16,
                                    do_mask_input=False), past_values=lambda: torch.randn(BATCH, 64, 3)),
    "patchtsmixer": other(lambda: model("PatchTSMixerConfig", "PatchTSMixerForPrediction", num_input_channels=3, context_length=64,
                                        patch_length=8, patch_stride=8, d_model=32, num_layers=2, prediction_length=16),
                          past_values=lambda: torch.randn(BATCH, 64, 3)),
    "videomae": other(lambda: model("VideoMAEConfig", "VideoMAEForVideoClassification", **IMAGE | dict(image_size=32), patch_size=16, num_frames=4,
                                    num_labels=10), pixel_values=lambda: torch.randn(BATCH, 4, 3, 32, 32)),
    "perceiver": other(lambda: model("PerceiverConfig", "PerceiverForMaskedLM", vocab_size=VOCABULARY, num_latents=8, d_latents=64, d_model=64,
                                     num_blocks=1, num_self_attends_per_block=2, num_self_attention_heads=4, num_cross_attention_heads=4,
                                     qk_channels=64, v_channels=64, max_position_embeddings=16), inputs=lambda: tokens(BATCH, LENGTH)),
}


class Failed(Exception):
    """What our program says."""


def ours(*arguments):
    done = subprocess.run([os.environ["KERNFUSION"], *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise Failed(done.stderr.strip())


def deviation(found, expected):
    if expected.numel() == 0:
        return 0.0
    found, expected = found.double(), expected.double()
    return ((found - expected).abs().max() / expected.abs().max().clamp_min(1e-30)).item()


def compare(name, folder):
    """The deviation of the outputs, and of the last of some losses of training."""
    torch.manual_seed(1)
    net, inputs = MODELS[name]()
    begin(net).eval()
    try:
        with torch.no_grad():
            # Some are tuples of states.
            expected = [value for value in tree_leaves(outputs_of(net, inputs)) if value is not None]
        program = torch.export.export(net, (), inputs)
    except Exception as error:
        return "not exported: " + str(error).splitlines()[0][:100]
    torch.export.save(program, folder / "model.pt2")
    first = expected[0]
    is_sorted = isinstance(net.config, hf.PretrainedConfig) and first.shape[-1] in (VOCABULARY, 10, 32)
    target = torch.randint(0, first.shape[-1], first.shape[:-1]) if is_sorted else torch.randn(first.shape)
    save_file({key: value.contiguous() for key, value in narrow(inputs | {"target": target}).items()}, folder / "inputs.safetensors")
    ours("import", folder / "model.pt2", "-o", folder / "model")
    save_file({key: value.contiguous() for key, value in narrow(inputs).items()}, folder / "given.safetensors")
    ours("run", folder / "model", "--inputs", folder / "given.safetensors", "--outputs", folder / "outputs.safetensors")
    found = load_file(folder / "outputs.safetensors")
    if not all(value.any() for value in expected if value.numel()):
        raise Failed("an output is 0 everywhere, which says nothing")
    outputs = max(deviation(found[f"output.{at}"], value) for at, value in enumerate(expected))
    loss = "cross-entropy" if is_sorted else "mse"
    ours("bench", "--program", folder / "model", "--inputs", folder / "inputs.safetensors", "--mode", "compiled", "--loss", loss, "--warmup", 0,
         "--steps", STEPS, "--json", folder / "bench.json")
    last = json.loads((folder / "bench.json").read_text())["results"][0]["loss_last"]
    losses = deviation(torch.tensor(last), torch.tensor(train(net, inputs, target, STEPS, RATE)[-1]))
    if not max(outputs, losses) <= TOLERANCE:
        raise Failed(f"outputs {outputs:.0e}, loss {losses:.0e}")
    return f"outputs {outputs:.0e}, loss {losses:.0e}"


def main():
    torch.set_num_threads(1)
    names = sys.argv[1:] or [*MODELS]
    if unknown := [name for name in names if name not in MODELS]:
        raise SystemExit(f"there is no {', '.join(unknown)} among {', '.join(MODELS)}")
    if "KERNFUSION" not in os.environ:
        raise SystemExit("KERNFUSION says where our program is, such as target/release/kernfusion")
    failed = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            try:
                print(f"{name}: {compare(name, Path(folder))}", flush=True)
            except Failed as reason:
                failed.append(name)
                print(f"{name}: FAILED: {reason}", flush=True)
    if failed:
        raise SystemExit(f"{len(failed)} of {len(names)} failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
