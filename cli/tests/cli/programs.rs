//! Commands that show, measure and execute programs.

use super::workplace::{Workplace, end};
use kernfusion::tensor_file;
use kernfusion_ir::samples::{Draws, difference};
use kernfusion_ir::{Graph, Tensor, TensorType};
use serde_json::Value;
use std::collections::BTreeMap;

#[test]
fn bench_writes_every_field_for_every_mode() {
    let work = Workplace::new();
    for kind in ["train", "forward"] {
        let flags = "--config small.json --batch-size 2 --steps 3 --warmup 1 --threads 1 --json bench.json";
        let out = work.succeed(&format!("bench --work {kind} --mode compiled,eager {flags}"));
        assert!(out.contains("compiled") && out.contains("eager"), "{out}");
        let text = std::fs::read_to_string(work.path("bench.json")).unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        assert!(document["machine"]["cores"].as_u64().is_some_and(|cores| cores > 0), "{text}");
        let rows = document["results"].as_array().unwrap();
        let texts = [("preset", "small.json"), ("work", kind), ("dtype", "f32"), ("device", "cpu")];
        let numbers = [
            "median_step_s",
            "tokens_per_s",
            "compile_s",
            "microbatches",
            "kernels",
            "bytes_moved_mib",
            "arena_mib",
            "peak_rss_mib",
            "loss_first",
            "loss_last",
        ];
        for (row, mode) in rows.iter().zip(["compiled", "eager"]) {
            assert_eq!((&row["mode"], &row["threads"], &row["steps"]), (&mode.into(), &1.into(), &3.into()));
            assert!(texts.iter().all(|(name, value)| row[name] == *value), "{row}");
            assert!(numbers.iter().all(|name| row[name].as_f64().is_some_and(|x| x > 0.0)), "{row}");
        }
        assert_eq!(rows.len(), 2);
        let [a, b] = [0, 1].map(|row| rows[row]["loss_last"].as_f64().unwrap());
        assert!((a - b).abs() < 1e-4, "{text}");
        assert!(rows[0]["kernels"].as_u64() < rows[1]["kernels"].as_u64(), "{text}");
    }
}

#[test]
fn every_stage_and_form_is_shown() {
    let work = Workplace::new();
    let dump = |flags: &str| work.succeed(&format!("dump --config small.json --batch-size 2 {flags}"));
    for stage in ["trace", "grad", "simplify"] {
        let graph = Graph::parse(&dump(&format!("--stage {stage}"))).unwrap();
        graph.verify().unwrap();
        assert_eq!(Graph::from_json(&dump(&format!("--stage {stage} --format json"))).unwrap(), graph);
        assert!(dump(&format!("--stage {stage} --format dot")).starts_with("digraph"));
        assert!(dump(&format!("--stage {stage} --format mermaid")).contains("flowchart"));
    }
    assert!(
        dump("--stage simplify --dtype bf16").contains("bf16[")
            && !dump("--stage simplify").contains("bf16[")
    );
    assert_ne!(dump("--stage simplify --stop-after 1"), dump("--stage simplify"));
    assert_eq!(dump("--stage simplify --stop-after 3"), dump("--stage simplify --after fold"));
    assert!(dump("--stage fuse").starts_with("kernels "));
    let json: Value = serde_json::from_str(&dump("--stage fuse --format json")).unwrap();
    assert!(json["kernels"].as_array().is_some_and(|kernels| kernels.len() > 10));
    assert!(dump("--stage plan").contains("arena"));
    serde_json::from_str::<Value>(&dump("--stage plan --format json")).unwrap();
    assert!(dump("--stage clif --kernel ln_f").contains("; kernel "));
    assert!(dump("--stage asm --work forward --kernel ln_f").contains("; kernel "));
    // A program in a file goes through the same stages.
    assert_eq!(dump("--stage grad -o step.kir"), "");
    for flags in [
        "--stage fuse",
        "--stage plan --format json",
        "--stage asm --kernel ln_f",
        "--stage cuda",
        "--diff simplify",
    ] {
        assert_eq!(work.succeed(&format!("dump step.kir {flags}")), dump(flags), "{flags}");
    }
    assert!(work.succeed("dump step.kir --format html").contains("<title>step.kir"));
    assert!(work.fail("dump step.kir --stage grad").contains("--stage trace shows all of it"));
    assert!(work.fail("dump step.kir --preset tiny --stage fuse").contains("cannot be used with"));
    assert_eq!(dump("--stage trace -o trace.kir"), "");
    assert_eq!(std::fs::read_to_string(work.path("trace.kir")).unwrap(), dump("--stage trace"));
}

