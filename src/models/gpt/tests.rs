//! Decoders: parameters, first values, what is refused.

use super::*;
use crate::nn::Pairing;
use crate::testing::evaluate;

const SMALL: GptConfig =
    GptConfig { vocabulary: 11, context: 6, layers: 2, heads: 2, width: 8, ..GptConfig::TINY };

#[test]
fn the_traced_parameters_are_as_many_as_the_formula_says() {
    let rope = Positions::Rope(Rope::default());
    let latent =
        LatentShape { query_rank: Some(5), kv_rank: 3, head_width: 4, rope_width: 2, value_width: 6 };
    let variants = [
        GptConfig { kv_heads: Some(1), positions: rope, window: Some(2), ..SMALL },
        GptConfig { kv_heads: Some(1), head_width: Some(6), qkv_bias: true, positions: rope, ..SMALL },
        GptConfig { feed_forward: FeedForwardKind::Relu, ..SMALL },
        GptConfig { feed_forward: FeedForwardKind::Geglu, width: 9, head_width: Some(4), ..SMALL },
        GptConfig { positions: Positions::Sinusoidal, bias: false, hidden: Some(12), ..SMALL },
        GptConfig { feed_forward: FeedForwardKind::Swiglu, normalization: Normalization::Rms, ..SMALL },
        GptConfig { qk_norm: Some(QkNorm::Head), kv_heads: Some(1), ..SMALL },
        GptConfig {
            qk_norm: Some(QkNorm::Position),
            normalization: Normalization::RmsPlusOne,
            norm: NormPlace::Both,
            kv_heads: Some(1),
            ..SMALL
        },
        GptConfig { norm: NormPlace::Both, ..SMALL },
        GptConfig { norm: NormPlace::Branch, global: Some(GlobalBlocks { every: 2, rope: None }), ..SMALL },
        GptConfig { latent: Some(latent), positions: rope, bias: false, ..SMALL },
        GptConfig {
            latent: Some(LatentShape { query_rank: None, ..latent }),
            positions: rope,
            bias: false,
            ..SMALL
        },
    ];
    for config in variants {
        assert_eq!(config.forward(1, 3).expect("valid").parameter_count(), config.parameters());
    }
    for (tied, qkv_bias, norm) in
        [(false, false, NormPlace::Pre), (true, true, NormPlace::Post), (true, false, NormPlace::Pre)]
    {
        let config = GptConfig { tied, qkv_bias, norm, ..SMALL };
        assert_eq!(config.forward(1, 3).expect("valid").parameter_count(), config.parameters());
    }
    for preset in crate::models::presets() {
        let program = preset.config.evaluation(1).expect("valid");
        assert_eq!(program.parameter_count(), preset.config.parameters(), "{}", preset.name);
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
    let data: Vec<_> = graph.inputs().filter(|(.., role)| *role == kernfusion_ir::InputRole::Data).collect();
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
    assert!(refused(|c| c.head_width = Some(0)).contains("head_width is 0"));
    assert_eq!(refused(|c| c.layers = 0), "configuration: layers is 0, but must be at least 1");
    let above = |name: &str, limit: usize| {
        format!("configuration: {name} {} is above the largest possible, {limit}", usize::MAX)
    };
    assert_eq!(refused(|c| c.layers = usize::MAX), above("layers", 4096));
    assert_eq!(refused(|c| c.width = usize::MAX), above("width", 1 << 22));
    assert_eq!(refused(|c| c.context = usize::MAX), above("context", 1 << 24));
    assert_eq!(refused(|c| c.hidden = Some(usize::MAX)), above("hidden", 1 << 22));
    assert_eq!(refused(|c| c.head_width = Some(usize::MAX)), above("head_width", 1 << 22));
    let expected = "configuration: dropout 1 is not in the range from 0 to below 1";
    assert_eq!(refused(|c| c.dropout = 1.0), expected);
    let latent = LatentShape { query_rank: None, kv_rank: 3, head_width: 4, rope_width: 2, value_width: 6 };
    assert!(refused(|c| c.kv_heads = Some(3)).contains("heads 2 is not a multiple of kv_heads 3"));
    assert!(refused(|c| c.window = Some(0)).contains("window is 0"));
    assert!(
        refused(|c| (c.width, c.positions) = (6, Positions::Rope(Rope::default())))
            .contains("to be rotated is 3")
    );
    let latent = |change: fn(&mut GptConfig)| {
        let rope = Positions::Rope(Rope::default());
        let mut config = GptConfig { latent: Some(latent), positions: rope, bias: false, ..SMALL };
        change(&mut config);
        config.forward(1, 1).expect_err("refused").to_string()
    };
    assert!(latent(|c| c.positions = Positions::Learned).contains("latent attention needs positions"));
    assert!(latent(|c| c.kv_heads = Some(2)).contains("has no kv_heads"));
    assert!(latent(|c| c.head_width = Some(4)).contains("head_width must be left out"));
    assert!(latent(|c| c.qk_norm = Some(QkNorm::Head)).contains("latent attention has no qk_norm"));
    assert!(latent(|c| c.attention_softcap = Some(1.0)).contains("has no attention_softcap"));
    assert!(refused(|c| c.scales.logits = 0.0).contains("scales.logits 0 is not a number above 0"));
    assert!(refused(|c| c.logit_softcap = Some(f64::NAN)).contains("logit_softcap NaN is not a number"));
    let global = |every, rope| Some(GlobalBlocks { every, rope });
    assert!(
        refused(|c| c.global = Some(GlobalBlocks { every: 0, rope: None })).contains("every of global is 0")
    );
    let flat = Rope { base: 0.0, ..Rope::default() };
    let error = GptConfig { global: global(2, Some(flat)), ..SMALL }.forward(1, 1).expect_err("refused");
    assert!(error.to_string().contains("the base 0 of rope"), "{error}");
    assert!(latent(|c| c.latent.as_mut().expect("set").rope_width = 3).contains("to be rotated is 3"));
    assert!(refused(|c| c.dropout = f64::NAN).contains("dropout NaN"));
}

#[test]
fn json_takes_the_place_of_single_fields() {
    let config = SMALL.with_json(r#"{"layers": 3, "gelu": "tanh", "norm": "post"}"#).expect("valid");
    assert_eq!(config, GptConfig { layers: 3, gelu: Gelu::Tanh, norm: NormPlace::Post, ..SMALL });
    let json = r#"{"vocabulary":65,"context":64,"layers":4,"heads":4,"width":128,"dropout":0.0,"qkv_bias":false,"tied":false,"gelu":"erf","norm":"pre"}"#;
    // What checkpoints said before there were other decoders.
    assert_eq!(SMALL.with_json(json).expect("valid"), GptConfig::default());
    let llama =
        r#"{"positions": {"rope": {"pairing": "halves"}}, "normalization": "rms", "feed_forward": "swiglu"}"#;
    let llama = SMALL.with_json(llama).expect("valid");
    assert_eq!(llama.positions, Positions::Rope(Rope { pairing: Pairing::Halves, ..Rope::default() }));
    assert_eq!(SMALL.with_json(&serde_json::to_string(&llama).expect("plain data")).expect("valid"), llama);
    let error = |json: &str| SMALL.with_json(json).expect_err("refused").to_string();
    assert!(error(r#"{"layer": 3}"#).starts_with("configuration: unknown field `layer`, expected one of"));
    assert!(error(r#"{"layers": "three"}"#).contains("invalid type: string \"three\""));
    assert!(error("[]").starts_with("configuration: invalid type"));
    assert!(error(r#"{"heads": 5}"#).contains("not a multiple"));
}
