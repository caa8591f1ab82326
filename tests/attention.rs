//! Attention whose heads share keys and values (Ainslie et al., 2023), compiled: one kernel forward, one backward, and the
//! reference evaluation in `f64` as judge.

use kernfusion::HostTensor;
use kernfusion::compile::Target;
use kernfusion::trace::{Tensor, Trace};
use kernfusion_codegen::States;
use kernfusion_ir::DType;
use kernfusion_ir::evaluate::{Precision, evaluate};
use kernfusion_ir::random::element_bits;
use kernfusion_ir::samples::difference;
use std::collections::BTreeMap;

/// Sequences, heads, positions, width of a head.
const SHAPE: [usize; 4] = [2, 4, 130, 24];

fn random(name: &str, shape: [usize; 4]) -> HostTensor {
    let node = name.bytes().map(u32::from).sum();
    let value = |at| element_bits(3, node, 0, at) as f32 / 2f32.powi(31) - 1.0;
    HostTensor::new(shape, (0..shape.iter().product::<usize>() as u64).map(value).collect::<Vec<_>>())
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