#[test]
fn a_page_has_all_stages_with_measured_times() {
    let work = Workplace::new();
    let model = "--config small.json --batch-size 2";
    work.succeed(&format!("profile {model} --steps 1 --threads 1 --json times.json"));
    work.succeed(&format!("dump {model} --format html --times times.json -o page.html"));
    let page = std::fs::read_to_string(work.path("page.html")).unwrap();
    let data = page.split("type=\"application/json\">").nth(1).unwrap().split("</script>").next().unwrap();
    let data: Value = serde_json::from_str(data).unwrap();
    let times: Value =
        serde_json::from_str(&std::fs::read_to_string(work.path("times.json")).unwrap()).unwrap();
    let kernels = data["kernels"].as_array().unwrap();
    assert!(kernels.len() > 10 && data["timed"] == true);
    for kernel in kernels {
        let name = kernel["name"].as_str().unwrap();
        assert!(kernel["seconds"].as_f64().is_some_and(|time| time >= 0.0), "{kernel}");
        assert_eq!(kernel["seconds"], times["each"][name]);
    }
    let other =
        work.fail("dump --config small.json --batch-size 2 --work forward --format html --times times.json");
    assert!(other.contains("times.json: is of another program"), "{other}");
}

#[test]
fn a_difference_names_what_a_pass_changed() {
    let work = Workplace::new();
    let dump = |flags: &str| work.succeed(&format!("dump --config small.json --batch-size 2 {flags}"));
    let merged = dump("--diff cse");
    assert!(merged.starts_with("# pass 4: cse (computes equal expressions once)\n"), "{merged}");
    let changes = |text: &str, sign: &str| text.lines().filter(|line| line.starts_with(sign)).count();
    assert!(changes(&merged, "- %") > 10 && changes(&merged, "+ %") == 0, "{merged}");
    // Numbers of nodes add up.
    let nodes = |stop: usize| changes(&dump(&format!("--stage simplify --stop-after {stop}")), "  %");
    assert_eq!(nodes(3) - nodes(4), changes(&merged, "- %"));
    let rewritten = dump("--diff simplify");
    assert!(rewritten.contains("# in place of %") && rewritten.contains(", by "), "{rewritten}");
    assert!(rewritten.contains("@@ blocks.0"), "{rewritten}");
    assert_eq!(dump("--diff 4"), merged);
    // A pass that no mode has, on the program as traced: what the flag keeps in bytes, the pass does.
    let narrowed = dump("--work decode --diff weights-int8");
    assert!(narrowed.starts_with("# pass weights-int8 (keeps matrices"), "{narrowed}");
    let bytes = |text: &str| {
        text.lines().filter(|line| line.contains("state {") && line.contains("dtype = i8")).count()
    };
    work.succeed("dump --config small.json --batch-size 2 --work decode --stage trace -o plain.kir");
    let kept = bytes(&work.succeed("opt plain.kir --passes weights-int8"));
    assert!(kept > 5 && kept == bytes(&narrowed), "{kept}");
    assert_eq!(bytes(&dump("--work decode --weights int8 --stage trace")), kept);
    let unknown = work.fail("dump --diff simplfy");
    assert!(unknown.contains("there is no pass \"simplfy\""), "{unknown}");
}

#[test]
fn a_dumped_program_is_optimised_and_executed_in_every_mode() {
    let work = Workplace::new();
    work.succeed("dump --config small.json --batch-size 2 --stage grad -o step.kir");
    let graph = Graph::parse(&std::fs::read_to_string(work.path("step.kir")).unwrap()).unwrap();
    let mut draws = Draws::new(3);
    let mut tensor = |name: &str, ty: &TensorType| {
        let values: Vec<_> = (0..ty.elements()).map(|_| draws.between(0.05, 0.9)).collect();
        // Tokens are whole numbers of the vocabulary.
        let scale = if matches!(name, "x" | "y") { 60.0 } else { 1.0 };
        Tensor::from_f64(ty, &values.iter().map(|x| x * scale).collect::<Vec<_>>())
    };
    let inputs: BTreeMap<_, _> =
        graph.inputs().map(|(id, name, _)| (name.to_string(), tensor(name, &graph[id].ty))).collect();
    tensor_file::write(&work.path("in.safetensors"), &inputs).unwrap();
    let optimised = work.succeed("opt step.kir --passes dce,fold,cse");
    assert!(Graph::parse(&optimised).unwrap().len() < graph.len());
    work.write("small.kir", optimised);
    let results = |file: &str, mode: &str| {
        let files = "--inputs in.safetensors --outputs out.safetensors";
        work.succeed(&format!("run {file} {files} --mode {mode}"));
        tensor_file::read(&work.path("out.safetensors")).unwrap()
    };
    let expected = results("step.kir", "reference");
    assert_eq!(expected.len(), graph.outputs().len());
    for (file, mode) in [
        ("small.kir", "reference"),
        ("step.kir", "eager"),
        ("step.kir", "compiled"),
        ("small.kir", "compiled"),
    ] {
        for (name, tensor) in results(file, mode) {
            let difference = difference(&expected[&name].to_f64(), &tensor.to_f64(), 2e-4);
            assert_eq!(difference, None, "{file} {mode} {name}");
        }
    }
    let mut short = inputs;
    short.remove("wte.weight");
    short.insert("lr".into(), Tensor::new([2], vec![1i32, 2]));
    tensor_file::write(&work.path("in.safetensors"), &short).unwrap();
    let message = work.fail("run step.kir --inputs in.safetensors");
    let parts =
        ["\"wte.weight\" of type f32[65,8] is missing", "\"lr\" is i32[2], the program expects f32[]"];
    assert!(parts.iter().all(|part| message.contains(part)), "{message}");
}

