//! Adapters, and the losses of fine-tuning.

use super::judge::{check, check_all};
use kernfusion::prelude::*;

#[test]
fn adapters_of_low_rank() {
    check("lora", 5e-6, |trace, inputs| {
        trace.adapt(&Lora { rank: 2, alpha: 8.0, dropout: 0.0, targets: vec!["up".into()] });
        Ok(Linear::builder(6, 5).init(Init::Zeros).build(trace, "up").forward(&inputs.get("x")))
    });
}

#[test]
fn losses_of_fine_tuning() {
    check("pairwise", 2e-6, |_, inputs| {
        Ok(pairwise_loss(&inputs.get("chosen"), &inputs.get("rejected")).reshape([1]))
    });
    check("supervised", 2e-6, |_, inputs| {
        let [logits, targets, mask] = ["logits", "targets", "mask"].map(|name| inputs.get(name));
        Ok(masked_cross_entropy(&logits, &targets, &mask).reshape([1]))
    });
    check_all("ppo", Trace::training(), 5e-6, |_, inputs| {
        let mask = inputs.get("mask");
        let (new, old, advantages) = (inputs.get("new"), inputs.get("old"), inputs.get("advantages"));
        let policy = ppo_loss(&new, &old, &advantages, &mask, 0.2);
        let value = value_loss(&inputs.get("values"), &inputs.get("returns"), &mask);
        Ok(vec![("policy", policy.reshape([1])), ("value", value.reshape([1]))])
    });
}
