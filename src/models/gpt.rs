//! GPT: a decoder of learned positions and identical blocks (Radford et al., "Language models are unsupervised
//! multitask learners", 2019).
//!
//! Parameters: `wte.weight` [V, d], `wpe.weight` [T, d]; for each block `blocks.i.` with `ln1.{weight,bias}`,
//! `attn.qkv.weight` [3d, d] (`.bias` if asked for), `attn.proj.{weight,bias}`, `ln2.{weight,bias}`,
//! `mlp.up.{weight,bias}` [4d, d], `mlp.down.{weight,bias}` [d, 4d]; `ln_f.{weight,bias}`; `head.weight` [V, d]
//! unless the head shares the matrix of `wte`.

use crate::init::Init;
use crate::loss::cross_entropy;
use crate::nn::{
    AttentionConfig, Block, BlockConfig, Dropout, Embedding, FeedForwardConfig, Gelu, LayerNorm, Linear,
    NormPlace, Normalization, SelfAttentionConfig,
};
use crate::optim::{Optimizer, TrainStep};
use crate::trace::{Program, Tensor, Trace};
use crate::{Error, Result};
use kernfusion_ir::DType;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Standard deviation of GPT-2's first weights.
const INITIAL_STD: f64 = 0.02;

/// The shape of a GPT; in JSON, fields left out take their defaults, which are those of the preset `tiny`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GptConfig {
    /// V, the number of tokens.
    pub vocabulary: usize,
    /// T, the most positions it can see.
    pub context: usize,
    /// L, the number of blocks.
    pub layers: usize,
    /// Attention heads in each block.
    pub heads: usize,
    /// d, a multiple of `heads`.
    pub width: usize,
    /// Dropout probability of embeddings, attention weights and branches.
    pub dropout: f64,
    /// Whether the projections to q, k and v have a bias.
    pub qkv_bias: bool,
    /// Whether the head shares its matrix with the token embedding.
    pub tied: bool,
    /// The activation: `erf` (exact) or `tanh`.
    pub gelu: Gelu,
    /// Where norms stand: `pre` or `post`.
    pub norm: NormPlace,
}

impl Default for GptConfig {
    fn default() -> Self {
        GptConfig {
            vocabulary: 65,
            context: 64,
            layers: 4,
            heads: 4,
            width: 128,
            dropout: 0.0,
            qkv_bias: false,
            tied: false,
            gelu: Gelu::Erf,
            norm: NormPlace::Pre,
        }
    }
}

impl GptConfig {
    /// Checks that such a model exists.
    ///
    /// # Errors
    /// If an extent is zero, the width no multiple of the heads, or the dropout probability outside [0, 1).
    pub fn validate(&self) -> Result<()> {
        let refuse = |reason: String| Err(Error::Configuration(reason));
        let extents = [
            ("vocabulary", self.vocabulary),
            ("context", self.context),
            ("layers", self.layers),
            ("heads", self.heads),
            ("width", self.width),
        ];
        if let Some((name, _)) = extents.into_iter().find(|(_, extent)| *extent == 0) {
            return refuse(format!("{name} is 0, but must be at least 1"));
        }
        if !self.width.is_multiple_of(self.heads) {
            return refuse(format!("width {} is not a multiple of heads {}", self.width, self.heads));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return refuse(format!("dropout {} is not in the range from 0 to below 1", self.dropout));
        }
        Ok(())
    }

    /// This shape with the fields of a JSON object put in.
    ///
    /// # Errors
    /// If it is no JSON object, a field is unknown or of another type, or the result is no valid shape.
    pub fn with_json(&self, json: &str) -> Result<Self> {
        let invalid = |error: serde_json::Error| Error::Configuration(error.to_string());
        let fields: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(json).map_err(invalid)?;
        let mut merged = serde_json::to_value(self).expect("a configuration is plain data");
        for (name, value) in fields {
            merged[name] = value;
        }
        let config: GptConfig = serde_json::from_value(merged).map_err(invalid)?;
        config.validate()?;
        Ok(config)
    }

