//! Models that PyTorch exported and ONNX files: imported, run, trained and shown.

use super::fixture::fixture;
use super::workplace::Workplace;
use kernfusion::{HostTensor, tensor_file};
use serde_json::{Value, json};
use std::collections::BTreeMap;

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

/// What comes to light when the folder is half written leaves nothing of it.
#[test]
fn an_archive_with_a_damaged_value_leaves_no_folder() {
    let work = Workplace::new();
    let mut archive = std::fs::read(fixture("linear.pt2")).unwrap();
    // In the bytes of the weight, which follow its padded header.
    let name = b"linear/data/weights/weight_0";
    let header = archive.windows(name.len()).position(|window| window == name).unwrap();
    let extra = u16::from_le_bytes([archive[header - 2], archive[header - 1]]);
    archive[header + name.len() + usize::from(extra)] ^= 1;
    work.write("model.pt2", archive);
    for command in
        ["import model.pt2 -o x", "export model.pt2 --format onnx -o x", "compile --program model.pt2 -o x"]
    {
        let message = work.fail(command);
        let expected = "model.pt2: tensor \"up.weight\" (data/weights/weight_0): its checksum is another one";
        assert!(message.contains(expected), "{command}: {message}");
        let files = std::fs::read_dir(work.path(".")).unwrap();
        let names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "{command}: {names:?}");
    }
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

#[test]
fn an_onnx_file_is_imported_run_shown_and_trained() {
    let work = Workplace::new();
    let mut tensors = tensor_file::read(&fixture("linear.safetensors")).unwrap();
    write_batches(&work, "linear", &[("x", "input.0"), ("target", "target")]);
    let inputs = BTreeMap::from([("x".to_string(), tensors.remove("input.0").unwrap())]);
    tensor_file::write(&work.path("in.safetensors"), &inputs).unwrap();
    let file = fixture("linear.onnx");
    let said = work.succeed(&format!("import {} -o model", file.display()));
    assert!(said.ends_with(" with 20 parameters in model\n"), "{said}");
    work.succeed("run model --inputs in.safetensors --outputs out.safetensors");
    let found = tensor_file::read(&work.path("out.safetensors")).unwrap()["output.0"].to_f64();
    for (found, expected) in found.into_iter().zip(tensors["output.0"].to_f64()) {
        assert!((found - expected).abs() < 1e-5, "{found} instead of {expected}");
    }
    assert!(work.succeed("dump model --stage trace").contains("linear.py\""));
    assert!(work.succeed("bisect model").contains("nothing deviates"));
    let said = work.succeed(&format!(
        "train --program {} --data batches.safetensors --loss mse --clip 0 --lr 0.001 --optimizer adamw --steps 50 --out trained",
        file.display()
    ));
    let expected = tensors["losses"].to_f64()[49];
    let loss = last_word(said.lines().find(|line| line.starts_with("step     50")).unwrap());
    assert!((loss - expected).abs() < 1e-4 * expected, "{loss} instead of {expected}");
    let message = work.fail(&format!("import {} -o x --dim x.0=7", file.display()));
    assert!(message.contains("it has no open extent \"x.0\", but none"), "{message}");
    work.write("none.onnx", "neither");
    assert!(work.fail("import none.onnx -o x").contains("and no whole ONNX model"));
    assert!(work.fail("import nowhere.onnx -o x").contains("nowhere.onnx: No such file"));
}

#[test]
fn a_model_is_exported_as_onnx() {
    let (work, _) = gpt2();
    let said = work.succeed("export gpt2 --format onnx -o onnx");
    assert_eq!(said, "onnx: model.onnx\n");
    work.succeed("import onnx/model.onnx -o again");
    let names = ["gpt2", "again"].map(|model| {
        work.succeed(&format!("run {model} --inputs in.safetensors --outputs {model}.safetensors"));
        let tensors = tensor_file::read(&work.path(&format!("{model}.safetensors"))).unwrap();
        tensors["output.0"].to_f64()
    });
    let [first, again] = &names;
    let scale = first.iter().fold(0.0f64, |scale, x| scale.max(x.abs()));
    assert!(first.iter().zip(again).all(|(x, y)| (x - y).abs() < 1e-5 * scale));
    assert!(
        work.fail("export gpt2 --format onnx -o onnx").contains("onnx is not empty; nothing was written")
    );
    work.succeed("export gpt2 --format onnx -o onnx --overwrite");
    for (flags, reason) in [
        ("export gpt2 -o x --dim input_ids.0=2", "--dim is of an archive"),
        ("export gpt2 --format onnx --dtype bf16 -o x", "are of --format hugging-face"),
        ("export nowhere --format onnx -o x", "nowhere"),
    ] {
        let message = work.fail(flags);
        assert!(message.contains(reason), "{message}");
    }
    assert!(!work.path("x").exists());
}

