//! Models of transformers and others, as PyTorch exports them, do what PyTorch made of them: outputs, the gradients of all parameters, the
//! losses of 50 steps of AdamW, and the buffers that these change.
//!
//! The fixtures are written by `benches/peers/export_fixtures.py`, which says what their tensors are.

use crate::fixture;
use kernfusion::prelude::*;
use kernfusion_import::Imported;
use std::collections::BTreeMap;

type Tensors = BTreeMap<String, HostTensor>;

/// What results may differ by, as a share of the largest magnitude of their tensor.
const TOLERANCE: f64 = 1e-4;

pub(crate) struct Fixture {
    pub(crate) imported: Imported,
    pub(crate) tensors: Tensors,
}

impl Fixture {
    /// The tensors `prefix.0`, `prefix.1`, ….
    pub(crate) fn numbered(&self, prefix: &str) -> Vec<&HostTensor> {
        (0..).map_while(|at| self.tensors.get(&format!("{prefix}.{at}"))).collect()
    }

    /// The loss on a trace, and the inputs of the run.
    fn loss(&self, trace: &Trace) -> (Tensor, Vec<(String, HostTensor)>) {
        let given = self.numbered("input");
        let name = |at: usize| format!("input.{at}");
        let traced: Vec<_> = given
            .iter()
            .enumerate()
            .map(|(at, value)| trace.input(&name(at), value.shape(), value.ty().dtype))
            .collect();
        let output = self.imported.call(trace, &traced.iter().collect::<Vec<_>>()).unwrap().remove(0);
        let named = given.into_iter().enumerate().map(|(at, value)| (name(at), value.clone()));
        let Some(target) = self.tensors.get("target") else { return (output, named.collect()) };
        let traced = trace.input("target", target.shape(), target.ty().dtype);
        let loss = if target.ty().dtype == DType::I32 {
            cross_entropy(&output, &traced)
        } else {
            mse(&output, &traced)
        };
        (loss, named.chain([("target".to_string(), target.clone())]).collect())
    }
}

fn borrowed(inputs: &[(String, HostTensor)]) -> Vec<(&str, &HostTensor)> {
    inputs.iter().map(|(name, value)| (name.as_str(), value)).collect()
}

/// The largest magnitude among finite elements.
fn scale(tensor: &HostTensor) -> f64 {
    tensor.to_f64().into_iter().filter(|x| x.is_finite()).fold(0.0, |most, x| most.max(x.abs()))
}

/// The largest difference of a tensor from another one, as a share of its scale, but at least of this one; at most the tolerance.
fn deviation(what: &str, found: &HostTensor, expected: &HostTensor, least: f64) -> f64 {
    assert_eq!(found.ty(), expected.ty(), "{what}");
    let scale = scale(expected).max(least);
    let (found, expected) = (found.to_f64(), expected.to_f64());
    let mut worst = 0.0;
    for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let share = if found == expected { 0.0 } else { (found - expected).abs() / scale };
        assert!(share <= TOLERANCE, "{what}: {found} instead of {expected} at {at}, at a scale of {scale:e}");
        worst = share.max(worst);
    }
    worst
}

/// The largest of some deviations.
fn worst(deviations: impl Iterator<Item = f64>) -> f64 {
    deviations.fold(0.0, f64::max)
}

pub(crate) fn check_outputs(fixture: &Fixture) -> f64 {
    let program = fixture.imported.program().unwrap();
    let states = Target::cpu().states();
    fixture.imported.set(&states).unwrap();
    let mut compiled = program.compile(&states, &Target::cpu()).unwrap();
    let names: Vec<_> = fixture.imported.inputs().map(|(name, _)| name.to_string()).collect();
    let inputs: Vec<_> = names.iter().map(String::as_str).zip(fixture.numbered("input")).collect();
    let outputs = compiled.run(&inputs).unwrap();
    let expected = fixture.numbered("output");
    assert!(!expected.is_empty());
    worst(expected.into_iter().enumerate().map(|(at, expected)| {
        let name = format!("output.{at}");
        deviation(&name, outputs.get(&name).unwrap(), expected, 0.0)
    }))
}

