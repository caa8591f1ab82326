//! T5, in its first form and in the later one with gated networks and an output layer of its own.

use super::{Architecture, object};
use crate::hugging_face::fields::Fields;
use crate::hugging_face::layout::rows;
use kernfusion::models::{EncoderDecoderConfig, FeedForwardKind, ModelConfig, Positions};
use kernfusion::nn::{Gelu, NormPlace, Normalization, RelativeShape};
use serde_json::{Map, Value, json};

pub(super) const T5: Architecture = Architecture {
    model_type: "t5",
    class: "T5ForConditionalGeneration",
    tables: &[&[
        rows("wte", &["shared"]),
        rows("relative_source", &["encoder.block.0.layer.0.SelfAttention.relative_attention_bias"]),
        rows("relative_target", &["decoder.block.0.layer.0.SelfAttention.relative_attention_bias"]),
        rows("encoder.{}.ln1", &["encoder.block.{}.layer.0.layer_norm"]),
        rows(
            "encoder.{}.attn.qkv",
            &[
                "encoder.block.{}.layer.0.SelfAttention.q",
                "encoder.block.{}.layer.0.SelfAttention.k",
                "encoder.block.{}.layer.0.SelfAttention.v",
            ],
        ),
        rows("encoder.{}.attn.proj", &["encoder.block.{}.layer.0.SelfAttention.o"]),
        rows("encoder.{}.ln2", &["encoder.block.{}.layer.1.layer_norm"]),
        rows("encoder.{}.mlp.down", &["encoder.block.{}.layer.1.DenseReluDense.wo"]),
        rows("decoder.{}.ln1", &["decoder.block.{}.layer.0.layer_norm"]),
        rows(
            "decoder.{}.attn.qkv",
            &[
                "decoder.block.{}.layer.0.SelfAttention.q",
                "decoder.block.{}.layer.0.SelfAttention.k",
                "decoder.block.{}.layer.0.SelfAttention.v",
            ],
        ),
        rows("decoder.{}.attn.proj", &["decoder.block.{}.layer.0.SelfAttention.o"]),
        rows("decoder.{}.ln_cross", &["decoder.block.{}.layer.1.layer_norm"]),
        rows("decoder.{}.cross.q", &["decoder.block.{}.layer.1.EncDecAttention.q"]),
        rows(
            "decoder.{}.cross.kv",
            &["decoder.block.{}.layer.1.EncDecAttention.k", "decoder.block.{}.layer.1.EncDecAttention.v"],
        ),
        rows("decoder.{}.cross.proj", &["decoder.block.{}.layer.1.EncDecAttention.o"]),
        rows("decoder.{}.ln2", &["decoder.block.{}.layer.2.layer_norm"]),
        rows("decoder.{}.mlp.down", &["decoder.block.{}.layer.2.DenseReluDense.wo"]),
        rows("ln_encoder", &["encoder.final_layer_norm"]),
        rows("ln_decoder", &["decoder.final_layer_norm"]),
        rows("head", &["lm_head"]),
    ]],
    // Networks without a gate, and with one.
    variants: [
        &[
            rows("encoder.{}.mlp.up", &["encoder.block.{}.layer.1.DenseReluDense.wi"]),
            rows("decoder.{}.mlp.up", &["decoder.block.{}.layer.2.DenseReluDense.wi"]),
        ],
        &[
            rows("encoder.{}.mlp.gate", &["encoder.block.{}.layer.1.DenseReluDense.wi_0"]),
            rows("encoder.{}.mlp.up", &["encoder.block.{}.layer.1.DenseReluDense.wi_1"]),
            rows("decoder.{}.mlp.gate", &["decoder.block.{}.layer.2.DenseReluDense.wi_0"]),
            rows("decoder.{}.mlp.up", &["decoder.block.{}.layer.2.DenseReluDense.wi_1"]),
        ],
    ],
    base: "",
    ties: &[&[
        "shared.weight",
        "encoder.embed_tokens.weight",
        "decoder.embed_tokens.weight",
        "lm_head.weight",
    ]],
    extras: &["EncDecAttention.relative_attention_bias.weight"],
    rename: |name| name,
    halves: &[],
    read,
    write,
};

/// Positions that are read and written at most. The model itself knows no limit; this one is that of its training.
const LENGTH: usize = 512;

