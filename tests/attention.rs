//! Attention of all kinds, compiled: one kernel forward, one backward, no tensor of scores in memory, and the reference
//! evaluation in `f64` as judge.

use kernfusion::HostTensor;
use kernfusion::compile::Target;
use kernfusion::prelude::{
    AttentionConfig, AttentionMask, CrossAttention, LatentAttention, LatentAttentionConfig,
    MultiHeadAttention, Rope,
};
use kernfusion::trace::{Program, Tensor, Trace};
use kernfusion_codegen::States;
use kernfusion_ir::DType;
use kernfusion_ir::evaluate::{Precision, evaluate};
use kernfusion_ir::random::element_bits;
use kernfusion_ir::samples::difference;
use std::collections::BTreeMap;

/// Attention whose heads share keys and values (Ainslie et al., 2023): sequences, heads, positions, width of a head.
const SHAPE: [usize; 4] = [2, 4, 130, 24];

fn random(name: &str, shape: impl Into<Vec<usize>>) -> HostTensor {
    let shape = shape.into();
    let node = name.bytes().map(u32::from).sum();
    let value = |at| element_bits(3, node, 0, at) as f32 / 2f32.powi(31) - 1.0;
    let elements = shape.iter().product::<usize>() as u64;
    HostTensor::new(shape, (0..elements).map(value).collect::<Vec<_>>())
}

#[test]
fn heads_that_share_keys_and_values() {
    let [batch, heads, time, width] = SHAPE;
    for groups in [1, 2] {
        let shared = [batch, groups, time, width];
        let trace = Trace::new();
        let given: BTreeMap<String, HostTensor> =
            [("q", SHAPE), ("k", shared), ("v", shared), ("weight", SHAPE)]
                .into_iter()
                .map(|(name, shape)| (name.to_string(), random(name, shape)))
                .collect();
        let input = |name: &str| trace.input(name, given[name].shape().to_vec(), DType::F32);
        let [q, k, v, weight]: [Tensor; 4] = ["q", "k", "v", "weight"].map(input);
        let for_all_heads = |x: &Tensor| {
            let wide = x.unsqueeze(2).broadcast_to([batch, groups, heads / groups, time, width]);
            wide.reshape(SHAPE.as_slice())
        };
        let scores = q.matmul_transposed(&for_all_heads(&k)) * (1.0 / (width as f64).sqrt());
        let weights = trace.causal_mask(time, time).select(scores, f64::NEG_INFINITY).softmax(-1);
        let y = weights.matmul(&for_all_heads(&v));
        let gradients = (&y * &y * weight).sum_all().grad(&[&q, &k, &v]);
        let outputs: Vec<_> =
            ["y", "dq", "dk", "dv"].into_iter().zip([&y].into_iter().chain(&gradients)).collect();
        let program = trace.finish(&outputs).unwrap();

        let expected = evaluate(&program.graph, &given, Precision::Double).unwrap();
        let mut compiled = program.compile(&States::new(), &Target::cpu().threads(2)).unwrap();
        // Two chains, the gradient of the result between them, and sums over the heads of a group after them.
        assert!(compiled.report().kernels <= 6, "{} kernels", compiled.report().kernels);
        let results =
            compiled.run(&given.iter().map(|(name, t)| (name.as_str(), t)).collect::<Vec<_>>()).unwrap();
        for (name, expected) in &expected {
            let found = results.get(name).unwrap().to_f64();
            if let Some(found) = difference(&expected.values, &found, 1e-4) {
                panic!("{name} with {groups} groups: {found}");
            }
        }
    }
}

/// Sequences in a batch of the layers below.
const BATCH: usize = 2;

/// Their heads.
const HEADS: usize = 4;

/// Their positions.
const LENGTH: usize = 96;

/// The width of their inputs.
const WIDTH: usize = 32;

fn config() -> AttentionConfig {
    AttentionConfig { std: 0.2, ..AttentionConfig::causal(WIDTH, HEADS) }
}

