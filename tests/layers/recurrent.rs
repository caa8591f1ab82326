//! Recurrent layers.

use super::judge::check_all;
use kernfusion::nn::{Cell, Recurrent, RecurrentConfig};
use kernfusion::prelude::*;

#[test]
fn layers_over_a_sequence_with_states_before_and_after() {
    for (case, cell) in [("rnn", Cell::Rnn), ("lstm", Cell::Lstm), ("gru", Cell::Gru)] {
        check_all(case, Trace::training(), 2e-5, |trace, inputs| {
            let (dropout, weight_drop) = (0.0, 0.0);
            let config =
                RecurrentConfig { cell, inputs: 3, hidden: 4, outputs: 4, layers: 2, dropout, weight_drop };
            let layers = Recurrent::new(trace, "rnn", &config);
            let x = inputs.get("x");
            let (h, c) = (inputs.get("h"), (cell == Cell::Lstm).then(|| inputs.get("c")));
            let of_layer = |k| [Some(h.index(0, k)), c.as_ref().map(|c| c.index(0, k))];
            let states: Vec<_> = (0..2).flat_map(of_layer).flatten().collect();
            let result = layers.forward(&x, &states);
            let last = |at: usize| {
                let each = cell.states();
                trace.stack(&[&result.states[at], &result.states[at + each]], 0)
            };
            let c = (cell == Cell::Lstm).then(|| ("c_last", last(1)));
            Ok([Some(("y", result.output.clone())), Some(("h_last", last(0))), c]
                .into_iter()
                .flatten()
                .collect())
        });
    }
}
