//! Models that PyTorch exported: imported, run and shown.

use super::workplace::Workplace;
use kernfusion::{HostTensor, tensor_file};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures").join(name)
}

/// A workplace with an imported GPT-2, its inputs as a file, and the outputs that PyTorch computed.
fn gpt2() -> (Workplace, HostTensor) {
    let work = Workplace::new();
    let mut tensors = tensor_file::read(&fixture("gpt2.safetensors")).unwrap();
    let inputs = BTreeMap::from([("input_ids".to_string(), tensors.remove("input.0").unwrap())]);
    tensor_file::write(&work.path("in.safetensors"), &inputs).unwrap();
    let said = work.succeed(&format!("import {} -o gpt2", fixture("gpt2.pt2").display()));
    assert!(said.starts_with("a program of ") && said.ends_with(" parameters in gpt2\n"), "{said}");
    (work, tensors.remove("output.0").unwrap())
}

#[test]
fn an_imported_model_runs_from_its_folder() {
    let (work, expected) = gpt2();
    let signature: Value =
        serde_json::from_slice(&std::fs::read(work.path("gpt2/signature.json")).unwrap()).unwrap();
    let logits = json!({"name": "output.0", "dtype": "f32", "shape": expected.shape()});
    assert_eq!(signature["outputs"], json!([logits]));
    assert_eq!(signature["inputs"][0]["name"], "input_ids");
    for mode in ["compiled", "eager", "reference"] {
        let out = format!("{mode}.safetensors");
        work.succeed(&format!("run gpt2 --mode {mode} --inputs in.safetensors --outputs {out}"));
        let found = tensor_file::read(&work.path(&out)).unwrap();
        let pairs = found["output.0"].to_f64().into_iter().zip(expected.to_f64());
        let (worst, scale) = pairs
            .fold((0.0f64, 0.0f64), |(worst, scale), (a, b)| (worst.max((a - b).abs()), scale.max(b.abs())));
        assert!(worst < 1e-4 * scale, "{mode}: {worst}");
    }
    let message = work.fail("run gpt2");
    assert!(message.contains("input \"input_ids\" of type i32[2,6] is missing"), "{message}");
}

#[test]
fn its_program_is_shown_with_modules_and_lines_of_python() {
    let (work, _) = gpt2();
    let traced = work.succeed("dump gpt2 --stage trace");
    assert!(traced.contains("transformer.h.1.attn") && traced.contains("modeling_gpt2.py\""), "{traced}");
    assert!(work.succeed("dump gpt2 --stage plan").contains("transformer.h.1.mlp"));
    work.succeed("opt gpt2 --passes fold");
    assert!(work.succeed("bisect gpt2").contains("nothing deviates"));
}

#[test]
fn a_folder_that_is_there_is_replaced_only_if_asked() {
    let (work, _) = gpt2();
    let import = format!("import {} -o gpt2", fixture("linear.pt2").display());
    let message = work.fail(&import);
    assert!(message.contains("gpt2 is not empty; nothing was written"), "{message}");
    work.succeed(&format!("{import} --overwrite"));
    let program = std::fs::read_to_string(work.path("gpt2/program.kir")).unwrap();
    assert!(program.contains("up.weight") && !program.contains("transformer"), "{program}");
    work.write("gpt2/letter.txt", "Dear reader");
    assert!(work.fail(&format!("{import} --overwrite")).contains("letter.txt"));
}

#[test]
fn what_cannot_be_imported_says_why() {
    let work = Workplace::new();
    work.write("model.pt2", "no archive");
    assert!(
        work.fail("import model.pt2 -o x").contains("model.pt2: it is no whole archive of torch.export.save")
    );
    assert!(!work.path("x").exists());
    assert!(work.fail("import nowhere.pt2 -o x").contains("nowhere.pt2: No such file"));
}

#[test]
fn open_extents_are_chosen_on_the_command_line() {
    let work = Workplace::new();
    let import = format!("import {} -o x", fixture("linear_sized.pt2").display());
    let message = work.fail(&import);
    assert!(message.contains("(x.0): choose each (`--dim NAME=N`"), "{message}");
    work.succeed(&format!("{import} --dim x.0=7"));
    let signature: Value =
        serde_json::from_slice(&std::fs::read(work.path("x/signature.json")).unwrap()).unwrap();
    assert_eq!(signature["outputs"][0]["shape"], json!([7, 5]));
    for wrong in ["x.0", "=7", "x.0=many", "x.0=-1"] {
        assert!(work.fail(&format!("{import} --dim {wrong}")).contains("INPUT.AXIS=N"), "{wrong}");
    }
}

#[test]
fn its_program_is_measured_and_explained() {
    let (work, _) = gpt2();
    work.succeed(
        "bench --program gpt2 --mode compiled,eager --steps 2 --warmup 1 --threads 1 --json bench.json",
    );
    let measured: Value = serde_json::from_slice(&std::fs::read(work.path("bench.json")).unwrap()).unwrap();
    let kernels = |mode: usize| measured["results"][mode]["kernels"].as_u64().unwrap();
    assert!(0 < kernels(0) && kernels(0) < kernels(1), "{measured}");
    assert_eq!(measured["results"][0]["preset"], "gpt2");
    assert_eq!(measured["results"][0]["work"], "program");
    assert_eq!(measured["results"][0]["tokens_per_s"], Value::Null);
    let explained = work.succeed("explain --program gpt2 --refusals 0");
    assert!(explained.contains("transformer.h.1.attn") && explained.contains("plan:"), "{explained}");
    let of_file = work.succeed("explain --program gpt2/program.kir --refusals 0");
    assert_eq!(of_file, explained);
    let profiled = work.succeed("profile --program gpt2 --steps 1 --threads 1 --lines 0");
    assert!(
        profiled.contains("gpt2 program, compiled") && profiled.contains("transformer.h.*"),
        "{profiled}"
    );
    let message = work.fail("bench --program gpt2 --preset tiny");
    assert!(message.contains("cannot be used with"), "{message}");
    let message = work.fail("explain --program gpt2 --ranks 2");
    assert!(message.contains("--ranks is for training steps of a model"), "{message}");
    assert!(work.fail("profile --program nowhere").contains("nowhere"));
}
