//! One case of the fixture: tracing it, running it three ways, comparing.

use kernfusion::compile::{Mode, Target, compile};
use kernfusion::prelude::*;
use kernfusion_codegen::States;
use kernfusion_ir::evaluate::{Array, Precision, evaluate_arrays};
use kernfusion_ir::{InputRole, TensorType};
use safetensors::{Dtype, SafeTensors};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

/// The largest distance of the reference evaluation, as a share of a tensor's largest element: constants such as 1/√d are
/// rounded to `f32`, all else is `f64`.
const EXACT: f64 = 2e-6;

/// A tensor smaller than this is compared as if it had an element of this size: its exact value may be zero.
const SMALLEST: f64 = 0.05;

pub(super) type Named = BTreeMap<String, Vec<f64>>;

/// A tensor of the fixture.
struct Stored {
    shape: Vec<usize>,
    dtype: DType,
    values: Vec<f64>,
}

/// The inputs of a case, to be declared by name.
pub(crate) struct Inputs {
    trace: Trace,
    case: &'static str,
}

impl Inputs {
    /// Declares an input of the case.
    pub(crate) fn get(&self, name: &str) -> Tensor {
        let stored = stored(self.case, "input", name);
        self.trace.input(name, stored.shape.clone(), stored.dtype)
    }
}

/// Judges a layer with one result. `build` declares it and returns what it makes of the inputs; `tolerance` is that of
/// `f32`, as a share of each tensor's largest element.
pub(crate) fn check(
    case: &'static str,
    tolerance: f64,
    build: impl FnOnce(&Trace, &Inputs) -> kernfusion::Result<Tensor>,
) {
    check_all(case, Trace::training(), tolerance, |trace, inputs| Ok(vec![("y", build(trace, inputs)?)]));
}

/// As [`check`], for a layer with several results, in training or evaluating mode.
pub(crate) fn check_all(
    case: &'static str,
    trace: Trace,
    tolerance: f64,
    build: impl FnOnce(&Trace, &Inputs) -> kernfusion::Result<Vec<(&'static str, Tensor)>>,
) {
    let outputs = build(&trace, &Inputs { trace: trace.clone(), case }).expect("a correct layer");
    let program = with_gradients(&trace, case, &outputs);
    let expected = expected(case);
    let given = given(&program, case);
    compare(case, "reference", EXACT, &expected, &reference(&program, &given));
    for mode in [Mode::Eager, Mode::Compiled] {
        let target = Target::cpu().threads(2).mode(mode);
        compare(case, &mode.to_string(), tolerance, &expected, &run(&program, &given, &target));
    }
}

/// The outputs of a case and the gradients of their weighted sum, `grad.<name>`, by all float inputs and parameters.
fn with_gradients(trace: &Trace, case: &'static str, outputs: &[(&'static str, Tensor)]) -> Program {
    let weighted = |(name, output): &(&str, Tensor)| {
        let weight = stored(case, "weight", name);
        assert_eq!(output.shape(), weight.shape, "{case}: the shape of {name}");
        (output * trace.input(&format!("weight.{name}"), weight.shape.clone(), weight.dtype)).sum_all()
    };
    let loss = outputs.iter().map(weighted).reduce(|sum, share| sum + share).expect("a case has results");
    let parameters = trace.parameters().into_iter().map(|(parameter, tensor)| (parameter.name, tensor));
    let sources: Vec<_> = parameters.chain(float_inputs(trace)).collect();
    let gradients = loss.grad(&sources.iter().map(|(_, tensor)| tensor).collect::<Vec<_>>());
    let names: Vec<_> = sources.iter().map(|(name, _)| format!("grad.{name}")).collect();
    let named = names.iter().map(String::as_str).zip(&gradients);
    let outputs = outputs.iter().map(|(name, tensor)| (*name, tensor));
    trace.finish(&outputs.chain(named).collect::<Vec<_>>()).unwrap_or_else(|error| panic!("{case}: {error}"))
}

/// The float inputs that are no weights of outputs.
fn float_inputs(trace: &Trace) -> Vec<(String, Tensor)> {
    let inputs = trace.data_inputs().into_iter();
    inputs.filter(|(name, tensor)| tensor.dtype().is_float() && !name.starts_with("weight.")).collect()
}

/// Outputs, gradients and new states as PyTorch has them.
fn expected(case: &str) -> Named {
    let roles = [("output", ""), ("grad", "grad."), ("new", "")];
    let of_role = |(role, prefix): (&'static str, &'static str)| {
        let under = format!("{case}/{role}/");
        let mine = fixture().iter().filter_map(move |(path, stored)| {
            let name = path.strip_prefix(&under)?;
            Some((format!("{prefix}{name}"), stored.values.clone()))
        });
        mine.collect::<Vec<_>>()
    };
    roles.into_iter().flat_map(of_role).collect()
}