/// The gradients of a loss by all parameters.
fn check_gradients(fixture: &Fixture, loss: &Tensor, inputs: &[(String, HostTensor)]) -> f64 {
    let trace = loss.trace();
    let (parameters, tensors): (Vec<_>, Vec<_>) = trace.parameters().into_iter().unzip();
    let gradients = loss.grad(&tensors.iter().collect::<Vec<_>>());
    let mut names: Vec<_> = parameters.iter().map(|parameter| parameter.name.as_str()).collect();
    let outputs: Vec<_> = names.iter().map(|name| format!("gradient.{name}")).collect();
    names.sort_unstable();
    let expected: Vec<_> = fixture.tensors.keys().filter_map(|name| name.strip_prefix("gradient.")).collect();
    assert_eq!(names, expected, "tied parameters are one");
    let named: Vec<_> = outputs.iter().map(String::as_str).zip(&gradients).collect();
    let program = trace.finish(&named).unwrap();
    let states = Target::cpu().states();
    fixture.imported.set(&states).unwrap();
    let found = program.compile(&states, &Target::cpu()).unwrap().run(&borrowed(inputs)).unwrap();
    // What is 0 but for rounding, as the gradient of attention's key biases is, has the rounding of the others.
    let least = outputs.iter().map(|name| scale(&fixture.tensors[name])).fold(0.0, f64::max) * 1e-5;
    worst(outputs.iter().map(|name| deviation(name, found.get(name).unwrap(), &fixture.tensors[name], least)))
}

/// The losses of the steps, and what they leave in buffers.
fn check_training(fixture: &Fixture) -> f64 {
    let (loss, inputs) = fixture.loss(&Trace::training());
    let step = TrainStep::new(&loss, &Optimizer::adamw(1e-3), None).unwrap();
    let mut session = step.session(&Target::cpu(), 1).unwrap();
    fixture.imported.set(session.states()).unwrap();
    let losses: Vec<f32> = (0..50).map(|_| session.step(&borrowed(&inputs)).unwrap()).collect();
    let of_losses = deviation("losses", &HostTensor::new([50], losses), &fixture.tensors["losses"], 0.0);
    let buffers =
        fixture.tensors.iter().filter_map(|(name, value)| Some((name.strip_prefix("buffer.")?, value)));
    let buffers =
        buffers.map(|(name, expected)| deviation(name, &session.states().get(name).unwrap(), expected, 0.0));
    worst(buffers).max(of_losses)
}

/// Outputs, gradients and training.
pub(crate) fn check(name: &str, fixture: &Fixture) {
    let outputs = check_outputs(fixture);
    let (loss, inputs) = fixture.loss(&Trace::new());
    let gradients = check_gradients(fixture, &loss, &inputs);
    let training = check_training(fixture);
    println!("{name}: outputs {outputs:.0e}, gradients {gradients:.0e}, 50 steps {training:.0e}");
}

macro_rules! architectures {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            let name = stringify!($name);
            check(name, &Fixture { imported: fixture::archive(name), tensors: fixture::tensors(name) });
        }
    )*};
}

architectures! {
    batch_norm linear_loss llama_loss gpt2 llama llama_sized qwen2 qwen3 gemma
    phi mixtral qwen2_moe mamba bert roberta distilbert
    t5 vit whisper wav2vec2 resnet18 resnet18_training convnext lstm unet
}

/// Bytes with and without a sign, by numbers that are fixed, of channels, and found in each run.
#[test]
fn quantized() {
    let fixture = Fixture { imported: fixture::archive("quantized"), tensors: fixture::tensors("quantized") };
    check_outputs(&fixture);
}

/// Numbers that are extreme, and rows of attention that see nothing, with gradients of these.
#[test]
fn corners() {
    let fixture = Fixture { imported: fixture::archive("corners"), tensors: fixture::tensors("corners") };
    check_outputs(&fixture);
    let trace = Trace::new();
    let given = fixture.numbered("input").into_iter().enumerate();
    let inputs: Vec<_> = given.map(|(at, value)| (format!("input.{at}"), value.clone())).collect();
    let traced: Vec<_> =
        inputs.iter().map(|(name, value)| trace.input(name, value.shape(), value.ty().dtype)).collect();
    let outputs = fixture.imported.call(&trace, &traced.iter().collect::<Vec<_>>()).unwrap();
    check_gradients(&fixture, &outputs[0].square().mean_all(), &inputs);
}

/// Each operator by itself: the loss is the sum of the mean squares of all outputs of floats.
#[test]
fn operators() {
    let fixture = Fixture { imported: fixture::archive("operators"), tensors: fixture::tensors("operators") };
    check_outputs(&fixture);
    let trace = Trace::new();
    let given = fixture.numbered("input");
    let mut inputs = vec![];
    let mut traced = vec![];
    for (at, value) in given.into_iter().enumerate() {
        traced.push(trace.input(&format!("input.{at}"), value.shape(), value.ty().dtype));
        inputs.push((format!("input.{at}"), value.clone()));
    }
    let outputs = fixture.imported.call(&trace, &traced.iter().collect::<Vec<_>>()).unwrap();
    let floats = outputs.iter().filter(|output| output.dtype().is_float());
    let loss = floats.map(|output| output.square().mean_all()).reduce(|sum, term| sum + term).unwrap();
    check_gradients(&fixture, &loss, &inputs);
}
