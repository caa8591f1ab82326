//! Recurrent language models: embedding, stacked recurrent layers, an output layer. With dropped weights, one dropout mask
//! for all positions, regularised activations and averaged weights an LSTM is AWD-LSTM (Merity, Keskar, Socher,
//! "Regularizing and optimizing LSTM language models", 2017).
//!
//! Parameters: `wte.weight` [V, d]; `rnn.{weight_ih,weight_hh,bias_ih,bias_hh}_lk` of each layer k, see
//! [`Recurrent`](crate::nn::Recurrent); `head.weight` [V, d] unless it is shared with `wte`, and `head.bias` [V].
//!
//! In training the layers' states are carried from step to step, so that a batch must go on where the one before ended;
//! gradients end at the step (truncated back-propagation through time). Otherwise they begin with zeros.

use super::{MOST_LAYERS, MOST_TOKENS, WIDEST};
use crate::init::Init;
use crate::loss::{activation_regularization, cross_entropy, temporal_activation_regularization};
use crate::nn::{Cell, Dropout, Embedding, Recurrent, RecurrentConfig};
use crate::optim::{Optimizer, TrainStep};
use crate::trace::{Program, Tensor, Trace};
use crate::{Error, Result};
use kernfusion_ir::DType;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The shape of a recurrent language model; in JSON, fields left out take their defaults, which are those of the preset
/// `lstm-tiny`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RecurrentLmConfig {
    /// V, the number of tokens.
    pub vocabulary: usize,
    /// Positions of a training step.
    pub context: usize,
    /// The equations: `rnn`, `lstm` or `gru`.
    pub cell: Cell,
    /// How many layers.
    pub layers: usize,
    /// d, the width of the embedding, and of the last layer if it shares its matrix with the output.
    pub width: usize,
    /// The width of the layers.
    pub hidden: usize,
    /// Dropout probability of the embedding, between layers and of the last layer's output.
    pub dropout: f64,
    /// The probability that a hidden-to-hidden weight is dropped.
    pub weight_drop: f64,
    /// α, the weight of activation regularisation.
    pub activation_penalty: f64,
    /// β, the weight of temporal activation regularisation.
    pub change_penalty: f64,
    /// Whether the output layer shares its matrix with the embedding.
    pub tied: bool,
}

impl Default for RecurrentLmConfig {
    fn default() -> Self {
        RecurrentLmConfig {
            vocabulary: 65,
            context: 64,
            cell: Cell::Lstm,
            layers: 2,
            width: 128,
            hidden: 256,
            dropout: 0.0,
            weight_drop: 0.0,
            activation_penalty: 0.0,
            change_penalty: 0.0,
            tied: false,
        }
    }
}

impl RecurrentLmConfig {
    /// Checks that such a model exists.
    ///
    /// # Errors
    /// If an extent is zero, a probability outside [0, 1), or a weight of a penalty negative.
    pub fn validate(&self) -> Result<()> {
        super::check_extents(&[
            ("vocabulary", self.vocabulary, MOST_TOKENS),
            ("context", self.context, MOST_TOKENS),
            ("layers", self.layers, MOST_LAYERS),
            ("width", self.width, WIDEST),
            ("hidden", self.hidden, WIDEST),
        ])?;
        super::check_dropout(self.dropout)?;
        super::check_dropout(self.weight_drop)?;
        let penalties = [self.activation_penalty, self.change_penalty];
        match penalties.into_iter().find(|x| !(x.is_finite() && *x >= 0.0)) {
            Some(x) => Err(Error::Configuration(format!("a penalty of {x} is not a number of at least 0"))),
            None => Ok(()),
        }
    }

    /// The number of trained numbers.
    pub fn parameters(&self) -> usize {
        let head = if self.tied { 0 } else { self.vocabulary * self.outputs() };
        self.vocabulary * self.width + self.recurrent().parameters() + head + self.vocabulary
    }

    /// The width of the last layer.
    fn outputs(&self) -> usize {
        if self.tied { self.width } else { self.hidden }
    }

    fn recurrent(&self) -> RecurrentConfig {
        RecurrentConfig {
            cell: self.cell,
            inputs: self.width,
            hidden: self.hidden,
            outputs: self.outputs(),
            layers: self.layers,
            dropout: self.dropout,
            weight_drop: self.weight_drop,
        }
    }