/// A value for each input and state of the program.
fn given(program: &Program, case: &str) -> Named {
    let value = |name: &str, role: InputRole| match (name.strip_prefix("weight."), role) {
        (Some(output), InputRole::Data) => stored(case, "weight", output).values.clone(),
        (_, InputRole::Data) => stored(case, "input", name).values.clone(),
        (_, InputRole::State) => {
            let parameter = fixture().get(&format!("{case}/param/{name}"));
            parameter.unwrap_or_else(|| stored(case, "state", name)).values.clone()
        }
    };
    program.graph.inputs().map(|(_, name, role)| (name.to_string(), value(name, role))).collect()
}

pub(super) fn reference(program: &Program, given: &Named) -> Named {
    let array = |(id, name, _)| {
        let (ty, values): (TensorType, _) = (program.graph[id].ty.clone(), given[name].clone());
        assert_eq!(values.len(), ty.elements(), "elements of {name}: {ty}");
        (String::from(name), Array { ty, values })
    };
    let arrays = program.graph.inputs().map(array).collect();
    let results = evaluate_arrays(&program.graph, arrays, Precision::Double).expect("all inputs are given");
    results.into_iter().map(|(name, array)| (name, array.values)).collect()
}

pub(super) fn run(program: &Program, given: &Named, target: &Target) -> Named {
    let states = States::default();
    let mut compiled = compile(&program.graph, &states, target).expect("compiles");
    let mut data = Vec::new();
    for (id, name, role) in program.graph.inputs() {
        let tensor = HostTensor::from_f64(&program.graph[id].ty, &given[name]);
        match role {
            InputRole::State => states.set(name, &tensor).expect("a state of the program"),
            InputRole::Data => data.push((name, tensor)),
        }
    }
    let data: Vec<_> = data.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let outputs = compiled.run(&data).expect("runs");
    let updated = program.graph.outputs().iter().filter(|output| output.updates_state);
    let updated =
        updated.map(|output| (output.name.clone(), states.get(&output.name).expect("a state").to_f64()));
    outputs.iter().map(|(name, tensor)| (name.to_string(), tensor.to_f64())).chain(updated).collect()
}

/// Compares results by name, within a share of each tensor's largest element.
pub(super) fn compare(case: &str, mode: &str, tolerance: f64, expected: &Named, got: &Named) {
    let names = |results: &Named| results.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(got), names(expected), "{case}, {mode}: what there is to compare");
    for (name, expected) in expected {
        let got = &got[name];
        assert_eq!(got.len(), expected.len(), "{case}, {mode}: elements of {name}");
        let largest = expected.iter().fold(SMALLEST, |largest, x| largest.max(x.abs()));
        let distances = got.iter().zip(expected).map(|(x, y)| if x == y { 0.0 } else { (x - y).abs() });
        // NaN is no small distance.
        let far =
            distances.enumerate().find(|(_, distance)| distance.is_nan() || *distance > tolerance * largest);
        if let Some((at, distance)) = far {
            let (x, y) = (got[at], expected[at]);
            panic!(
                "{case}, {mode}: {name}[{at}] is {x}, not {y}: {distance:e} apart, the largest is {largest:e}"
            );
        }
    }
}

fn stored(case: &str, role: &str, name: &str) -> &'static Stored {
    let path = format!("{case}/{role}/{name}");
    fixture().get(&path).unwrap_or_else(|| panic!("the fixture has no {path}"))
}

fn fixture() -> &'static BTreeMap<String, Stored> {
    static FIXTURE: OnceLock<BTreeMap<String, Stored>> = OnceLock::new();
    FIXTURE.get_or_init(|| {
        let mut tensors = BTreeMap::new();
        for name in ["layers", "methods", "mixture", "recurrent"] {
            let path = format!("{}/tests/fixtures/{name}.safetensors", env!("CARGO_MANIFEST_DIR"));
            let bytes = std::fs::read(path).expect("the fixture is there");
            let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
            tensors.extend(file.tensors().into_iter().map(read));
        }
        tensors
    })
}

fn read((name, view): (String, safetensors::tensor::TensorView<'_>)) -> (String, Stored) {
    let (dtype, values) = numbers(view.dtype(), view.data());
    (name, Stored { shape: view.shape().to_vec(), dtype, values })
}

/// The elements, and the dtype under which a program takes them.
fn numbers(dtype: Dtype, data: &[u8]) -> (DType, Vec<f64>) {
    let words = data.chunks_exact(4).map(|word| word.try_into().expect("four bytes"));
    match dtype {
        Dtype::F32 => (DType::F32, words.map(|word| f64::from(f32::from_le_bytes(word))).collect()),
        Dtype::I32 => (DType::I32, words.map(|word| f64::from(i32::from_le_bytes(word))).collect()),
        Dtype::F64 => {
            let words = data.chunks_exact(8).map(|word| word.try_into().expect("eight bytes"));
            (DType::F64, words.map(f64::from_le_bytes).collect())
        }
        other => panic!("the fixture holds no {other:?}"),
    }
}
