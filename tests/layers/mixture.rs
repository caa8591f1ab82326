//! Mixtures of experts.

use super::judge::{check, check_all};
use kernfusion::nn::{Mixture, MixtureConfig, balancing_loss};
use kernfusion::prelude::*;

fn config(experts: usize, active: usize) -> MixtureConfig {
    let (noise, balance, std, residual_std) = (0.0, 0.0, 0.02, 0.02);
    MixtureConfig { width: 8, hidden: 6, experts, active, noise, balance, std, residual_std }
}

#[test]
fn chosen_experts_work_on_tokens() {
    check("mixture", 5e-6, |trace, inputs| {
        Ok(Mixture::new(trace, "moe", &config(4, 2)).forward(&inputs.get("x")))
    });
    check("mixture_single", 5e-6, |trace, inputs| {
        Ok(Mixture::new(trace, "moe", &config(3, 1)).forward(&inputs.get("x")))
    });
}

#[test]
fn the_balancing_loss() {
    check_all("balance", Trace::training(), 5e-6, |_, inputs| {
        let likely = inputs.get("logits").softmax(-1);
        let (_, chosen) = likely.top_k(2);
        Ok(vec![("y", balancing_loss(&likely, &chosen))])
    });
}
