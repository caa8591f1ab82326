//! A small GPT must do what PyTorch made of it: the same loss, the same gradients, the same losses after updates.
//!
//! The fixture is written by `benches/peers/fixture.py`, which says what its tensors are. Here the reference evaluator
//! runs the traced program first, so that tracing, layers, gradients and optimizer are judged without any compiler; then
//! both ways of execution repeat the whole training in `f32`.

use kernfusion::compile::{F32Products, Isa, Mode, Precision as Products, Target, compile};
use kernfusion::prelude::*;
use kernfusion_codegen::States;
use kernfusion_ir::evaluate::{Array, Precision, evaluate_arrays};
use kernfusion_ir::{DType, InputRole, TensorType};
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;

const BATCH: usize = 8;
const RATE: f64 = 1e-3;

struct Fixture {
    config: GptConfig,
    tensors: BTreeMap<String, Vec<f64>>,
}

fn fixture() -> Fixture {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/gpt_replay.safetensors");
    let bytes = std::fs::read(path).expect("the fixture is there");
    let (_, header) = SafeTensors::read_metadata(&bytes).expect("a safetensors file");
    let config = header.metadata().as_ref().expect("metadata")["config"].as_str();
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let read = |dtype: Dtype, data: &[u8]| -> Vec<f64> {
        let words = data.chunks_exact(4).map(|word| word.try_into().expect("four bytes"));
        match dtype {
            Dtype::F32 => words.map(|word| f64::from(f32::from_le_bytes(word))).collect(),
            Dtype::I32 => words.map(|word| f64::from(i32::from_le_bytes(word))).collect(),
            Dtype::F64 => {
                data.chunks_exact(8).map(|x| f64::from_le_bytes(x.try_into().expect("eight bytes"))).collect()
            }
            other => panic!("the fixture holds no {other:?}"),
        }
    };
    let tensors = file.tensors().into_iter().map(|(name, view)| (name, read(view.dtype(), view.data())));
    let config = GptConfig::default().with_json(config).expect("a model shape");
    Fixture { config, tensors: tensors.collect() }
}

impl Fixture {
    /// x and y of a step: windows one after another.
    fn batch(&self, step: usize) -> [(String, Vec<f64>); 2] {
        let (tokens, size) = (&self.tensors["tokens"], BATCH * self.config.context);
        let window = |start: usize| tokens[start..start + size].to_vec();
        [("x".into(), window(step * size)), ("y".into(), window(step * size + 1))]
    }

    /// Every state before step 0: parameters from the file, the optimizer's zero.
    fn states(&self, program: &Program) -> BTreeMap<String, Vec<f64>> {
        let state = |(id, name, role)| {
            let elements = program.graph[id].ty.elements();
            let given = self.tensors.get(&format!("param.{name}")).cloned();
            (role == InputRole::State).then(|| (String::from(name), given.unwrap_or(vec![0.0; elements])))
        };
        program.graph.inputs().filter_map(state).collect()
    }
}

fn run(
    program: &Program,
    inputs: impl IntoIterator<Item = (String, Vec<f64>)>,
) -> BTreeMap<String, Vec<f64>> {
    let array = |(name, values): (String, Vec<f64>)| {
        let id = program.graph.input(&name).unwrap_or_else(|| panic!("the program has no {name}"));
        let ty: TensorType = program.graph[id].ty.clone();
        (name, Array { ty, values })
    };
    let arrays = inputs.into_iter().map(array).collect();
    let results = evaluate_arrays(&program.graph, arrays, Precision::Double).expect("every input is given");
    results.into_iter().map(|(name, array)| (name, array.values)).collect()
}

#[test]
fn loss_and_gradients_of_the_first_step_are_those_of_pytorch() {
    let fixture = fixture();
    let trace = Trace::training();
    let shape = [BATCH, fixture.config.context];
    let (x, y) = (trace.input("x", shape, DType::I32), trace.input("y", shape, DType::I32));
    let loss = cross_entropy(&Gpt::new(&trace, &fixture.config).expect("valid").forward(&x), &y);
    let (parameters, tensors): (Vec<_>, Vec<_>) = trace.parameters().into_iter().unzip();
    let gradients = loss.grad(&tensors.iter().collect::<Vec<_>>());
    let named = parameters.iter().map(|parameter| parameter.name.as_str()).zip(&gradients);
    let outputs: Vec<_> = [("loss", &loss)].into_iter().chain(named).collect();
    let program = trace.finish(&outputs).expect("correct");
    let inputs: BTreeMap<_, _> = fixture.states(&program).into_iter().chain(fixture.batch(0)).collect();
    let results = run(&program, inputs.clone());
    let expected = fixture.tensors["losses_f64"][0];
    assert!((results["loss"][0] - expected).abs() < 1e-8, "{} is not {expected}", results["loss"][0]);
    assert_eq!(parameters.len(), fixture.tensors.keys().filter(|name| name.starts_with("grad.")).count());
    for (mode, results) in [("reference", results), ("compiled", compiled(&program, &inputs))] {
        for parameter in &parameters {
            let (got, expected) =
                (&results[&parameter.name], &fixture.tensors[&format!("grad.{}", parameter.name)]);
            let largest = expected.iter().fold(0f64, |largest, x| largest.max(x.abs()));
            let distance =
                got.iter().zip(expected).fold(0f64, |distance, (x, y)| distance.max((x - y).abs()));
            let near = got.len() == expected.len() && distance <= 1e-5 * largest;
            assert!(near, "{mode}, {}: {distance:e} of {largest:e}", parameter.name);
        }
    }
}

