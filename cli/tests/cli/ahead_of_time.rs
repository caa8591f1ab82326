//! Models compiled ahead of time, as programs in C and Rust run them: the examples, linked with what `compile` writes.

use super::fixture::fixture;
use super::workplace::{Ended, Workplace, end};
use kernfusion::WeightType;
use kernfusion::compile::{Precision, Target};
use kernfusion::{HostTensor, tensor_file};
use kernfusion_lm::checkpoint::Checkpoint;
use kernfusion_lm::generate::Generator;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Longer than two of the sizes that caches are looked at in.
const CONFIG: &str = r#"{"layers": 1, "width": 8, "heads": 2, "context": 150}"#;

/// A directory with a trained model.
fn workplace() -> Workplace {
    let work = Workplace::new();
    work.write("model.json", CONFIG);
    work.succeed("train --config model.json --batch-size 2 --steps 3 --sample-tokens 0 --validation-batches 1 --out run");
    work
}

/// What the example in C says.
fn run_c(work: &Workplace, arguments: &str) -> Ended {
    let mut command = Command::new(work.path("c"));
    end(command.args(arguments.split_whitespace()).current_dir(work.0.path()).piped().spawn().unwrap())
}

trait Piped {
    fn piped(&mut self) -> &mut Self;
}

impl Piped for Command {
    fn piped(&mut self) -> &mut Self {
        self.stdout(Stdio::piped()).stderr(Stdio::piped())
    }
}

fn build(mut command: Command) {
    let ended = end(command.piped().spawn().unwrap());
    assert_eq!(ended.code, Some(0), "{command:?}: {}{}", ended.out, ended.err);
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/ahead_of_time").join(name)
}

fn build_c(work: &Workplace, source: &Path, model: &str) {
    let mut command = Command::new("cc");
    let files =
        [&format!("artefact/{model}.o"), "artefact/libkernfusion_runtime.a"].map(|name| work.path(name));
    command.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-I"]).arg(work.path("artefact"));
    command.arg(source).args(files).args(["-lm", "-lpthread", "-ldl", "-o"]);
    command.arg(work.path("c"));
    build(command);
}

/// The newest library that this test was built from, as a package with that dependency would link it.
fn runtime() -> (PathBuf, PathBuf) {
    let deps = Path::new(env!("CARGO_BIN_EXE_kernfusion")).parent().unwrap().join("deps");
    let entries = std::fs::read_dir(&deps).unwrap().map(|entry| entry.unwrap().path());
    let is_runtime = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with("libkernfusion_runtime-") && name.ends_with(".rlib")
    };
    let newest = entries.filter(is_runtime).max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    (newest.expect("a dependency of the program"), deps)
}

fn build_rust(work: &Workplace, source: &Path, model: &str) {
    let (library, deps) = runtime();
    let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()));
    command.arg("--edition=2024").arg(source).arg("-o").arg(work.path("rust"));
    command.arg("--extern").arg(format!("kernfusion_runtime={}", library.display()));
    command.arg("-L").arg(format!("dependency={}", deps.display()));
    command.arg("-C").arg(format!("link-arg={}", work.path(&format!("artefact/{model}.o")).display()));
    command.env("ARTEFACT", work.path("artefact"));
    build(command);
}

/// What the examples should print, from the same parts one after another.
fn expected(
    work: &Workplace,
    precision: Precision,
    stored: WeightType,
    first: &[i32],
    more: usize,
) -> String {
    let checkpoint = Checkpoint::load(&work.path("run")).unwrap();
    let target = Target::cpu().precision(precision).weights(stored).threads(1);
    let mut generator = Generator::from_checkpoint(checkpoint, &target).unwrap();
    let mut text = first.to_vec();
    let mut logits = generator.logits(&text).unwrap();
    for _ in 0..more {
        let likeliest =
            (0..logits.len()).fold(0, |best, at| if logits[at] > logits[best] { at } else { best });
        text.push(likeliest as i32);
        logits = generator.next_logits(&text).unwrap();
    }
    let sum = logits.iter().fold(0u32, |sum, logit| sum.wrapping_add(logit.to_bits()));
    let text: Vec<_> = text.iter().map(i32::to_string).collect();
    format!("{} {sum:08x}\n", text.join(" "))
}

