//! Recurrent layers: one loop over positions for each layer and direction.

use super::{Operator, row};
use crate::call::{Built, Call};
use kernfusion::nn::{Cell, CellWeights};
use kernfusion::trace::{ScanOrder, Tensor};

#[rustfmt::skip]
pub(super) const OPERATORS: &[Operator] = &[
    row("aten.lstm.input",     "num_layers of LSTM, bidirectional or not: outputs of the last, and the last h and C of all", |call| recurrent(call, Cell::Lstm)),
    row("aten.gru.input",      "num_layers of GRU: outputs of the last, and the last h of all",      |call| recurrent(call, Cell::Gru)),
    row("aten.rnn_tanh.input", "num_layers of Elman's network: outputs of the last, and the last h of all", |call| recurrent(call, Cell::Rnn)),
];

fn recurrent(call: &Call<'_>, cell: Cell) -> Built {
    let (x, weights) = (call.tensor("input")?, call.tensors("params")?);
    let first = if cell == Cell::Lstm { call.tensors("hx")? } else { vec![call.tensor("hx")?] };
    let layers = usize::try_from(call.int("num_layers")?).unwrap_or(0);
    let directions = 1 + usize::from(call.flag_or("bidirectional", false)?);
    let each = if call.flag_or("has_biases", true)? { 4 } else { 2 };
    if layers.checked_mul(directions * each) != Some(weights.len()) || first.len() != cell.states() {
        return Err(format!(
            "{} weights are not those of {layers} layers without projections",
            weights.len()
        ));
    }
    if x.rank() != 3 || first.iter().any(|state| state.rank() != 3 || state.dim(0) != layers * directions) {
        return Err("its input or its first states are not of three axes".into());
    }
    let is_batch_first = call.flag_or("batch_first", false)?;
    let mut output = if is_batch_first { x.transpose(0, 1) } else { x };
    let mut last = vec![vec![]; first.len()];
    for layer in 0..layers {
        if layer > 0 && call.flag_or("train", false)? {
            output = super::elementwise::dropped(call, &output, call.number_or("dropout", 0.0)?)?;
        }
        let mut outputs = vec![];
        for (direction, order) in
            [ScanOrder::Forward, ScanOrder::Backward].into_iter().take(directions).enumerate()
        {
            let at = layer * directions + direction;
            let states: Vec<_> = first.iter().map(|state| state.index(0, at)).collect();
            let states: Vec<_> = states.iter().collect();
            let done = weights_of(&weights[at * each..][..each]).scan(cell, order, &output, &states);
            outputs.extend(done.each);
            last.iter_mut().zip(done.carried).for_each(|(all, state)| all.push(state));
        }
        output = call.trace.concat(&outputs.iter().collect::<Vec<_>>(), -1);
    }
    let output = if is_batch_first { output.transpose(0, 1) } else { output };
    let last = last.iter().map(|states| call.trace.stack(&states.iter().collect::<Vec<_>>(), 0));
    Ok([output].into_iter().chain(last).collect())
}

fn weights_of(weights: &[Tensor]) -> CellWeights {
    let biases = match weights {
        [_, _, input, hidden] => Some([input.clone(), hidden.clone()]),
        _ => None,
    };
    CellWeights { inputs: weights[0].clone(), hidden: weights[1].clone(), biases }
}