    /// One training step on inputs `x` and `y` of `i32[batch, context]`.
    ///
    /// # Errors
    /// If the shape or the optimizer is not valid.
    pub fn train_step(&self, batch: usize, optimizer: &Optimizer, clip: Option<f64>) -> Result<TrainStep> {
        TrainStep::new(&self.loss(&Trace::training(), batch)?, optimizer, clip)
    }

    /// The output `loss` in evaluating mode on inputs `x` and `y` of `i32[batch, context]`.
    ///
    /// # Errors
    /// If the shape is not valid.
    pub fn evaluation(&self, batch: usize) -> Result<Program> {
        let trace = Trace::new();
        let loss = self.loss(&trace, batch)?;
        trace.finish(&[("loss", &loss)])
    }

    /// The loss on the inputs of a training step, which it declares, in the mode of the trace. In training it has the
    /// penalties.
    ///
    /// # Errors
    /// If the shape is not valid.
    pub fn loss(&self, trace: &Trace, batch: usize) -> Result<Tensor> {
        let shape = [batch, self.context];
        let (x, y) = (trace.input("x", shape, DType::I32), trace.input("y", shape, DType::I32));
        let logits = RecurrentLm::new(trace, self)?.forward(&x);
        let _scope = trace.scope("loss");
        let loss = cross_entropy(&logits, &y);
        Ok(trace.penalty().map_or(loss.clone(), |penalty| loss + penalty))
    }
}

/// A recurrent language model on a trace.
pub struct RecurrentLm {
    path: Arc<str>,
    config: RecurrentLmConfig,
    /// Token embedding.
    pub wte: Embedding,
    /// The layers.
    pub rnn: Recurrent,
    /// The output layer's matrix `[V, d]`, unless it is that of `wte`.
    pub head: Option<Tensor>,
    /// The output layer's bias `[V]`.
    pub bias: Tensor,
}

impl RecurrentLm {
    /// Declares the parameters under the open module path.
    ///
    /// # Errors
    /// If the shape is not valid.
    pub fn new(trace: &Trace, config: &RecurrentLmConfig) -> Result<Self> {
        config.validate()?;
        // As large as what recurrent layers start from.
        let init = Init::Uniform { bound: 1.0 / (config.width as f64).sqrt() };
        let wte = Embedding::builder(config.vocabulary, config.width).init(init).build(trace, "wte");
        let rnn = Recurrent::new(trace, "rnn", &config.recurrent());
        let shape = [config.vocabulary, config.outputs()];
        let head = (!config.tied).then(|| trace.parameter("head.weight", shape, init));
        let bias = trace.parameter("head.bias", [config.vocabulary], Init::Zeros);
        Ok(RecurrentLm { path: trace.path(), config: config.clone(), wte, rnn, head, bias })
    }

    /// Logits `[batch, length, V]` of the next token at each position of tokens `i32[batch, length]`.
    #[track_caller]
    pub fn forward(&self, tokens: &Tensor) -> Tensor {
        tokens.expect("recurrent model", |ty| match ty.shape[..] {
            _ if ty.dtype != DType::I32 => Some("tokens are i32".into()),
            [_, _] => None,
            _ => Some("tokens have the shape [batch, length]".into()),
        });
        self.logits(tokens)
    }

    /// Not `track_caller`: the nodes of the model carry the lines below.
    fn logits(&self, tokens: &Tensor) -> Tensor {
        let trace = tokens.trace();
        let _scope = trace.at(self.path.clone());
        let dropout = Dropout { probability: self.config.dropout };
        let embedded = dropout.forward(&self.wte.forward(tokens));
        let batch = tokens.dim(0);
        let carried = if trace.is_training() { self.states(trace, batch) } else { vec![] };
        let recurred = self.rnn.forward(&embedded, &carried);
        for (state, next) in carried.iter().zip(&recurred.states) {
            trace.update(state, next);
        }
        let dropped = dropout.forward(&recurred.output);
        if trace.is_training() {
            self.penalize(trace, &recurred.output, &dropped);
        }
        let matrix = self.head.as_ref().unwrap_or(&self.wte.weight);
        dropped.linear(matrix) + &self.bias
    }

    /// What the step before has handed on.
    fn states(&self, trace: &Trace, batch: usize) -> Vec<Tensor> {
        let (config, each) = (self.config.recurrent(), self.config.cell.states());
        let _scope = trace.scope("carried");
        let state = |number: usize| {
            let width = config.widths(number / each)[1];
            let name = if number.is_multiple_of(each) { "h" } else { "c" };
            trace.state(&format!("{name}_l{}", number / each), [batch, width], DType::F32)
        };
        (0..config.layers * each).map(state).collect()
    }