    /// The number of trained numbers. Each block has 12·d² in its matrices, and 9·d in `proj`, `up`, `down` biases
    /// (d, 4d, d) less the 3·d of an absent `qkv` bias, with norms 4·d.
    pub fn parameters(&self) -> usize {
        let (v, t, d) = (self.vocabulary, self.context, self.width);
        let biases = d + 4 * d + d + if self.qkv_bias { 3 * d } else { 0 };
        let block = 12 * d * d + biases + 4 * d;
        v * d + t * d + self.layers * block + 2 * d + if self.tied { 0 } else { v * d }
    }

    /// One training step on inputs `x` and `y` of `i32[batch, context]`.
    ///
    /// # Errors
    /// If the shape or the optimizer is not valid.
    pub fn train_step(&self, batch: usize, optimizer: &Optimizer, clip: Option<f64>) -> Result<TrainStep> {
        TrainStep::new(&self.traced_loss(&Trace::training(), batch)?, optimizer, clip)
    }

    /// The output `loss` in evaluating mode on inputs `x` and `y` of `i32[batch, context]`.
    ///
    /// # Errors
    /// If the shape is not valid.
    pub fn evaluation(&self, batch: usize) -> Result<Program> {
        let trace = Trace::new();
        let loss = self.traced_loss(&trace, batch)?;
        trace.finish(&[("loss", &loss)])
    }

    /// The output `logits` of `f32[batch, length, vocabulary]` in evaluating mode on the input `x` of
    /// `i32[batch, length]`.
    ///
    /// # Errors
    /// If the shape is not valid, or the length above the context.
    pub fn forward(&self, batch: usize, length: usize) -> Result<Program> {
        let trace = Trace::new();
        let x = trace.input("x", [batch, length], DType::I32);
        let logits = Gpt::new(&trace, self)?.forward(&x);
        trace.finish(&[("logits", &logits)])
    }

    fn traced_loss(&self, trace: &Trace, batch: usize) -> Result<Tensor> {
        let shape = [batch, self.context];
        let (x, y) = (trace.input("x", shape, DType::I32), trace.input("y", shape, DType::I32));
        let logits = Gpt::new(trace, self)?.forward(&x);
        let _scope = trace.scope("loss");
        Ok(cross_entropy(&logits, &y))
    }

    fn block(&self) -> BlockConfig {
        // 2·L branches add to the residual stream; so scaled, its variance does not grow with their number.
        let residual_std = INITIAL_STD / (2.0 * self.layers as f64).sqrt();
        BlockConfig {
            width: self.width,
            dropout: self.dropout,
            norm: self.norm,
            normalization: Normalization::Layer,
            epsilon: 1e-5,
            attention: SelfAttentionConfig::Heads(AttentionConfig {
                dropout: self.dropout,
                qkv_bias: self.qkv_bias,
                std: INITIAL_STD,
                residual_std,
                ..AttentionConfig::causal(self.width, self.heads)
            }),
            cross: None,
            feed_forward: FeedForwardConfig {
                width: self.width,
                hidden: 4 * self.width,
                activation: self.gelu.into(),
                gated: false,
                bias: true,
                std: INITIAL_STD,
                residual_std,
            },
        }
    }
}

/// A GPT on a trace.
pub struct Gpt {
    path: Arc<str>,
    context: usize,
    dropout: Dropout,
    /// Token embedding.
    pub wte: Embedding,
    /// Position embedding.
    pub wpe: Embedding,
    /// The blocks.
    pub blocks: Vec<Block>,
    /// The last norm.
    pub ln_f: LayerNorm,
    /// The output layer, unless it shares the matrix of `wte`.
    pub head: Option<Linear>,
}

impl Gpt {
    /// Declares the parameters under the open module path.
    ///
    /// # Errors
    /// If the shape is not valid.
    pub fn new(trace: &Trace, config: &GptConfig) -> Result<Self> {
        config.validate()?;
        let (width, init) = (config.width, Init::Normal { std: INITIAL_STD });
        let wte = Embedding::new(trace, "wte", config.vocabulary, width, init);
        let wpe = Embedding::new(trace, "wpe", config.context, width, init);
        let shape = config.block();
        let blocks = (0..config.layers).map(|i| Block::new(trace, &format!("blocks.{i}"), &shape)).collect();
        let ln_f = LayerNorm::new(trace, "ln_f", width);
        let own_head = || Linear::without_bias(trace, "head", width, config.vocabulary, init);
        let head = (!config.tied).then(own_head);
        let dropout = Dropout { probability: config.dropout };
        Ok(Gpt { path: trace.path(), context: config.context, dropout, wte, wpe, blocks, ln_f, head })
    }

