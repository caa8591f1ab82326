"""Small models with random weights, whose archives are fixtures of the import: `MODELS` says how each is built and what it is given.

Models of transformers are its own classes; where a package would be heavy, a module of the same equations stands here.
"""

import torch
import transformers as hf
from torch import nn

BATCH, LENGTH, VOCABULARY, WIDTH, LAYERS, HEADS = 2, 6, 24, 8, 2, 2


def tokens(*shape, first=2):
    return torch.randint(first, VOCABULARY, shape)


def text(config_class, model_class, **settings):
    """A language model, and tokens for it."""
    return lambda: (model_class(config_class(**settings)), {"input_ids": tokens(BATCH, LENGTH)})


def labelled(config_class, model_class, **settings):
    """As `text`, with labels, some of which do not count: the first result is the loss."""
    def build():
        labels = tokens(BATCH, LENGTH)
        labels[0, :2] = -100
        return model_class(config_class(**settings)), {"input_ids": tokens(BATCH, LENGTH), "labels": labels}
    return build


def padded(config_class, model_class, fill=0, **settings):
    """As `text`, with a mask of what is padding."""
    def build():
        ids, mask = tokens(BATCH, LENGTH), torch.ones(BATCH, LENGTH, dtype=torch.long)
        mask[1, 4:], ids[1, 4:] = 0, fill
        return model_class(config_class(**settings)), {"input_ids": ids, "attention_mask": mask}
    return build


def translation(config_class, model_class, **settings):
    """An encoder of one text and a decoder of another."""
    return lambda: (model_class(config_class(**settings)),
                    {"input_ids": tokens(BATCH, LENGTH), "decoder_input_ids": tokens(BATCH, 4)})


def speech(config_class, model_class, **settings):
    """Mel spectra, and the text so far."""
    return lambda: (model_class(config_class(**settings)),
                    {"input_features": torch.randn(BATCH, 4, 12), "decoder_input_ids": tokens(BATCH, 4)})


def images(config_class, model_class, size=8, count=BATCH, **settings):
    """A classifier of images, whose numbers have few digits, so that they pack."""
    return lambda: (model_class(config_class(**settings)),
                    {"pixel_values": (torch.randn(count, 3, size, size) * 4).round() / 4})


def resnet(size):
    return images(hf.ResNetConfig, hf.ResNetForImageClassification, size=size, count=4, layer_type="basic", depths=[2, 2, 2, 2],
                  embedding_size=4, hidden_sizes=[4, 4, 6, 8], num_labels=5)


LLAMA = dict(vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=12, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
             num_key_value_heads=1, max_position_embeddings=16, use_cache=False, pad_token_id=None, bos_token_id=0, eos_token_id=1)
BERT = dict(vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=12, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
            max_position_embeddings=16)
MIXTURE = LLAMA | dict(experts_implementation="batched_mm", num_experts_per_tok=2)


class Tagger(nn.Module):
    """A tag for each word, from two layers of LSTM that read in both directions (Huang, Xu, Yu, 2015, without the field of tags)."""

    def __init__(self, vocabulary=VOCABULARY, width=WIDTH, hidden=6):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, num_layers=2, bidirectional=True, batch_first=True)
        self.tags = nn.Linear(2 * hidden, 5)

    def forward(self, ids):
        return self.tags(self.lstm(self.embedding(ids))[0])