#[test]
fn c_and_rust_continue_a_text_as_the_generator_does() {
    let work = workplace();
    let out = work.succeed("compile --checkpoint run --work prefill --name tiny -o artefact");
    assert!(out.contains("tiny.h, tiny.o, tiny.rs, tiny.safetensors"), "{out}");
    build_c(&work, &example("continue_text.c"), "tiny");
    build_rust(&work, &example("continue_text.rs"), "tiny");
    // 71 tokens at once, then enough more that the number of visible positions doubles twice.
    let first: Vec<i32> = (0..71).map(|i| i * i % 60).collect();
    let expected = expected(&work, Precision::F32, WeightType::F32, &first, 79);
    let first: Vec<_> = first.iter().map(i32::to_string).collect();
    for threads in [1, 2] {
        let arguments = format!("artefact/tiny.safetensors {threads} 79 {}", first.join(" "));
        let ended = run_c(&work, &arguments);
        assert_eq!((ended.out.as_str(), ended.err.as_str()), (expected.as_str(), ""));
        let mut command = Command::new(work.path("rust"));
        command.args(arguments.split_whitespace()).current_dir(work.0.path());
        let ended = end(command.piped().spawn().unwrap());
        assert_eq!((ended.out.as_str(), ended.err.as_str()), (expected.as_str(), ""));
    }
    for program in ["c", "rust"] {
        let bytes = std::fs::read(work.path(program)).unwrap();
        for compiler in ["cranelift", "petgraph", "kernfusion_passes", "kernfusion_ir"] {
            let found = bytes.windows(compiler.len()).any(|bytes| bytes == compiler.as_bytes());
            assert!(!found, "{program} has something of {compiler}");
        }
    }
}

