//! Adapters of an imported model, judged by the gradients that PyTorch computed for the matrices that they change.

use crate::architectures::Fixture;
use crate::fixture;
use kernfusion::nn::Lora;
use kernfusion::prelude::*;
use kernfusion_ir::TensorType;

/// W + s·B·A at B = 0: the gradient of B is s·G·Aᵀ, and that of A is 0, where G is that of W.
#[test]
fn gradients_of_adapters_follow_from_those_of_their_matrices() {
    let fixture = Fixture { imported: fixture::archive("gpt2"), tensors: fixture::tensors("gpt2") };
    let (ids, target) = (&fixture.tensors["input.0"], &fixture.tensors["target"]);
    let trace = Trace::new();
    let lora = Lora { targets: vec!["mlp.c_fc".into()], alpha: 6.0, ..Lora::new(2) };
    trace.adapt(&lora);
    let x = trace.input("x", ids.shape(), DType::I32);
    let y = trace.input("y", target.shape(), DType::I32);
    let logits = fixture.imported.call(&trace, &[&x]).unwrap().remove(0);
    let loss = cross_entropy(&logits, &y);
    let (parameters, tensors): (Vec<_>, Vec<_>) =
        trace.parameters().into_iter().filter(|(parameter, _)| parameter.trained).unzip();
    let names: Vec<_> = parameters.iter().map(|parameter| parameter.name.as_str()).collect();
    let pair = |block| ["lora_a", "lora_b"].map(|end| format!("transformer.h.{block}.mlp.c_fc.weight.{end}"));
    assert_eq!(names, [pair(0), pair(1)].concat());
    let gradients = loss.grad(&tensors.iter().collect::<Vec<_>>());
    let outputs: Vec<_> = names.iter().map(|name| format!("gradient.{name}")).collect();
    let named: Vec<_> = outputs.iter().map(String::as_str).zip(&gradients).collect();
    let program = trace.finish(&named).unwrap();
    let states = Target::cpu().states();
    fixture.imported.set(&states).unwrap();
    let a: Vec<f64> = (0..2 * parameters[0].shape[1]).map(|at| (at as f64).sin()).collect();
    for parameter in &parameters {
        let ty = TensorType::new(DType::F32, &parameter.shape[..]);
        let zeros = vec![0.0; ty.elements()];
        let value = if parameter.name.ends_with("lora_a") { &a } else { &zeros };
        states.set(&parameter.name, &HostTensor::from_f64(&ty, value)).unwrap();
    }
    let found = program.compile(&states, &Target::cpu()).unwrap().run(&[("x", ids), ("y", target)]).unwrap();
    for block in 0..2 {
        let [of_a, of_b] = pair(block).map(|name| found.get(&format!("gradient.{name}")).unwrap().to_f64());
        assert!(of_a.iter().all(|x| *x == 0.0));
        let of_weight = &fixture.tensors[&format!("gradient.transformer.h.{block}.mlp.c_fc.weight")];
        let (columns, of_weight) = (of_weight.shape()[1], of_weight.to_f64());
        let expected: Vec<f64> = of_weight
            .chunks(columns)
            .flat_map(|row| {
                a.chunks(columns).map(move |a| 3.0 * row.iter().zip(a).map(|(g, a)| g * a).sum::<f64>())
            })
            .collect();
        let scale = expected.iter().fold(0.0, |scale: f64, x| scale.max(x.abs()));
        assert_eq!(of_b.len(), expected.len());
        for (found, expected) in of_b.iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-4 * scale, "{found} instead of {expected}");
        }
    }
}