/// A layer applied to `x`, `memory` and `lengths`, with the gradients by inputs and parameters.
fn traced(layer: impl FnOnce(&Trace, &Tensor, &Tensor, &Tensor) -> Tensor) -> Program {
    let trace = Trace::training();
    let input = |name| trace.input(name, [BATCH, LENGTH, WIDTH], DType::F32);
    let (x, memory, weight) = (input("x"), input("memory"), input("weight"));
    let lengths = trace.input("lengths", [BATCH, 1], DType::I32);
    let y = layer(&trace, &x, &memory, &trace.iota([BATCH, LENGTH], 1, DType::I32).lt(&lengths));
    let parameters: Vec<_> = trace.parameters().into_iter().map(|(_, parameter)| parameter).collect();
    let sources: Vec<_> = [&x, &memory].into_iter().chain(&parameters).collect();
    let gradients = (&y * weight).sum_all().grad(&sources);
    let names: Vec<_> = (0..gradients.len()).map(|i| format!("gradient {i}")).collect();
    let named = names.iter().map(String::as_str).zip(&gradients);
    trace.finish(&[("y", &y)].into_iter().chain(named).collect::<Vec<_>>()).unwrap()
}

/// Compares with the reference, and looks for a tensor of scores among what lies in memory.
fn check(name: &str, program: &Program) {
    let sequence = |name: &str| random(name, [BATCH, LENGTH, WIDTH]);
    let mut given: BTreeMap<String, HostTensor> =
        ["x", "memory", "weight"].map(|name| (name.to_string(), sequence(name))).into();
    given.insert("lengths".into(), HostTensor::new([BATCH, 1], vec![LENGTH as i32 - 30, LENGTH as i32]));
    if program.graph.input("seed").is_some() {
        given.extend(["seed", "step"].map(|name| (name.to_string(), HostTensor::new([], vec![3u32]))));
    }
    given.retain(|name, _| program.graph.input(name).is_some());
    let states = program.initial_states(1).unwrap();
    let mut compiled = program.compile(&states, &Target::cpu().threads(2).microbatches(1)).unwrap();
    for buffer in &compiled.kernels().buffers {
        let scores = BATCH * HEADS * LENGTH * LENGTH;
        assert!(buffer.ty.elements() < scores, "{name} keeps {}: {}", buffer.name, buffer.ty);
    }
    let inputs: Vec<_> = given.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let results = compiled.run(&inputs).unwrap();
    given.extend(program.initial_parameters(1));
    for (output, expected) in evaluate(&program.graph, &given, Precision::Double).unwrap() {
        let found = results.get(&output).unwrap().to_f64();
        if let Some(found) = difference(&expected.values, &found, 2e-4) {
            panic!("{name}, {output}: {found}");
        }
    }
}

#[test]
fn every_kind_of_heads_keeps_no_scores() {
    let kinds = [
        ("grouped heads", AttentionConfig { kv_heads: 2, ..config() }),
        ("a sliding window", AttentionConfig { mask: AttentionMask::Window(20), ..config() }),
        ("rotated heads", AttentionConfig { rope: Some(Rope::default()), kv_heads: 1, ..config() }),
        ("dropped-out weights", AttentionConfig { dropout: 0.2, ..config() }),
    ];
    for (name, config) in kinds {
        check(name, &traced(|trace, x, _, _| MultiHeadAttention::new(trace, "attn", &config).forward(x)));
    }
}

#[test]
fn padding_and_a_second_input_keep_no_scores() {
    let config = AttentionConfig { mask: AttentionMask::Full, ..config() };
    let padded = traced(|trace, x, _, key_padding_mask| {
        MultiHeadAttention::new(trace, "attn", &config).forward_with(x, Some(key_padding_mask), None, None)
    });
    check("padded sequences", &padded);
    let cross = traced(|trace, x, memory, key_padding_mask| {
        CrossAttention::new(trace, "cross", &config).forward(x, memory, Some(key_padding_mask))
    });
    check("a second input", &cross);
}

#[test]
fn latent_keys_and_values_keep_no_scores() {
    let config = LatentAttentionConfig {
        width: WIDTH,
        heads: HEADS,
        query_rank: None,
        kv_rank: 16,
        head_width: 12,
        rope_width: 8,
        value_width: 12,
        rope: Rope::default(),
        mask: AttentionMask::Causal,
        dropout: 0.0,
        epsilon: 1e-5,
        std: 0.2,
        residual_std: 0.1,
    };
    check("latent heads", &traced(|trace, x, _, _| LatentAttention::new(trace, "attn", &config).forward(x)));
}