    /// Logits `[batch, length, vocabulary]` of the next token at each position of tokens `i32[batch, length]`, with
    /// a length of at most `context`.
    #[track_caller]
    pub fn forward(&self, tokens: &Tensor) -> Tensor {
        tokens.expect("gpt", |ty| match ty.shape[..] {
            _ if ty.dtype != DType::I32 => Some("tokens are i32".into()),
            [_, length] if length <= self.context => None,
            [_, length] => Some(format!("{length} positions exceed the context of {}", self.context)),
            _ => Some("tokens have the shape [batch, length]".into()),
        });
        self.logits(tokens)
    }

    /// Not `track_caller`: the nodes of the model carry the lines below.
    fn logits(&self, tokens: &Tensor) -> Tensor {
        let _scope = tokens.trace().at(self.path.clone());
        let length = tokens.shape().get(1).copied().unwrap_or(1);
        let embedded = self.wte.forward(tokens) + self.wpe.first(length);
        let mut x = self.dropout.forward(&embedded);
        for block in &self.blocks {
            x = block.forward(&x);
        }
        let x = self.ln_f.forward(&x);
        match &self.head {
            Some(head) => head.forward(&x),
            None => self.wte.logits(&x),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::evaluate;

    const SMALL: GptConfig = GptConfig {
        vocabulary: 11,
        context: 6,
        layers: 2,
        heads: 2,
        width: 8,
        dropout: 0.0,
        qkv_bias: false,
        tied: false,
        gelu: Gelu::Erf,
        norm: NormPlace::Pre,
    };

    #[test]
    fn the_traced_parameters_are_as_many_as_the_formula_says() {
        for (tied, qkv_bias, norm) in
            [(false, false, NormPlace::Pre), (true, true, NormPlace::Post), (true, false, NormPlace::Pre)]
        {
            let config = GptConfig { tied, qkv_bias, norm, ..SMALL };
            assert_eq!(config.forward(1, 3).expect("valid").parameter_count(), config.parameters());
        }
        for preset in crate::models::presets() {
            let trace = Trace::new();
            Gpt::new(&trace, &preset.config).expect("valid");
            assert_eq!(trace.finish(&[]).expect("correct").parameter_count(), preset.config.parameters());
        }
    }

    #[test]
    fn parameters_have_their_names_shapes_and_first_values() {
        let config = GptConfig { qkv_bias: true, ..SMALL };
        let program = config.forward(1, 3).expect("valid");
        let find = |name: &str| {
            let found = program.parameters.iter().find(|parameter| parameter.name == name);
            let found = found.unwrap_or_else(|| panic!("there is no {name}"));
            (found.shape.clone(), found.init)
        };
        let (normal, residual) = (Init::Normal { std: 0.02 }, Init::Normal { std: 0.01 });
        assert_eq!(find("wte.weight"), (vec![11, 8], normal));
        assert_eq!(find("wpe.weight"), (vec![6, 8], normal));
        assert_eq!(find("blocks.0.ln1.weight"), (vec![8], Init::Ones));
        assert_eq!(find("blocks.1.attn.qkv.weight"), (vec![24, 8], normal));
        assert_eq!(find("blocks.1.attn.qkv.bias"), (vec![24], Init::Zeros));
        assert_eq!(find("blocks.0.attn.proj.weight"), (vec![8, 8], residual));
        assert_eq!(find("blocks.1.mlp.up.weight"), (vec![32, 8], normal));
        assert_eq!(find("blocks.1.mlp.down.weight"), (vec![8, 32], residual));
        assert_eq!(find("ln_f.bias"), (vec![8], Init::Zeros));
        assert_eq!(find("head.weight"), (vec![11, 8], normal));
        assert_eq!(program.parameters.len(), 2 + 2 * 12 + 3);
    }

    #[test]
    fn the_first_loss_is_that_of_guessing_and_the_future_is_not_seen() {
        let tokens: Vec<_> = (0..12).map(|i| f64::from(i * 7 % 11)).collect();
        let program = SMALL.evaluation(2).expect("valid");
        let loss = evaluate(&program, &[("x", tokens.clone()), ("y", tokens.clone())])["loss"][0];
        assert!((loss - 11f64.ln()).abs() < 0.01, "{loss}");
        let program = SMALL.forward(1, 5).expect("valid");
        let logits =
            |tokens: &[f64]| evaluate(&program, &[("x", tokens.to_vec())]).remove("logits").expect("logits");
        let (one, other) = (logits(&tokens[..5]), logits(&[&tokens[..4], &[9.0]].concat()));
        assert_eq!(one[..44], other[..44]);
        assert_ne!(one[44..], other[44..]);
    }

    #[test]
    fn a_training_step_with_dropout_and_clipping_is_one_program() {
        let config = GptConfig { dropout: 0.1, tied: true, ..SMALL };
        let step = config.train_step(2, &Optimizer::adamw(1e-3), Some(1.0)).expect("valid");
        let graph = &step.program.graph;
        let updates = graph.outputs().iter().filter(|output| output.updates_state).count();
        assert_eq!(updates, 3 * step.program.parameters.len());
        assert!(graph.input("optimizer.v.blocks.1.mlp.up.weight").is_some());
        let data: Vec<_> =
            graph.inputs().filter(|(.., role)| *role == kernfusion_ir::InputRole::Data).collect();
        let names: std::collections::BTreeSet<_> = data.iter().map(|(_, name, _)| *name).collect();
        assert_eq!(names, ["bias1", "bias2", "lr", "seed", "step", "x", "y"].into());
        let scalars: Vec<_> = step.scalars(0, 1e-3, 5).into_iter().map(|(name, _)| name).collect();
        assert_eq!(scalars, ["lr", "bias1", "bias2", "seed", "step"]);
    }

    #[test]
    fn wrong_tokens_are_reported_at_the_call() {
        let message = |shape: &[usize], dtype| {
            let trace = Trace::new();
            let x = trace.input("x", shape, dtype);
            let model = Gpt::new(&trace, &SMALL).expect("valid");
            let (line, _) = (line!(), model.forward(&x));
            let error = trace.finish(&[]).expect_err("wrong tokens").to_string();
            assert!(error.contains(&format!("\n  at {}:{line}:", file!())), "{error}");
            error.lines().next().expect("a line").to_string()
        };
        assert_eq!(message(&[1, 7], DType::I32), "gpt(i32[1,7]): 7 positions exceed the context of 6");
        assert_eq!(message(&[1, 6], DType::F32), "gpt(f32[1,6]): tokens are i32");
        assert_eq!(message(&[6], DType::I32), "gpt(i32[6]): tokens have the shape [batch, length]");
    }

    #[test]
    fn shapes_that_cannot_be_are_refused() {
        let refused = |change: fn(&mut GptConfig)| {
            let mut config = SMALL;
            change(&mut config);
            config.forward(1, 1).expect_err("refused").to_string()
        };
        assert_eq!(refused(|c| c.heads = 3), "configuration: width 8 is not a multiple of heads 3");
        assert_eq!(refused(|c| c.layers = 0), "configuration: layers is 0, but must be at least 1");
        let expected = "configuration: dropout 1 is not in the range from 0 to below 1";
        assert_eq!(refused(|c| c.dropout = 1.0), expected);
        assert!(refused(|c| c.dropout = f64::NAN).contains("dropout NaN"));
    }

    #[test]
    fn json_takes_the_place_of_single_fields() {
        let config = SMALL.with_json(r#"{"layers": 3, "gelu": "tanh", "norm": "post"}"#).expect("valid");
        assert_eq!(config, GptConfig { layers: 3, gelu: Gelu::Tanh, norm: NormPlace::Post, ..SMALL });
        let json = r#"{"vocabulary":65,"context":64,"layers":4,"heads":4,"width":128,"dropout":0.0,"qkv_bias":false,"tied":false,"gelu":"erf","norm":"pre"}"#;
        assert_eq!(serde_json::to_string(&GptConfig::default()).expect("plain data"), json);
        let error = |json: &str| SMALL.with_json(json).expect_err("refused").to_string();
        assert!(
            error(r#"{"layer": 3}"#).starts_with("configuration: unknown field `layer`, expected one of")
        );
        assert!(error(r#"{"layers": "three"}"#).contains("invalid type: string \"three\""));
        assert!(error("[]").starts_with("configuration: invalid type"));
        assert!(error(r#"{"heads": 5}"#).contains("not a multiple"));
    }
}