    fn penalize(&self, trace: &Trace, raw: &Tensor, dropped: &Tensor) {
        let RecurrentLmConfig { activation_penalty, change_penalty, .. } = self.config;
        if activation_penalty > 0.0 {
            trace.penalize(&activation_regularization(dropped, activation_penalty));
        }
        if change_penalty > 0.0 && raw.dim(1) > 1 {
            trace.penalize(&temporal_activation_regularization(raw, change_penalty));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{evaluate, random};

    const SMALL: RecurrentLmConfig = RecurrentLmConfig {
        vocabulary: 7,
        context: 5,
        cell: Cell::Lstm,
        layers: 2,
        width: 4,
        hidden: 6,
        dropout: 0.0,
        weight_drop: 0.0,
        activation_penalty: 0.0,
        change_penalty: 0.0,
        tied: false,
    };

    #[test]
    fn the_traced_parameters_are_as_many_as_the_formula_says() {
        for (cell, tied) in [(Cell::Rnn, false), (Cell::Lstm, true), (Cell::Gru, true)] {
            let config = RecurrentLmConfig { cell, tied, ..SMALL };
            assert_eq!(config.evaluation(2).expect("valid").parameter_count(), config.parameters());
        }
    }

    /// Two steps of five positions are one of ten: what is handed on is what the next step begins with.
    #[test]
    fn training_goes_on_where_the_step_before_ended() {
        let tokens: Vec<_> = random(3, 22, 0.0, 7.0).into_iter().map(f64::floor).collect();
        let part = |from: usize, length: usize| -> Vec<f64> {
            [0, 11].iter().flat_map(|row| tokens[row + from..row + from + length].to_vec()).collect()
        };
        let run = |context: usize, from: usize, states: &[(&str, Vec<f64>)]| {
            let config = RecurrentLmConfig { context, ..SMALL };
            let trace = Trace::training();
            let loss = config.loss(&trace, 2).expect("valid");
            let program = trace.finish(&[("loss", &loss)]).expect("correct");
            let inputs = [("x", part(from, context)), ("y", part(from + 1, context))];
            evaluate(&program, &[&inputs[..], states].concat())
        };
        let whole = run(10, 0, &[]);
        let first = run(5, 0, &[]);
        let carried: Vec<_> = ["carried.h_l0", "carried.c_l0", "carried.h_l1", "carried.c_l1"]
            .into_iter()
            .map(|name| (name, first[name].clone()))
            .collect();
        let second = run(5, 5, &carried);
        let mean = (first["loss"][0] + second["loss"][0]) / 2.0;
        assert!((whole["loss"][0] - mean).abs() < 1e-12, "{} {mean}", whole["loss"][0]);
        for (name, _) in carried {
            let pairs = whole[name].iter().zip(&second[name]);
            assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() < 1e-12), "{name}");
        }
    }

    #[test]
    fn dropped_weights_and_penalties_are_of_training_only() {
        let plain = SMALL;
        let regular = RecurrentLmConfig {
            dropout: 0.3,
            weight_drop: 0.5,
            activation_penalty: 2.0,
            change_penalty: 1.0,
            ..SMALL
        };
        let tokens: Vec<_> = (0..10).map(|i| f64::from(i * 3 % 7)).collect();
        let inputs = [("x", tokens.clone()), ("y", tokens), ("seed", vec![1.0]), ("step", vec![0.0])];
        let evaluated =
            |config: &RecurrentLmConfig| evaluate(&config.evaluation(2).expect("valid"), &inputs)["loss"][0];
        assert_eq!(evaluated(&plain), evaluated(&regular));
        let trained = |config: &RecurrentLmConfig| {
            let trace = Trace::training();
            let loss = config.loss(&trace, 2).expect("valid");
            evaluate(&trace.finish(&[("loss", &loss)]).expect("correct"), &inputs)["loss"][0]
        };
        assert_ne!(trained(&plain), trained(&regular));
    }

    #[test]
    fn shapes_that_cannot_be_are_refused() {
        let refused = |config: RecurrentLmConfig| config.evaluation(1).expect_err("refused").to_string();
        assert!(refused(RecurrentLmConfig { hidden: 0, ..SMALL }).contains("hidden is 0"));
        assert!(refused(RecurrentLmConfig { weight_drop: 1.0, ..SMALL }).contains("dropout 1"));
        assert!(refused(RecurrentLmConfig { change_penalty: -1.0, ..SMALL }).contains("a penalty of -1"));
    }
}
