//! `kernfusion profile --device cuda --model`: a card that is not here.

use super::workplace::{Workplace, end, message};
use kernfusion_cuda::{model, nvrtc};
use serde_json::Value;
use std::path::Path;

/// Whether something is missing that makes or reads machine code; says so.
fn is_skipped() -> bool {
    let reason = match (nvrtc::is_present(), model::is_present()) {
        (false, _) => "NVRTC is not installed",
        (_, false) => "nvdisasm is not installed (pip install nvidia-cuda-nvdisasm, KERNFUSION_NVDISASM)",
        (true, true) => return false,
    };
    println!("skipped: {reason}");
    true
}

/// The table, and what a program reads of it. Cubins stay for the next run of these tests.
fn profile(work: &Workplace, flags: &str) -> (String, Value) {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("modelled");
    let mut command = work.command(&format!("profile {flags} --device cuda --lines 0 --json model.json"));
    let ended = end(command.env("KERNFUSION_CACHE", cache).spawn().unwrap());
    assert_eq!(ended.code, Some(0), "{flags}: {}", ended.err);
    let document = serde_json::from_str(&std::fs::read_to_string(work.path("model.json")).unwrap());
    (ended.out, document.unwrap())
}

fn number(value: &Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or_else(|| panic!("{field} of {value}"))
}

#[test]
fn every_launch_has_a_time_and_says_where_it_is_from() {
    if is_skipped() {
        return;
    }
    let work = Workplace::new();
    work.write("layers.json", r#"{"layers": 3, "width": 64, "heads": 2, "context": 64}"#);
    let (out, document) = profile(&work, "--config layers.json --batch-size 2 --dtype bf16 --model");
    assert!(out.contains("a model of NVIDIA H200 SXM, not a measurement"), "{out}");
    assert!(out.lines().all(|line| line.chars().count() <= 100), "{out}");
    assert_eq!((&document["model"], &document["is_measured"]), (&"h200".into(), &false.into()));
    let kernels = document["kernels"].as_array().unwrap();
    let sum: f64 = kernels.iter().map(|kernel| number(kernel, "seconds")).sum();
    assert!((1e3 * sum / number(&document, "step_ms") - 1.0).abs() < 1e-9);
    let launches: f64 = kernels.iter().map(|kernel| number(kernel, "count")).sum();
    assert_eq!(launches, number(&document, "launches"));
    for kernel in kernels.iter().filter(|kernel| kernel["function"] != "") {
        let longest =
            kernel["bounds"].as_object().unwrap().values().map(|it| it.as_f64().unwrap()).fold(0.0, f64::max);
        // The longest part of the card, and 1.3 µs between launches.
        assert!(
            number(kernel, "seconds") <= number(kernel, "count") * (longest + 1.3e-6) * (1.0 + 1e-9),
            "{kernel}"
        );
        assert!(
            number(kernel, "registers") >= 8.0 && number(kernel, "blocks_per_multiprocessor") >= 1.0,
            "{kernel}"
        );
        assert_eq!(kernel["is_whole"], true, "{kernel}");
        // Threads have no memory of their own, which costs an access of memory where a register would do.
        assert_eq!(number(kernel, "local_bytes"), 0.0, "{kernel}");
    }
    // Twelve products in forward of a layer with tokens 128 and width 64: 2·128·64·(4 + 8)·64 operations each, at least those.
    let products: f64 = kernels.iter().map(|kernel| number(kernel, "tensor_operations")).sum();
    assert!(products >= 3.0 * 3.0 * 2.0 * 128.0 * 64.0 * 12.0 * 64.0, "{products}");
    // A slower card takes longer, and a forward pass less.
    let (_, slower) = profile(&work, "--config layers.json --batch-size 2 --dtype bf16 --model h100");
    assert!(number(&slower, "step_ms") >= number(&document, "step_ms"));
    let (_, forward) =
        profile(&work, "--config layers.json --batch-size 2 --dtype bf16 --model h200 --work forward");
    assert!(number(&forward, "step_ms") < 0.6 * number(&document, "step_ms"));
    let mut command = work.command("profile --config layers.json --device cuda --model");
    let missing =
        message(end(command.env("KERNFUSION_NVDISASM", "/nowhere/nvdisasm").spawn().unwrap()), "--model");
    assert!(
        missing.contains("/nowhere/nvdisasm") && missing.contains("pip install nvidia-cuda-nvdisasm"),
        "{missing}"
    );
}

#[test]
fn flags_that_have_no_sense_without_a_card_are_errors() {
    let work = Workplace::new();
    for (flags, expected) in [
        ("--model", "--model is of a GPU: it needs --device cuda"),
        ("--device cuda --model b300", "the model knows no card b300, but h200, h100, a100, rtx4090"),
        ("--device cuda --model --tune", "--tune measures products on a GPU, and --model has none"),
        ("--device cuda --model --check-finite", "--check-finite looks at results, and --model has none"),
        ("--device cuda --model --f32-products x6", "x6, x3 and fixed are for CPUs"),
    ] {
        let found = work.fail(&format!("profile {flags}"));
        assert!(found.contains(expected), "{flags}: {found}");
    }
}