/// The outputs of the compiled program in `f32`.
fn compiled(program: &Program, inputs: &BTreeMap<String, Vec<f64>>) -> BTreeMap<String, Vec<f64>> {
    let states = States::default();
    let mut compiled = compile(&program.graph, &states, &Target::cpu()).expect("compiles");
    let mut data = Vec::new();
    for (id, name, role) in program.graph.inputs() {
        let tensor = HostTensor::from_f64(&program.graph[id].ty, &inputs[name]);
        match role {
            InputRole::State => states.set(name, &tensor).expect("a state of the program"),
            InputRole::Data => data.push((name, tensor)),
        }
    }
    let data: Vec<_> = data.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let outputs = compiled.run(&data).expect("runs");
    outputs.iter().map(|(name, tensor)| (name.to_string(), tensor.to_f64())).collect()
}

#[test]
fn losses_after_updates_are_those_of_pytorch() {
    let fixture = fixture();
    let step = fixture.config.train_step(BATCH, &Optimizer::adamw(RATE), None).expect("valid");
    let mut states = fixture.states(&step.program);
    for t in 0..3 {
        let scalars =
            step.scalars(t, RATE, 0).into_iter().map(|(name, scalar)| (name.to_string(), scalar.to_f64()));
        let inputs = states.into_iter().chain(fixture.batch(t as usize)).chain(scalars);
        let mut results = run(&step.program, inputs);
        let (loss, expected) =
            (results.remove("loss").expect("a loss")[0], fixture.tensors["losses_f64"][t as usize]);
        assert!((loss - expected).abs() < 1e-7, "step {t}: {loss} is not {expected}");
        states = results;
    }
}

/// The losses of the first `steps` steps on a target.
fn losses(fixture: &Fixture, steps: usize, target: &Target) -> Vec<f32> {
    let step = fixture.config.train_step(BATCH, &Optimizer::adamw(RATE), None).expect("valid");
    let graph = &step.program.graph;
    let tensor = |name: &str, values: &[f64]| {
        let id = graph.input(name).unwrap_or_else(|| panic!("the program has no {name}"));
        HostTensor::from_f64(&graph[id].ty, values)
    };
    let states = States::default();
    let mut compiled = compile(graph, &states, target).expect("compiles");
    for (name, values) in fixture.states(&step.program) {
        states.set(&name, &tensor(&name, &values)).expect("a state of the program");
    }
    let loss = |t: usize| {
        let mut inputs = step.scalars(t as u64, RATE, 0);
        let batch = fixture.batch(t);
        inputs.extend(batch.iter().map(|(name, values)| (name.as_str(), tensor(name, values))));
        let inputs: Vec<_> = inputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
        compiled.run(&inputs).expect("runs").scalar("loss").expect("a loss")
    };
    (0..steps).map(loss).collect()
}

fn check_losses(what: &str, target: &Target) {
    let fixture = fixture();
    let expected = &fixture.tensors["losses_f64"];
    for (t, (loss, expected)) in losses(&fixture, expected.len(), target).iter().zip(expected).enumerate() {
        let near = (f64::from(*loss) - expected).abs() < 1e-4;
        assert!(near, "{what}, step {t}: {loss} is not {expected}");
    }
}

#[test]
fn two_hundred_steps_are_those_of_pytorch_eager_and_compiled() {
    for mode in [Mode::Eager, Mode::Compiled] {
        check_losses(&mode.to_string(), &Target::cpu().mode(mode));
    }
}

/// On the tile unit, or on its emulation where there is none.
#[test]
fn two_hundred_steps_in_parts_of_bf16_are_those_of_pytorch() {
    let Some(isa) = Isa::available().into_iter().find(|isa| isa.has_tiles()) else { return };
    for products in [F32Products::X6, F32Products::X3] {
        check_losses(&products.to_string(), &Target::cpu().isa(isa).f32_products(products));
    }
}

/// Where the processor multiplies whole numbers of 16 bits.
#[test]
fn two_hundred_steps_in_fixed_point_are_those_of_pytorch() {
    let of = |isa| Target::cpu().isa(isa).f32_products(F32Products::Fixed);
    let gains = |isa: &Isa| of(*isa).f32_product_kind().is_ok_and(|kind| kind == F32Products::Fixed);
    let Some(isa) = Isa::available().into_iter().find(gains) else { return };
    let exact = losses(&fixture(), 200, &Target::cpu().isa(isa));
    let fixed = losses(&fixture(), 200, &of(isa));
    assert_ne!(exact, fixed, "some products are in fixed point");
    check_losses("fixed point", &of(isa));
}

#[test]
fn the_tile_unit_and_its_emulation_train_the_same_bits() {
    let units: Vec<_> = Isa::available().into_iter().filter(|isa| isa.has_tiles()).collect();
    let fixture = fixture();
    let targets = [
        Target::cpu().precision(Products::Bf16),
        Target::cpu().f32_products(F32Products::X3),
        Target::cpu().f32_products(F32Products::X6),
    ];
    for target in targets {
        let runs: Vec<_> = units.iter().map(|&isa| losses(&fixture, 20, &target.clone().isa(isa))).collect();
        assert!(runs.windows(2).all(|pair| pair[0] == pair[1]), "{runs:?}");
    }
}
