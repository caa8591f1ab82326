//! Layers without a structure of their own.

use super::judge::{check, check_all};
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
        Ok(Linear::builder(5, 3).init(Init::Zeros).build(trace, "linear").forward(&inputs.get("x")))
    });
}

#[test]
fn embeddings() {
    check("embedding", 1e-6, |trace, inputs| {
        Ok(Embedding::builder(4, 3).init(Init::Zeros).build(trace, "embedding").forward(&inputs.get("ids")))
    });
}

#[test]
fn norms() {
    check("layer_norm", 2e-6, |trace, inputs| Ok(LayerNorm::new(trace, "norm", 6).forward(&inputs.get("x"))));
    check("rms_norm", 2e-6, |trace, inputs| Ok(RmsNorm::new(trace, "norm", 6).forward(&inputs.get("x"))));
}

#[test]
fn batch_norms_use_and_move_their_running_statistics() {
    for (case, trace) in [("batch_norm_training", Trace::training()), ("batch_norm_evaluating", Trace::new())]
    {
        check_all(case, trace, 5e-6, |trace, inputs| {
            Ok(vec![("y", BatchNorm::new(trace, "norm", 4).forward(&inputs.get("x")))])
        });
    }
}

#[test]
fn one_value_has_no_variance() {
    let trace = Trace::training();
    BatchNorm::new(&trace, "norm", 4).forward(&trace.input("x", [1, 4], DType::F32));
    let error = trace.finish(&[]).expect_err("refused").to_string();
    assert!(error.contains("one value for each channel has no variance"), "{error}");
}

#[test]
fn positions() {
    check("sinusoids", 2e-6, |trace, inputs| Ok(inputs.get("x") + trace.sinusoidal_positions(7, 6)));
    let rotated = |case, rope: Rope| {
        check(case, 2e-6, |trace, inputs| Ok(rope.rotate(&inputs.get("x"), &trace.arange(5, DType::I32))));
    };
    rotated("rope_adjacent", Rope::default());
    rotated("rope_halves", Rope { base: 500.0, pairing: Pairing::Halves, scaling: None });
}

#[test]
fn feed_forward_networks() {
    let config = FeedForwardConfig {
        width: 6,
        hidden: 10,
        activation: Activation::Swish,
        gated: true,
        bias: false,
        std: 0.02,
        residual_std: 0.02,
    };
    check("swiglu", 2e-6, |trace, inputs| {
        Ok(FeedForward::new(trace, "mlp", &config).forward(&inputs.get("x")))
    });
    let config =
        FeedForwardConfig { hidden: 24, activation: Activation::Relu, gated: false, bias: true, ..config };
    check("feed_forward", 2e-6, |trace, inputs| {
        Ok(FeedForward::new(trace, "mlp", &config).forward(&inputs.get("x")))
    });
    check("mlp", 2e-6, |trace, inputs| {
        Ok(Mlp::new(trace, &[5, 8, 6, 3], Activation::Tanh)?.forward(&inputs.get("x")))
    });
}

#[test]
fn losses() {
    check("label_smoothing", 2e-6, |_, inputs| {
        let (logits, targets) = (inputs.get("logits"), inputs.get("targets"));
        Ok(smoothed_token_losses(&logits, &targets, 0.1).mean_all())
    });
    check("ignored_targets", 2e-6, |_, inputs| {
        let (logits, targets) = (inputs.get("logits"), inputs.get("targets"));
        Ok(masked_cross_entropy(&logits, &targets, &targets.ne(-100)))
    });
    check_all("activity", Trace::training(), 2e-6, |_, inputs| {
        let h = inputs.get("h");
        let (ar, tar) = (activation_regularization(&h, 2.0), temporal_activation_regularization(&h, 0.5));
        Ok(vec![("ar", ar), ("tar", tar)])
    });
}
