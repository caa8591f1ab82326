//! Recurrent layers: the simple network (Elman, 1990), LSTM (Hochreiter, Schmidhuber, 1997, with forget gates) and GRU (Cho
//! et al., 2014), as PyTorch has them.
//!
//! What a position contributes, x·W_ihᵀ + b_ih, is one product for all positions; only h·W_hhᵀ and what follows is a loop.
//! Gates are computed from one product, in the order of PyTorch's rows: i, f, c̃, o of an LSTM, r, z, n of a GRU.

use super::{DropConnect, Dropout};
use crate::init::Init;
use crate::trace::{Iteration, ScanOrder, Tensor, Trace};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The equations of a recurrent layer. σ is the logistic function, [a, b] = x·W_ihᵀ + b_ih + h·W_hhᵀ + b_hh by parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cell {
    /// h = tanh(a).
    Rnn,
    /// C = σ(f) ⊙ C + σ(i) ⊙ tanh(c̃), h = σ(o) ⊙ tanh(C).
    #[default]
    Lstm,
    /// h = (1 − σ(z)) ⊙ n + σ(z) ⊙ h with n = tanh(x·W_inᵀ + b_in + σ(r) ⊙ (h·W_hnᵀ + b_hn)).
    Gru,
}

impl Cell {
    /// How many rows of the weights there are for each hidden number.
    pub fn gates(self) -> usize {
        match self {
            Cell::Rnn => 1,
            Cell::Lstm => 4,
            Cell::Gru => 3,
        }
    }

    /// How many tensors are handed from position to position.
    pub fn states(self) -> usize {
        if self == Cell::Lstm { 2 } else { 1 }
    }
}

/// The shape of stacked recurrent layers.
#[derive(Debug, Clone, PartialEq)]
pub struct RecurrentConfig {
    /// The equations.
    pub cell: Cell,
    /// Width of the input.
    pub inputs: usize,
    /// Width of each layer's output but the last.
    pub hidden: usize,
    /// Width of the last layer's output.
    pub outputs: usize,
    /// How many layers.
    pub layers: usize,
    /// Dropout probability between layers, with one mask for all positions (Gal, Ghahramani, 2016).
    pub dropout: f64,
    /// The probability that a hidden-to-hidden weight is dropped, the same ones for all positions.
    pub weight_drop: f64,
}

/// One layer's weights, whoever declared them.
#[derive(Clone)]
pub struct CellWeights {
    /// `[gates·hidden, inputs]`.
    pub inputs: Tensor,
    /// `[gates·hidden, hidden]`.
    pub hidden: Tensor,
    /// `[gates·hidden]` both: what is added to x·W_ihᵀ, and to h·W_hhᵀ.
    pub biases: Option<[Tensor; 2]>,
}

impl CellWeights {
    /// One layer over `[length, batch, inputs]`, in either order. `first` has h and (of an LSTM) C before the first position that is
    /// read, `[batch, hidden]`. It [carries](Iteration::carried) the same after the last one, and gives the output of each position,
    /// `[length, batch, hidden]`.
    #[track_caller]
    pub fn scan(&self, cell: Cell, order: ScanOrder, x: &Tensor, first: &[&Tensor]) -> Iteration {
        let inputs = x.linear(&self.inputs);
        let (inputs, hidden_bias) = match &self.biases {
            Some([input, hidden]) => (inputs + input, Some(hidden)),
            None => (inputs, None),
        };
        x.trace().scan(order, x.dim(0), first, &[&inputs], |carried, slices| {
            let hidden = carried[0].linear(&self.hidden);
            let hidden = hidden_bias.map_or_else(|| hidden.clone(), |bias| &hidden + bias);
            iteration(cell, &slices[0], &hidden, carried)
        })
    }
}

/// Stacked recurrent layers.
pub struct Recurrent {
    path: Arc<str>,
    config: RecurrentConfig,
    layers: Vec<CellWeights>,
}

/// What stacked recurrent layers compute.
pub struct Recurred {
    /// The last layer's output at every position, `[batch, length, outputs]`.
    pub output: Tensor,
    /// What is handed on to the position after the last one, as [`Recurrent::forward`] takes it.
    pub states: Vec<Tensor>,
}