class ResidualBlock(nn.Module):
    """Two convolutions with group norm, the step's embedding in between, as in the U-Net of Ho, Jain, Abbeel (2020)."""

    def __init__(self, inputs, outputs, width):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(2, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.step = nn.Linear(width, outputs)
        self.norm2, self.conv2 = nn.GroupNorm(2, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, step):
        y = self.conv1(nn.functional.silu(self.norm1(x)))
        y = y + self.step(nn.functional.silu(step))[:, :, None, None]
        return self.shortcut(x) + self.conv2(nn.functional.silu(self.norm2(y)))


class Attention(nn.Module):
    """Attention among the positions of an image."""

    def __init__(self, channels):
        super().__init__()
        self.norm, self.qkv, self.out = nn.GroupNorm(2, channels), nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x):
        rows = self.norm(x).flatten(2).transpose(1, 2)
        query, key, value = (part.unsqueeze(1) for part in self.qkv(rows).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(query, key, value).squeeze(1)
        return x + self.out(y).transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    """One level down and up again around a middle block, for noise of step t."""

    def __init__(self, outer=4, inner=8, width=WIDTH):
        super().__init__()
        self.width = width
        self.steps = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.first = nn.Conv2d(3, outer, 3, padding=1)
        self.down1, self.shrink = ResidualBlock(outer, outer, width), nn.Conv2d(outer, outer, 3, stride=2, padding=1)
        self.down2, self.attention = ResidualBlock(outer, inner, width), Attention(inner)
        self.middle = ResidualBlock(inner, inner, width)
        self.grow, self.up = nn.Conv2d(inner, outer, 3, padding=1), ResidualBlock(2 * outer, outer, width)
        self.norm, self.last = nn.GroupNorm(2, outer), nn.Conv2d(outer, 3, 3, padding=1)

    def forward(self, x, t):
        half = self.width // 2
        angles = t[:, None].float() * torch.exp(-torch.log(torch.tensor(10000.0)) * torch.arange(half) / half)[None]
        step = self.steps(torch.cat([angles.sin(), angles.cos()], -1))
        x = self.down1(self.first(x), step)
        y = self.middle(self.attention(self.down2(self.shrink(x), step)), step)
        y = self.grow(nn.functional.interpolate(y, scale_factor=2.0, mode="nearest"))
        y = self.up(torch.cat([x, y], 1), step)
        return self.last(nn.functional.silu(self.norm(y)))


class Normalized(nn.Module):
    """A perceptron whose hidden layer is normalised over the batch."""

    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(3, 6, bias=False), nn.BatchNorm1d(6), nn.Linear(6, 4)

    def forward(self, x):
        return self.down(self.norm(self.up(x)).relu())


class Small(nn.Module):
    """What corrupt archives are made of."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(3, 5)

    def forward(self, x):
        return self.up(x)


class Lossy(Small):
    """A loss is its result."""

    def forward(self, x, y):
        return nn.functional.mse_loss(self.up(x), y)


MODELS = {
    "linear": lambda: (Small(), {"x": torch.randn(4, 3)}),
    "linear_loss": lambda: (Lossy(), {"x": torch.randn(4, 3), "y": torch.randn(4, 5)}),
    "batch_norm": lambda: (Normalized(), {"x": torch.randn(12, 3)}),
    "linear_sized": lambda: (Small(), {"x": torch.randn(4, 3)}),
    "gpt2": text(hf.GPT2Config, hf.GPT2LMHeadModel, vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
                 n_positions=16, use_cache=False, bos_token_id=0, eos_token_id=1),
    "llama": text(hf.LlamaConfig, hf.LlamaForCausalLM, **LLAMA),
    "llama_sized": text(hf.LlamaConfig, hf.LlamaForCausalLM, **LLAMA),
    "llama_loss": labelled(hf.LlamaConfig, hf.LlamaForCausalLM, **LLAMA),
    "qwen2": padded(hf.Qwen2Config, hf.Qwen2ForCausalLM, **LLAMA),
    "qwen3": text(hf.Qwen3Config, hf.Qwen3ForCausalLM, **LLAMA, head_dim=6),
    "gemma": text(hf.GemmaConfig, hf.GemmaForCausalLM, **LLAMA, head_dim=6),
    "phi": text(hf.PhiConfig, hf.PhiForCausalLM, **LLAMA | dict(num_key_value_heads=2), partial_rotary_factor=0.5),
    "mixtral": text(hf.MixtralConfig, hf.MixtralForCausalLM, **MIXTURE, num_local_experts=4),
    "qwen2_moe": text(hf.Qwen2MoeConfig, hf.Qwen2MoeForCausalLM, **MIXTURE, num_experts=4, moe_intermediate_size=6,
                      shared_expert_intermediate_size=8),
    "mamba": text(hf.MambaConfig, hf.MambaForCausalLM, vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS,
                  state_size=4, time_step_rank=2, use_cache=False, bos_token_id=0, eos_token_id=1, pad_token_id=0),
    "bert": padded(hf.BertConfig, hf.BertForMaskedLM, **BERT),
    "roberta": padded(hf.RobertaConfig, hf.RobertaForMaskedLM, fill=1, **BERT, pad_token_id=1),
    "distilbert": padded(hf.DistilBertConfig, hf.DistilBertForMaskedLM, vocab_size=VOCABULARY, dim=WIDTH, hidden_dim=12,
                         n_layers=LAYERS, n_heads=HEADS, max_position_embeddings=16),
    "t5": translation(hf.T5Config, hf.T5ForConditionalGeneration, vocab_size=VOCABULARY, d_model=WIDTH, d_kv=4, d_ff=12,
                      num_layers=LAYERS, num_heads=HEADS, relative_attention_num_buckets=8, relative_attention_max_distance=12,
                      use_cache=False, decoder_start_token_id=0),
    "vit": images(hf.ViTConfig, hf.ViTForImageClassification, image_size=8, patch_size=4, hidden_size=WIDTH, intermediate_size=12,
                  num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_labels=5),
    "whisper": speech(hf.WhisperConfig, hf.WhisperForConditionalGeneration, vocab_size=VOCABULARY, num_mel_bins=4, d_model=WIDTH,
                      encoder_layers=LAYERS, decoder_layers=LAYERS, encoder_attention_heads=HEADS, decoder_attention_heads=HEADS,
                      encoder_ffn_dim=12, decoder_ffn_dim=12, max_source_positions=6, max_target_positions=8, use_cache=False,
                      pad_token_id=0, bos_token_id=0, eos_token_id=1, decoder_start_token_id=0),
    "wav2vec2": lambda: (hf.Wav2Vec2ForCTC(hf.Wav2Vec2Config(**BERT, conv_dim=(6, 6), conv_stride=(5, 4), conv_kernel=(10, 8),
                                                             num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, mask_time_prob=0.0)),
                         {"input_values": (torch.randn(BATCH, 200) * 4).round() / 4}),
    "resnet18": resnet(size=32),
    # Batches of a few values for each channel would have gradients of which rounding leaves three digits.
    "resnet18_training": resnet(size=48),
    "convnext": images(hf.ConvNextConfig, hf.ConvNextForImageClassification, size=16, patch_size=2, depths=[1, 2, 1],
                       hidden_sizes=[4, 6, 8], num_stages=3, num_labels=5),
    "lstm": lambda: (Tagger(), {"ids": tokens(BATCH, LENGTH)}),
    "unet": lambda: (UNet(), {"x": torch.randn(BATCH, 3, 8, 8), "t": torch.tensor([3, 17])}),
}

# Exported after `run_decompositions()`, so that core ATen operators are left. (Those of GPT-2 fail: PyTorch 2.13 views what attention gives
# as another shape than it has.)
CORE = ["llama_sized", "linear", "bert", "roberta", "t5", "convnext", "unet", "batch_norm"]
# Exported for training: normalised by statistics of the batch, which buffers follow.
TRAINED = ["resnet18_training", "batch_norm"]
# Exported with extents that are open, from inputs of other extents than those that "input.N" has.
SIZED = {"llama_sized": ({"input_ids": tokens(3, 5)},
                         {"input_ids": {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", max=16)}}),
         "linear_sized": ({"x": torch.randn(2, 3)}, {"x": {0: torch.export.Dim("batch")}})}