fn read(fields: &mut Fields) -> Result<ModelConfig, String> {
    fields.demand("is_decoder", false)?;
    // Both follow from `feed_forward_proj`.
    let _: [Option<Value>; 2] = [fields.option("dense_act_fn")?, fields.option("is_gated_act")?];
    let (feed_forward, gelu) = network(&fields.or("feed_forward_proj", "relu".to_string())?)?;
    let length = fields.or("n_positions", LENGTH)?;
    let tied: bool = fields.or("tie_word_embeddings", true)?;
    let scaled_head = fields.or("scale_decoder_outputs", tied)?;
    let vocabulary = fields.or("vocab_size", 32_128)?;
    let (width, heads) = (fields.or("d_model", 512)?, fields.or("num_heads", 8)?);
    let (layers, decoder_layers) = (fields.or("num_layers", 6)?, fields.option("num_decoder_layers")?);
    Ok(ModelConfig::EncoderDecoder(EncoderDecoderConfig {
        vocabulary,
        width,
        heads,
        layers,
        source_length: length,
        target_length: length,
        decoder_layers: decoder_layers.filter(|count| *count != layers),
        head_width: Some(fields.or("d_kv", 64)?),
        hidden: Some(fields.or("d_ff", 2048)?),
        bias: false,
        feed_forward,
        gelu,
        norm: NormPlace::Pre,
        normalization: Normalization::Rms,
        epsilon: fields.or("layer_norm_epsilon", 1e-6)?,
        positions: Positions::Relative(RelativeShape {
            buckets: fields.or("relative_attention_num_buckets", 32)?,
            distance: fields.or("relative_attention_max_distance", 128)?,
        }),
        scaled_attention: false,
        scaled_embedding: false,
        scaled_head,
        tied,
        // As the class has them; files may name others.
        beginning: Some(0),
        end: Some(1),
        ..EncoderDecoderConfig::default()
    }))
}

fn network(name: &str) -> Result<(FeedForwardKind, Gelu), String> {
    match name {
        "relu" => Ok((FeedForwardKind::Relu, Gelu::Erf)),
        "gelu" => Ok((FeedForwardKind::Gelu, Gelu::Erf)),
        "gelu_new" => Ok((FeedForwardKind::Gelu, Gelu::Tanh)),
        // Which means the approximation, whatever its name says.
        "gated-gelu" | "gated-gelu_new" => Ok((FeedForwardKind::Geglu, Gelu::Tanh)),
        "gated-silu" => Ok((FeedForwardKind::Swiglu, Gelu::Erf)),
        other => Err(format!("feed_forward_proj {other} is not known")),
    }
}

fn write(config: &ModelConfig) -> Result<Map<String, Value>, String> {
    let ModelConfig::EncoderDecoder(config) = config else { return Err("it is no encoder-decoder".into()) };
    let Positions::Relative(shape) = config.positions else {
        return Err("its positions are not known by distance".into());
    };
    let network = match (config.feed_forward, config.gelu) {
        (FeedForwardKind::Relu, _) => "relu",
        (FeedForwardKind::Gelu, Gelu::Erf) => "gelu",
        (FeedForwardKind::Gelu, Gelu::Tanh) => "gelu_new",
        (FeedForwardKind::Geglu, Gelu::Tanh) => "gated-gelu",
        (FeedForwardKind::Swiglu, _) => "gated-silu",
        (FeedForwardKind::Geglu, Gelu::Erf) => return Err("its gates are exact GELUs".into()),
    };
    Ok(object(json!({
        "vocab_size": config.vocabulary,
        "d_model": config.width,
        "d_kv": config.head_width(),
        "d_ff": config.hidden(),
        "num_layers": config.layers,
        "num_decoder_layers": config.decoder_layers(),
        "num_heads": config.heads,
        "relative_attention_num_buckets": shape.buckets,
        "relative_attention_max_distance": shape.distance,
        "feed_forward_proj": network,
        "layer_norm_epsilon": config.epsilon,
        "dropout_rate": config.dropout,
        "n_positions": config.source_length,
        "is_encoder_decoder": true,
        // Older versions know the scale by the tie; newer ones tie whatever is stored once.
        "tie_word_embeddings": config.tied,
        "scale_decoder_outputs": config.scaled_head,
        "decoder_start_token_id": config.beginning(),
        "eos_token_id": config.end(),
        "pad_token_id": config.beginning(),
    })))
}