impl Recurrent {
    /// Declares, for each layer k, `name.weight_ih_lk` `[gates·hidden, inputs]`, `name.weight_hh_lk` `[gates·hidden, hidden]`,
    /// `name.bias_ih_lk` and `name.bias_hh_lk` `[gates·hidden]`, from numbers uniform within 1/√hidden.
    #[track_caller]
    pub fn new(trace: &Trace, name: &str, config: &RecurrentConfig) -> Self {
        let _scope = trace.scope(name);
        let gates = config.cell.gates();
        let mut layers = vec![];
        for k in 0..config.layers {
            let [inputs, hidden] = config.widths(k);
            let init = Init::Uniform { bound: 1.0 / (hidden as f64).sqrt() };
            let named = |kind: &str| format!("{kind}_l{k}");
            let bias = |kind| trace.parameter(&named(kind), [gates * hidden], init);
            layers.push(CellWeights {
                inputs: trace.parameter(&named("weight_ih"), [gates * hidden, inputs], init),
                hidden: trace.parameter(&named("weight_hh"), [gates * hidden, hidden], init),
                biases: Some([bias("bias_ih"), bias("bias_hh")]),
            });
        }
        Recurrent { path: trace.path(), config: config.clone(), layers }
    }

    /// `[batch, length, inputs]` to `[batch, length, outputs]`. `states` has, for each layer, h and (of an LSTM) C before the
    /// first position, `[batch, width of the layer]`; none: zeros.
    #[track_caller]
    pub fn forward(&self, x: &Tensor, states: &[Tensor]) -> Recurred {
        let trace = x.trace();
        let _scope = trace.at(self.path.clone());
        let [batch, ..] = x.shape()[..] else {
            x.expect("recurrent layers", |_| Some("take [batch, length, inputs]".into()));
            return Recurred { output: x.clone(), states: states.to_vec() };
        };
        let each = self.config.cell.states();
        let known = states.is_empty() || states.len() == each * self.layers.len();
        x.expect("recurrent layers", |_| {
            (!known).then(|| format!("hand on {} states, not {}", each * self.layers.len(), states.len()))
        });
        let mut output = x.transpose(0, 1);
        let mut last = vec![];
        for (k, layer) in self.layers.iter().enumerate() {
            if k > 0 {
                output = self.dropped(&output);
            }
            let zeros = vec![trace.zeros([batch, self.config.widths(k)[1]]); each];
            let first = if known && !states.is_empty() { &states[k * each..(k + 1) * each] } else { &zeros };
            let iterations = self.layer(layer, &output, first);
            last.extend(iterations.carried);
            output = iterations.each.into_iter().next().unwrap_or(output);
        }
        Recurred { output: output.transpose(0, 1), states: last }
    }

    /// One layer over `[length, batch, inputs]`.
    #[track_caller]
    fn layer(&self, layer: &CellWeights, x: &Tensor, first: &[Tensor]) -> Iteration {
        let hidden = DropConnect { probability: self.config.weight_drop }.forward(&layer.hidden);
        let layer = CellWeights { hidden, ..layer.clone() };
        layer.scan(self.config.cell, ScanOrder::Forward, x, &first.iter().collect::<Vec<_>>())
    }

    /// Dropout with one mask for all positions of `[length, batch, width]`.
    fn dropped(&self, x: &Tensor) -> Tensor {
        let dropout = Dropout { probability: self.config.dropout };
        let ones = x.trace().ones(&x.shape()[1..]);
        if self.config.dropout == 0.0 || !x.trace().is_training() {
            x.clone()
        } else {
            x * dropout.forward(&ones)
        }
    }
}

impl RecurrentConfig {
    /// Widths of a layer's input and output.
    pub fn widths(&self, layer: usize) -> [usize; 2] {
        let inputs = if layer == 0 { self.inputs } else { self.hidden };
        [inputs, if layer + 1 == self.layers { self.outputs } else { self.hidden }]
    }

    /// The number of trained numbers: for each gate a row of both weights and two biases.
    pub fn parameters(&self) -> usize {
        let layer = |k| {
            let [inputs, hidden] = self.widths(k);
            self.cell.gates() * hidden * (inputs + hidden + 2)
        };
        (0..self.layers).map(layer).sum()
    }
}

/// One position: `inputs` and `hidden` are the two parts of every gate, `[batch, gates·width]`.
#[track_caller]
fn iteration(cell: Cell, inputs: &Tensor, hidden: &Tensor, carried: &[Tensor]) -> Iteration {
    let before = &carried[0];
    let carried = match cell {
        Cell::Rnn => vec![(inputs + hidden).tanh()],
        Cell::Lstm => {
            let gates = (inputs + hidden).split(4, -1);
            let memory = gates[1].sigmoid() * &carried[1] + gates[0].sigmoid() * gates[2].tanh();
            vec![gates[3].sigmoid() * memory.tanh(), memory]
        }
        Cell::Gru => {
            let (x, h) = (inputs.split(3, -1), hidden.split(3, -1));
            let (reset, update) = ((&x[0] + &h[0]).sigmoid(), (&x[1] + &h[1]).sigmoid());
            let new = (&x[2] + reset * &h[2]).tanh();
            vec![&new + update * (before - &new)]
        }
    };
    Iteration { each: vec![carried[0].clone()], carried }
}