/// What a program only reads is rounded to bytes, and what it multiplies: results are near those of f32, in all modes alike.
#[test]
fn a_program_runs_with_products_of_int8() {
    let work = Workplace::new();
    let (rows, terms, columns) = (5, 48, 64);
    let text = format!(
        "graph \"scores\" {{\n  \
         %0 = input {{name = \"x\", dtype = f32, shape = [{rows}, {terms}]}} : f32[{rows},{terms}]\n  \
         %1 = state {{name = \"w\", dtype = f32, shape = [{columns}, {terms}]}} : f32[{columns},{terms}]\n  \
         %2 = dot_general %0, %1 {{lhs_batch = [], rhs_batch = [], lhs_contract = [1], rhs_contract = [1], dtype = f32}} : f32[{rows},{columns}]\n  \
         output \"y\" = %2\n}}\n"
    );
    work.write("scores.kir", text);
    let wave = |count: usize, step: f32| (0..count).map(|i| (i as f32 * step).sin()).collect::<Vec<_>>();
    let inputs = BTreeMap::from([
        ("x".to_string(), Tensor::new([rows, terms], wave(rows * terms, 0.7))),
        ("w".to_string(), Tensor::new([columns, terms], wave(columns * terms, 1.3))),
    ]);
    tensor_file::write(&work.path("in.safetensors"), &inputs).unwrap();
    let results = |flags: &str| {
        work.succeed(&format!("run scores.kir --inputs in.safetensors --outputs out.safetensors {flags}"));
        tensor_file::read(&work.path("out.safetensors")).unwrap()["y"].to_f64()
    };
    let expected = results("");
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let size = norm(&mut expected.iter().copied());
    for flags in ["--dtype int8", "--dtype int8 --mode eager", "--dtype int8 --threads 1"] {
        let found = results(flags);
        let error = norm(&mut expected.iter().zip(&found).map(|(x, y)| x - y)) / size;
        assert!(error > 1e-4 && error < 0.02, "{flags}: {error}");
    }
    assert!(work.succeed("bisect scores.kir --dtype int8").contains("nothing deviates"));
}

#[test]
fn explanations_are_sorted_and_can_be_narrowed() {
    let work = Workplace::new();
    let out = work.succeed("explain --config small.json --refusals 0");
    let (_, refused) = out.split_once("fusions refused, the largest first:\n").unwrap();
    let (refused, plan) = refused.split_once("\n\nplan:\n").unwrap();
    let bytes = |line: &str| line.trim().split(" B").next().unwrap().replace(',', "").parse::<u64>().unwrap();
    let bytes: Vec<_> = refused.lines().map(bytes).collect();
    assert!(bytes.len() > 3 && bytes.is_sorted_by(|a, b| a >= b), "{refused}");
    assert!(refused.lines().all(|line| line.contains(" -> ") && line.contains(": ")), "{refused}");
    assert!(plan.contains("kernels") && plan.contains("arena") && plan.contains("peak"), "{plan}");
    let out = work.succeed("explain --config small.json mlp ln_f");
    assert!(out.contains("kernels touch both:"), "{out}");
}

#[test]
fn presets_have_their_parameter_counts() {
    let work = Workplace::new();
    let out = work.succeed("presets");
    assert!(out.contains("thesis") && out.contains("10,788,864") && out.contains("124,439,808"), "{out}");
    let presets: Value = serde_json::from_str(&work.succeed("presets --json")).unwrap();
    assert_eq!(presets[1]["parameters"], 10_788_864);
    assert_eq!(presets[0]["config"]["layers"], 4);
}

#[test]
fn the_selftest_counts_its_cases() {
    let work = Workplace::new();
    for flags in [
        "--filter add",
        "--dtype bf16 --filter dot",
        "--dtype bf16 --filter step",
        "--dtype int8",
        "--f32-products fixed",
        "--dtype bf16 --bf16-products fixed --filter dot",
    ] {
        let out = work.succeed(&format!("selftest {flags}"));
        let last = out.lines().last().unwrap();
        assert!(last.ends_with(" passed, 0 failed") && !last.starts_with("0 "), "{out}");
    }
}

/// All of it, wherever there is AVX-512: the driver, chains and prompts with 32 × 32 tiles.
#[test]
fn the_selftest_passes_on_emulated_tiles() {
    let work = Workplace::new();
    for flags in [
        "selftest --dtype bf16",
        "selftest --dtype int8",
        "selftest --f32-products x6 --filter dot",
        "selftest --f32-products x3 --filter step",
    ] {
        let ended = end(work.command(flags).env("KERNFUSION_ISA", "amx-emulated").spawn().unwrap());
        if ended.err.contains("this machine does not have it") {
            return;
        }
        let last = ended.out.lines().last().unwrap_or_else(|| panic!("{}", ended.err));
        assert!(last.ends_with(" passed, 0 failed") && !last.starts_with("0 "), "{}", ended.out);
        assert!(ended.out.contains("avx512+amx-emulated"), "{}", ended.out);
    }
}
