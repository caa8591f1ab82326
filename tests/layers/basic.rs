//! Layers without a structure of their own.

use crate::judge::{check, check_all};
use kernfusion::prelude::*;

#[test]
fn activations() {
    check_all("activations", Trace::training(), 1e-6, |_, inputs| {
        let x = inputs.get("x");
        Ok(vec![
            ("relu", x.relu()),
            ("leaky_relu", x.leaky_relu(0.1)),
            ("sigmoid", x.sigmoid()),
            ("tanh", x.tanh()),
            ("swish", x.swish()),
            ("softplus", x.softplus()),
            ("gelu", x.gelu()),
            ("gelu_tanh", x.gelu_tanh()),
        ])
    });
}

#[test]
fn linear_maps() {
    check("linear", 1e-6, |trace, inputs| {
        Ok(Linear::new(trace, "linear", 5, 3, Init::Zeros).forward(&inputs.get("x")))
    });
}

#[test]
fn embeddings() {
    check("embedding", 1e-6, |trace, inputs| {
        Ok(Embedding::new(trace, "embedding", 4, 3, Init::Zeros).forward(&inputs.get("ids")))
    });
}
