//! Adapters.

use super::judge::check;
use kernfusion::prelude::*;

#[test]
fn adapters_of_low_rank() {
    check("lora", 5e-6, |trace, inputs| {
        trace.adapt(&Lora { rank: 2, alpha: 8.0, dropout: 0.0, targets: vec!["up".into()] });
        Ok(Linear::new(trace, "up", 6, 5, Init::Zeros).forward(&inputs.get("x")))
    });
}