/// The number at the end of a line.
fn last_word(line: &str) -> f64 {
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// A batch alone, of the tensors of a fixture.
fn write_batches(work: &Workplace, of: &str, names: &[(&str, &str)]) {
    let tensors = tensor_file::read(&fixture(&format!("{of}.safetensors"))).unwrap();
    let batch = |name: &str| {
        let ty = tensors[name].ty();
        let ty = ty.with_shape([&[1], &ty.shape[..]].concat());
        HostTensor::from_bytes(&ty, tensors[name].bytes()).unwrap()
    };
    let batches = names.iter().map(|(name, of)| (name.to_string(), batch(of)));
    tensor_file::write(&work.path("batches.safetensors"), &batches.collect()).unwrap();
}

#[test]
fn an_archive_is_trained_as_pytorch_trains_it() {
    let (work, first) = gpt2();
    write_batches(&work, "gpt2", &[("input_ids", "input.0"), ("target", "target")]);
    let train = format!(
        "train --program {} --data batches.safetensors --loss cross-entropy --clip 0 --lr 0.001 --optimizer adamw",
        fixture("gpt2.pt2").display()
    );
    let said = work.succeed(&format!("{train} --steps 50 --out trained"));
    let losses = tensor_file::read(&fixture("gpt2.safetensors")).unwrap()["losses"].to_f64();
    for (step, expected) in [(1, losses[0]), (48, losses[47]), (50, losses[49])] {
        let line = said.lines().find(|line| line.starts_with(&format!("step {step:>6}"))).unwrap();
        let loss = last_word(line);
        assert!((loss - expected).abs() < 1e-4 * expected, "{line}: {expected}");
    }
    // The folder has what was trained.
    work.succeed("run trained --inputs in.safetensors --outputs out.safetensors");
    let logits = &tensor_file::read(&work.path("out.safetensors")).unwrap()["output.0"];
    assert!(logits.ty() == first.ty() && *logits != first);
    assert!(work.fail(&format!("{train} --out trained")).contains("not empty"));
    // So is the folder of an imported model, and what was trained goes on.
    let train = train.replace(&fixture("gpt2.pt2").display().to_string(), "gpt2");
    let again = work.succeed(&format!("{train} --steps 50 --out again"));
    let losses =
        |said: &str| said.lines().filter(|line| line.starts_with("step ")).collect::<Vec<_>>().join("\n");
    assert_eq!(losses(&again), losses(&said));
    let content = |folder: &str| std::fs::read(work.path(folder).join("weights.safetensors")).unwrap();
    assert!(content("again") == content("trained"));
    let on = work.succeed(&format!("{} --steps 1 --out on", train.replace("program gpt2", "program again")));
    let first = |said: &str| losses(said).lines().next().unwrap().rsplit(' ').next().unwrap().to_string();
    assert!(first(&on).parse::<f64>().unwrap() < first(&said).parse::<f64>().unwrap(), "{on}");
    let message = work.fail(&format!("{train} --out on --overwrite --dim input_ids.0=2"));
    assert!(message.contains("--dim is of an archive"), "{message}");
    work.write("gpt2/signature.json", "{}");
    let message = work.fail(&format!("{train} --out on --overwrite"));
    assert!(message.contains("gpt2/signature.json: missing field"), "{message}");
}

#[test]
fn adapters_of_its_matrices_are_trained() {
    let (work, _) = gpt2();
    write_batches(&work, "gpt2", &[("input_ids", "input.0"), ("target", "target")]);
    let train = "train --program gpt2 --data batches.safetensors --loss cross-entropy --lr 0.01 --steps 30";
    let said = work.succeed(&format!("{train} --lora 2 --lora-targets attn.c_attn --out trained"));
    let loss = |said: &str, step: &str| last_word(said.lines().find(|line| line.starts_with(step)).unwrap());
    let first = tensor_file::read(&fixture("gpt2.safetensors")).unwrap()["losses"].to_f64()[0];
    assert!((loss(&said, "step      1") - first).abs() < 1e-4 * first, "{said}");
    assert!(loss(&said, "step     30") < first, "{said}");
    let [before, after] = ["gpt2", "trained"]
        .map(|folder| tensor_file::read(&work.path(folder).join("weights.safetensors")).unwrap());
    let changed: Vec<_> = before.keys().filter(|name| before[*name] != after[*name]).collect();
    assert_eq!(changed, ["transformer.h.0.attn.c_attn.weight", "transformer.h.1.attn.c_attn.weight"]);
    assert!(before.keys().eq(after.keys()));
    // The merged model goes on where its adapters ended.
    let on = work
        .succeed(&format!("{train} --lora 2 --lora-targets attn.c_attn --out on").replace("gpt2", "trained"));
    assert!(loss(&on, "step      1") <= loss(&said, "step     30"), "{on}");
    for (flags, reason) in [
        ("--lora 2", "--lora-targets says which matrices"),
        ("--lora 2 --lora-targets c_attn.bias", "no matrix of the model has such a name"),
        ("--lora 0 --lora-targets c_attn", "the rank of adapters is 0"),
        ("--lora 2 --lora-targets c_attn --lora-dropout 0.1", "--lora-dropout is of models of a preset"),
    ] {
        let message = work.fail(&format!("{train} {flags} --out x"));
        assert!(message.contains(reason), "{message}");
    }
}

#[test]
fn its_training_step_is_measured() {
    let (work, _) = gpt2();
    let step = "--program gpt2 --loss cross-entropy --threads 1";
    let inputs = tensor_file::read(&fixture("gpt2.safetensors")).unwrap();
    let inputs = [("input_ids", "input.0"), ("target", "target")]
        .map(|(name, of)| (name.to_string(), inputs[of].clone()));
    tensor_file::write(&work.path("step.safetensors"), &BTreeMap::from(inputs)).unwrap();
    work.succeed(&format!(
        "bench {step} --inputs step.safetensors --steps 2 --warmup 1 --json bench.json --html bench.html"
    ));
    // A program does not say what tokens are.
    assert!(std::fs::read_to_string(work.path("bench.html")).unwrap().contains("Kernfusion, compiled"));
    let measured: Value = serde_json::from_slice(&std::fs::read(work.path("bench.json")).unwrap()).unwrap();
    let losses = tensor_file::read(&fixture("gpt2.safetensors")).unwrap()["losses"].to_f64();
    for mode in 0..2 {
        let row = &measured["results"][mode];
        assert_eq!(row["work"], "train");
        let loss = row["loss_first"].as_f64().unwrap();
        assert!((loss - losses[0]).abs() < 1e-4 * losses[0], "{loss} instead of {}", losses[0]);
        // Three tenths of that rate, from an optimizer that has seen nothing.
        let share = (loss - row["loss_last"].as_f64().unwrap()) / (losses[0] - losses[2]);
        assert!((0.25..0.35).contains(&share), "{share}: {row}");
    }
    // Inputs may be made up.
    assert!(work.succeed(&format!("profile {step} --steps 1 --lines 0")).contains("gpt2 train, compiled"));
    assert!(work.succeed("explain --program gpt2 --loss mse --refusals 0").contains("optimizer"));
    for stage in ["grad", "simplify", "fuse", "asm"] {
        let shown = work.succeed(&format!("dump gpt2 --loss mse --stage {stage}"));
        assert!(shown.contains("optimizer"), "{stage}");
    }
    let message = work.fail("dump gpt2 --loss mse --stage trace");
    assert!(message.contains("--stage grad shows the whole training step"), "{message}");
    let message = work.fail("dump --loss mse --stage grad");
    assert!(message.contains("<FILE.kir|DIR>"), "{message}");
    let refused = [
        ("bench --program gpt2/program.kir --loss mse", "--loss: what is trained is said by the folder"),
        (
            "bench --program gpt2 --loss output:0",
            "--loss output:0: it is f32[2,6,24], not a scalar of floats",
        ),
        ("bench --program gpt2 --loss output:7", "--loss output:7: the model has 1 output"),
        ("bench --program nowhere --loss mse", "cannot read nowhere: No such file"),
        ("dump nowhere --loss mse --stage grad", "cannot read nowhere: No such file"),
        ("bench --loss mse", "--program"),
        ("bench --program gpt2 --loss most", "it is cross-entropy, mse or output:N"),
    ];
    for (flags, reason) in refused {
        let message = work.fail(flags);
        assert!(message.contains(reason), "{flags}: {message}");
    }
}

#[test]
fn a_model_may_give_its_loss_itself() {
    let work = Workplace::new();
    write_batches(&work, "linear_loss", &[("x", "input.0"), ("y", "input.1")]);
    let archive = fixture("linear_loss.pt2");
    let said = work.succeed(&format!(
        "train --program {} --data batches.safetensors --loss output:0 --clip 0 --steps 50 --out trained",
        archive.display()
    ));
    let losses = tensor_file::read(&fixture("linear_loss.safetensors")).unwrap()["losses"].to_f64();
    let loss = last_word(said.lines().find(|line| line.starts_with("step     50")).unwrap());
    assert!((loss - losses[49]).abs() < 1e-4 * losses[49], "{loss} instead of {}", losses[49]);
}

#[test]
fn what_cannot_be_trained_says_why() {
    let (work, _) = gpt2();
    write_batches(&work, "gpt2", &[("input_ids", "input.0"), ("losses", "losses")]);
    let train = |flags: &str| {
        let archive = fixture("gpt2.pt2");
        work.fail(&format!(
            "train --program {} --data batches.safetensors --out x {flags}",
            archive.display()
        ))
    };
    assert!(train("").contains("--loss"));
    assert!(train("--loss sum").contains("cross-entropy, mse or output:N"));
    assert!(train("--loss mse --preset tiny").contains("cannot be used with"));
    let message = train("--loss mse");
    assert!(message.contains("batches.safetensors: the tensor \"target\" is missing"), "{message}");
    let message = train("--loss output:0");
    assert!(message.contains("--loss output:0: it is f32[2,6,24], not a scalar of floats"), "{message}");
    assert!(train("--loss output:7").contains("the model has 1 output"));
    write_batches(&work, "gpt2", &[("input_ids", "target"), ("target", "losses")]);
    let message = train("--loss cross-entropy");
    assert!(message.contains("cross_entropy"), "{message}");
    write_batches(&work, "gpt2", &[("input_ids", "input.0"), ("target", "target"), ("losses", "losses")]);
    let message = train("--loss cross-entropy");
    assert!(message.contains("the step takes no tensor \"losses\""), "{message}");
    write_batches(&work, "gpt2", &[("input_ids", "losses"), ("target", "target")]);
    let message = train("--loss cross-entropy");
    assert!(message.contains("batches are of i32[2,6] with an axis more in front"), "{message}");
    // The model has 24 tokens.
    for (number, count, expected) in [
        (-100, 1, "batches.safetensors: \"target\" has -100, and the model has 24 classes, 0 to 23"),
        (24, 1, "batches.safetensors: \"target\" has 24, and the model has 24 classes"),
        (0, 0, "\"input_ids\" has no batches: it is i32[0,2,6]"),
    ] {
        let tensor = |last: i32| {
            let values: Vec<_> = (0..12 * count).map(|at| if at == 7 { last } else { 0 }).collect();
            HostTensor::new([count, 2, 6], values)
        };
        let data = [("input_ids".to_string(), tensor(0)), ("target".to_string(), tensor(number))];
        tensor_file::write(&work.path("batches.safetensors"), &BTreeMap::from(data)).unwrap();
        let message = train("--loss cross-entropy");
        assert!(message.contains(expected), "{message}");
    }
    assert!(!work.path("x").exists());
    assert!(work.fail("train --dim x.0=3 --steps 1").contains("--dim is of an archive"));
}
