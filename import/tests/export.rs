//! Programs that are written as files of ONNX and read again do what they did.

use crate::architectures::{Fixture, check, check_outputs};
use crate::fixture;
use kernfusion::compile::Tensors;
use kernfusion::prelude::*;
use kernfusion_import::{ImportError, Imported, LARGE, OnnxFile};
use kernfusion_ir::evaluate::{Precision, evaluate};
use kernfusion_ir::samples::{self, Sample, difference};

fn states(imported: &Imported) -> Tensors {
    imported.states().iter().map(|state| (state.name().to_string(), state.read().unwrap())).collect()
}

/// A program, written with this limit and read again.
fn again(program: &Program, states: &Tensors, limit: usize) -> Result<Imported, ImportError> {
    let folder = tempfile::tempdir().unwrap();
    let file = OnnxFile::with_limit(program, states, "weights.data", limit)?;
    std::fs::write(folder.path().join("model.onnx"), file.message()).unwrap();
    if file.has_data() {
        let mut data = vec![];
        file.write_data(&mut data).unwrap();
        std::fs::write(folder.path().join("weights.data"), data).unwrap();
    }
    Imported::open(folder.path().join("model.onnx"))
}

/// The model of a fixture after it was a file of ONNX.
fn round_trip(name: &str, limit: usize) -> Fixture {
    let first = fixture::archive(name);
    let imported = again(&first.program().unwrap(), &states(&first), limit);
    let imported = imported.unwrap_or_else(|error| panic!("{name}: {error}"));
    Fixture { imported, tensors: fixture::tensors(name) }
}

/// The outputs of the model of a fixture.
fn outputs(imported: &Imported, tensors: &Tensors) -> Vec<Vec<f64>> {
    let states = Target::cpu().states();
    imported.set(&states).unwrap();
    let program = imported.program().unwrap();
    let inputs =
        imported.inputs().enumerate().map(|(at, (name, _))| (name, &tensors[&format!("input.{at}")]));
    let found = program.compile(&states, &Target::cpu()).unwrap().run(&inputs.collect::<Vec<_>>()).unwrap();
    (0..).map_while(|at| Some(found.get(&format!("output.{at}")).ok()?.to_f64())).collect()
}

#[test]
fn architectures_give_the_same_outputs() {
    for name in [
        "linear",
        "gpt2",
        "llama_sized",
        "llama_loss",
        "qwen2",
        "qwen3",
        "gemma",
        "phi",
        "mixtral",
        "qwen2_moe",
        "mamba",
        "bert",
        "roberta",
        "distilbert",
        "t5",
        "vit",
        "whisper",
        "resnet18",
        "convnext",
        "unet",
    ] {
        let fixture = round_trip(name, LARGE);
        check_outputs(&fixture);
        let first = outputs(&fixture::archive(name), &fixture.tensors);
        for (found, expected) in outputs(&fixture.imported, &fixture.tensors).iter().zip(&first) {
            let scale =
                expected.iter().filter(|x| x.is_finite()).fold(0.0, |scale: f64, x| scale.max(x.abs()));
            let off = |(x, y): (&f64, &f64)| x != y && (x - y).abs() > 1e-5 * scale;
            assert!(!found.iter().zip(expected).any(off) && found.len() == expected.len(), "{name}");
        }
    }
}

#[test]
fn what_was_written_trains_the_same_parameters() {
    check("gpt2", &round_trip("gpt2", LARGE));
    // In a file of their own.
    check("gpt2", &round_trip("gpt2", 0));
    check("unet", &round_trip("unet", LARGE));
}

#[test]
fn nodes_keep_their_modules_and_lines() {
    let program = round_trip("gpt2", LARGE).imported.program().unwrap().graph.to_string();
    assert!(
        program.contains("in \"transformer.h.1.attn\" at \"transformers/models/gpt2/modeling_gpt2.py\""),
        "{program}"
    );
}

#[test]
fn what_onnx_cannot_have_is_said() {
    let refused = |name: &str| {
        let imported = fixture::archive(name);
        let states = states(&imported);
        let file = OnnxFile::new(&imported.program().unwrap(), &states, "data");
        file.map(|_| ()).unwrap_err().to_string()
    };
    let message = refused("dropout");
    assert!(message.contains("no counterpart of random_bits ("), "{message}");
    let message = refused("lstm");
    assert!(
        message.contains("scan (4 times, first in lstm") && !message.contains("random_bits"),
        "{message}"
    );
    let message = refused("resnet18_training");
    assert!(message.contains("it updates 60 states"), "{message}");
    let linear = fixture::archive("linear");
    let message =
        OnnxFile::new(&linear.program().unwrap(), &Tensors::new(), "data").err().unwrap().to_string();
    assert!(message.contains("there is no value of f32["), "{message}");
}

/// Each op by itself, judged by the reference evaluator.
#[test]
fn samples_of_ops_give_what_they_gave() {
    let (mut written, mut left_out) = (0, 0);
    for sample in samples::all(1) {
        let Sample { name, graph, inputs, tolerance, .. } = &sample;
        let program = Program { graph: graph.clone(), parameters: vec![], buffers: vec![], stopped: vec![] };
        let imported = match again(&program, inputs, LARGE) {
            Ok(imported) => imported,
            Err(ImportError::ExportOps(_) | ImportError::Export(_)) => {
                left_out += 1;
                continue;
            }
            Err(error) => panic!("{name}: {error}"),
        };
        let given = inputs.iter().map(|(name, value)| (name.clone(), value.clone()));
        let given = given.chain(states(&imported)).collect();
        let found = evaluate(&imported.program().unwrap().graph, &given, Precision::Declared).unwrap();
        for (number, (output, expected)) in sample.expected().into_iter().enumerate() {
            let found = &found[&format!("output.{number}")];
            assert_eq!(found.ty, expected.ty, "{name}: {output}");
            if let Some(reason) = difference(&expected.values, &found.values, *tolerance) {
                panic!("{name}: {output}: {reason}");
            }
        }
        written += 1;
    }
    println!("{written} samples, and {left_out} that have no counterpart");
    assert!(written > 300, "{written}");
}