#[test]
fn one_token_after_another_with_narrow_weights_and_for_other_processors() {
    let work = workplace();
    let (f32, bf16) = (Precision::F32, Precision::Bf16);
    for (flags, kept) in [
        ("--dtype bf16", Some((bf16, WeightType::BF16))),
        ("--weights int8", Some((f32, WeightType::Int8))),
        ("--weights int4", Some((f32, WeightType::Int4))),
        ("--dtype int8", Some((Precision::Int8, WeightType::Int8))),
        // Other instructions round otherwise.
        ("--cpu avx2", None),
        ("--cpu baseline", None),
    ] {
        work.succeed(&format!("compile --checkpoint run {flags} --name tiny -o artefact --overwrite"));
        build_c(&work, &example("continue_text.c"), "tiny");
        let ended = run_c(&work, "artefact/tiny.safetensors 2 20 5");
        match kept {
            Some((precision, stored)) => {
                assert_eq!(ended.out, expected(&work, precision, stored, &[5], 20), "{}", ended.err);
            }
            None => assert_eq!(ended.out.split_whitespace().count(), 22, "{flags}: {}", ended.err),
        }
    }
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let work = workplace();
    work.succeed("compile --checkpoint run --name tiny -o artefact");
    build_c(&work, &example("continue_text.c"), "tiny");
    for (arguments, expected) in [
        ("none.safetensors 1 1 5", "cannot read none.safetensors: No such file"),
        ("model.json 1 1 5", "model.json is not a whole safetensors file"),
        ("run/checkpoint.safetensors 1 1 999", "999 is not one of the 73 tokens"),
    ] {
        let ended = run_c(&work, arguments);
        assert_eq!(ended.code, Some(1), "{}", ended.out);
        assert!(ended.err.starts_with(expected) && ended.err.lines().count() == 1, "{}", ended.err);
    }
    work.write("wide.json", r#"{"layers": 1, "width": 16, "heads": 2, "context": 150}"#);
    work.succeed("compile --config wide.json -o wide");
    let ended = run_c(&work, "wide/model.safetensors 1 1 5");
    assert!(ended.err.contains("model.safetensors: is F32[65, 16], the model has F32["), "{}", ended.err);
    for (flags, expected) in [
        ("--preset bert-tiny -o bert", "only a decoder"),
        ("--preset tiny --work train -o x", "--work: only decode and prefill"),
        ("--preset tiny --name a-b -o x", "--name: \"a-b\" is not a name in C"),
        ("--program run -o x", "run: this is a checkpoint: generate, score, compile"),
        ("--program run --preset tiny -o x", "cannot be used with"),
        ("--preset tiny --dim x.0=2 -o x", "--dim is of an archive"),
        ("--preset tiny -o run", "run is not empty; nothing was written"),
        ("--preset tiny -o x --runtime none.a", "cannot read none.a"),
    ] {
        let message = work.fail(&format!("compile {flags}"));
        assert!(message.contains(expected), "{message}");
    }
    assert!(!work.path("x").exists() && !work.path("bert").exists());
}

#[test]
fn c_and_rust_call_a_model_of_pytorch() {
    let work = Workplace::new();
    let mut tensors = tensor_file::read(&fixture("gpt2.safetensors")).unwrap();
    let (ids, expected) = (tensors.remove("input.0").unwrap(), tensors.remove("output.0").unwrap());
    let tokens: Vec<_> = ids.to_f64().iter().map(|id| format!("{id}")).collect();
    tensor_file::write(&work.path("in.safetensors"), &BTreeMap::from([("input_ids".into(), ids)])).unwrap();
    work.succeed(&format!("import {} -o gpt2", fixture("gpt2.pt2").display()));
    work.succeed("run gpt2 --inputs in.safetensors --outputs out.safetensors");
    let compiled = &tensor_file::read(&work.path("out.safetensors")).unwrap()["output.0"];
    let said = work.succeed("compile --program gpt2 -o artefact");
    assert!(said.contains("gpt2.h, gpt2.o, gpt2.rs, gpt2.safetensors"), "{said}");
    let header = std::fs::read_to_string(work.path("artefact/gpt2.h")).unwrap();
    for line in [
        "/* input_ids: i32[2,6] */\n    KF_GPT2_IN_INPUT_IDS = 12,",
        "/* output.0: f32[2,6,24] */\n    KF_GPT2_OUT_OUTPUT_0 = 288\n",
        "kf_gpt2_call(kf_gpt2 *model, const int32_t *in_input_ids, float *out_output_0)",
    ] {
        assert!(header.contains(line), "{header}");
    }
    build_c(&work, &example("call_function.c"), "gpt2");
    build_rust(&work, &example("call_function.rs"), "gpt2");
    let scale = expected.to_f64().into_iter().fold(0.0, |scale: f64, x| scale.max(x.abs()));
    for program in ["c", "rust"] {
        for threads in ["1", "2"] {
            let mut command = Command::new(work.path(program));
            command.args(["artefact/gpt2.safetensors", threads]).args(&tokens).current_dir(work.0.path());
            let ended = end(command.piped().spawn().unwrap());
            let found: Vec<f32> = ended.out.lines().map(|line| line.parse().unwrap()).collect();
            let found = HostTensor::new(expected.ty().shape, found);
            assert!(found == *compiled, "{program}: other bits than the compiled program, {}", ended.err);
            for (found, expected) in found.to_f64().into_iter().zip(expected.to_f64()) {
                assert!((found - expected).abs() < 1e-4 * scale, "{program}: {found} instead of {expected}");
            }
        }
    }
    // An archive is compiled as its folder is.
    let folder = std::fs::read(work.path("artefact/gpt2.o")).unwrap();
    work.succeed(&format!("compile --program {} -o artefact --overwrite", fixture("gpt2.pt2").display()));
    assert!(folder == std::fs::read(work.path("artefact/gpt2.o")).unwrap());
}

/// Calls twice: the second time with what the first one left.
const CALLS_TWICE: &str = r#"
#include "count.h"
#include <stdio.h>
int main(void) {
    char error[256];
    kf_count *model = kf_count_open("artefact/count.safetensors", 2, error, sizeof error);
    if (!model) return puts(error), 1;
    float x[KF_COUNT_IN_INT] = {1, 2}, y[KF_COUNT_OUT_Y_] = {0}, before[KF_COUNT_OUT_BEFORE];
    for (int call = 0; call < 2; call++) {
        if (kf_count_call(model, x, y, before)) return puts(kf_count_error(model)), 1;
        printf("%g %g, %g %g\n", y[0], y[1], before[0], before[1]);
    }
    if (!kf_count_call(model, x, NULL, before)) return 1;
    puts(kf_count_error(model));
    kf_count_close(model);
    return 0;
}
"#;

#[test]
fn states_that_a_function_updates_begin_with_the_file_and_stay() {
    let work = Workplace::new();
    std::fs::create_dir(work.path("model")).unwrap();
    work.write(
        "model/program.kir",
        r#"graph "count" {
  %x = input {name = "int", dtype = f32, shape = [2]} : f32[2]
  %sum = state {name = "sum", dtype = f32, shape = [2]} : f32[2]
  %scale = state {name = "scale", dtype = f32, shape = [2]} : f32[2]
  %next = add %sum, %x : f32[2]
  %y = mul %next, %scale : f32[2]
  output "y*" = %y
  output "before" = %sum
  update "sum" = %next
}
"#,
    );
    work.write("model/signature.json", r#"{"inputs": [], "outputs": [], "trained": [], "stopped": []}"#);
    let state = |value: [f32; 2]| HostTensor::new([2], value);
    let states = BTreeMap::from([("sum".into(), state([10.0, 20.0])), ("scale".into(), state([2.0, 3.0]))]);
    tensor_file::write(&work.path("model/weights.safetensors"), &states).unwrap();
    work.succeed("compile --program model --name count -o artefact");
    work.write("count.c", CALLS_TWICE);
    build_c(&work, &work.path("count.c"), "count");
    let expected = "22 66, 10 20\n24 72, 11 22\nthere is no memory for \"y*\"\n";
    assert_eq!(run_c(&work, "").out, expected);
}

const CALLS_SHARES: &str = r#"
#include "shares.h"
#include <stdio.h>
int main(void) {
    char error[256];
    kf_shares *model = kf_shares_open("artefact/shares.safetensors", 2, error, sizeof error);
    if (!model) return puts(error), 1;
    float x[2][KF_SHARES_IN_X] = {{11, 22}, {12, 24}}, y[KF_SHARES_OUT_Y];
    for (int call = 0; call < 2; call++) {
        if (kf_shares_call(model, x[call], y)) return puts(kf_shares_error(model)), 1;
        printf("%g %g\n", y[0], y[1]);
    }
    kf_shares_close(model);
    return 0;
}
"#;

#[test]
fn what_depends_on_parameters_alone_is_computed_when_a_function_is_opened() {
    let work = Workplace::new();
    std::fs::create_dir(work.path("model")).unwrap();
    work.write(
        "model/program.kir",
        r#"graph "shares" {
  %x = input {name = "x", dtype = f32, shape = [2]} : f32[2]
  %w = state {name = "w", dtype = f32, shape = [2, 2]} : f32[2,2]
  %whole = reduce %w {op = sum, axes = [1]} : f32[2]
  %wholes = broadcast %whole {shape = [2, 2], axes = [0]} : f32[2,2]
  %shares = div %w, %wholes : f32[2,2]
  %y = dot_general %x, %shares {lhs_batch = [], rhs_batch = [], lhs_contract = [0], rhs_contract = [0], dtype = f32} : f32[2]
  output "y" = %y
}
"#,
    );
    work.write("model/signature.json", r#"{"inputs": [], "outputs": [], "trained": [], "stopped": []}"#);
    let w = HostTensor::new([2, 2], vec![1.0f32, 3.0, 1.0, 1.0]);
    let weights = BTreeMap::from([("w".into(), w)]);
    tensor_file::write(&work.path("model/weights.safetensors"), &weights).unwrap();
    let explained = work.succeed("explain --program model");
    let prepared = "1 kernels before the first run, which make 16 B of parameters:";
    assert!(explained.contains(prepared), "{explained}");
    work.succeed("compile --program model --name shares -o artefact");
    work.write("shares.c", CALLS_SHARES);
    build_c(&work, &work.path("shares.c"), "shares");
    assert_eq!(run_c(&work, "").out, "13.75 19.25\n15 21\n");
}
