//! The experiments of the thesis on a small model, with references that were made here, and with PyTorch where there is one.

use super::device::succeed;
use super::workplace::{Workplace, end, message};
use serde_json::{Value, json};

const VERIFY: &str =
    "experiment verification --config small.json --batch-size 2 --steps 6 --out run --overwrite";

/// What PyTorch would be given, though there is no Python.
fn handed_over(work: &Workplace) -> Value {
    let message = work.fail(&format!("{VERIFY} --python ./none"));
    for part in
        ["cannot start the Python ./none", "--python", "run run/pytorch/verification.py", "--reference"]
    {
        assert!(message.contains(part), "{message}");
    }
    assert!(!work.path("run/report.html").exists() && !work.path("run/checkpoint.safetensors").exists());
    serde_json::from_str(&std::fs::read_to_string(work.path("run/pytorch/run.json")).unwrap()).unwrap()
}

/// The losses of the same run, which was made in another mode and without the command under test.
fn losses(work: &Workplace) -> Vec<f64> {
    work.succeed(
        "train --config small.json --batch-size 2 --steps 6 --lr 3e-4 --clip 0 --mode eager --sample-tokens 0 \
         --validation-batches 0 --out other --log other.jsonl",
    );
    work.losses("other.jsonl").into_iter().map(|(_, loss)| loss).collect()
}

fn reference(run: &Value, losses: &[f64]) -> String {
    let mut rows = vec![json!({"run": run, "library": "PyTorch 0", "place": "one thread"})];
    let steps = losses.iter().enumerate();
    rows.extend(steps.map(|(step, loss)| json!({"step": step + 1, "loss": loss, "seconds": 0.5})));
    rows.push(json!({"peak_mib": 100.0}));
    rows.iter().map(|row| format!("{row}\n")).collect()
}

#[test]
fn a_verification_compares_with_a_reference_made_elsewhere() {
    let work = Workplace::new();
    let run = handed_over(&work);
    assert_eq!((run["model"]["width"].as_u64(), run["model"]["dropout"].as_f64()), (Some(8), Some(0.0)));
    let mut losses = losses(&work);
    losses[3] += 2e-4;
    work.write("reference.jsonl", reference(&run, &losses));
    let out = work.succeed(&format!("{VERIFY} --reference reference.jsonl"));
    assert!(out.contains("(step 4), within 1e-3"), "{out}");
    let figures = std::fs::read_to_string(work.path("run/figures.json")).unwrap();
    let figures: Value = serde_json::from_str(&figures).unwrap();
    let deviation = &figures["deviation"];
    assert!((deviation["max"].as_f64().unwrap() - 2e-4).abs() < 2e-6, "{deviation}");
    assert_eq!((deviation["step"].as_u64(), figures["within_bound"].as_bool()), (Some(4), Some(true)));
    assert_eq!(figures["reference"]["total_s"].as_f64(), Some(3.0));
    assert_eq!(figures["reference"]["tokens_per_s"].as_f64(), Some(32.0));
    assert_eq!(figures["thesis"]["library"]["total_s"].as_f64(), Some(319.0));
    assert_eq!(figures["kernfusion"]["losses"].as_array().map(Vec::len), Some(6));
    let page = std::fs::read_to_string(work.path("run/report.html")).unwrap();
    for part in ["<svg", "PyTorch 0", "319 s", "1,792,819", "162,218", "2·10⁻⁴", "times cannot be compared"]
    {
        assert!(page.contains(part), "{part}");
    }
    // Nothing is fetched, and no number was impossible.
    assert!(!page.contains("http") && !page.contains("<script") && !page.contains("NaN"));
    // All steps are done: the report is made again, from the reference that was kept.
    work.succeed("experiment verification --resume run");
}

#[test]
fn a_verification_that_fails_says_so_and_has_its_report() {
    let work = Workplace::new();
    let run = handed_over(&work);
    let mut losses = losses(&work);
    losses[5] += 0.01;
    work.write("reference.jsonl", reference(&run, &losses));
    let ended = work.run(&format!("{VERIFY} --reference reference.jsonl"));
    assert_eq!(ended.code, Some(1));
    let message = message(ended, "verification");
    assert!(message.contains("apart at most (step 6), more than 1e-3"), "{message}");
    assert!(std::fs::read_to_string(work.path("run/report.html")).unwrap().contains("farther apart than"));
    work.succeed(&format!("{VERIFY} --reference reference.jsonl --bound 0.02"));
}

#[test]
fn references_that_cannot_be_used() {
    let work = Workplace::new();
    let run = handed_over(&work);
    let losses = [4.0; 6];
    let mut other = run.clone();
    (other["seed"], other["model"]["width"]) = (json!(7), json!(16));
    let whole = reference(&run, &losses);
    let gap: Vec<_> = whole.lines().filter(|row| !row.contains("\"step\":3")).collect();
    let cases = [
        (reference(&run, &losses[..4]), "has 4 steps, but 6 are asked for"),
        (reference(&other, &losses), "is of another run: model.width is 16, not 8; seed is 7, not 1"),
        (gap.join("\n"), "row 4 is of step 4, but that of step 3 is due"),
        (
            whole.replace("4.0", "\"low\""),
            "row 2 has not all of \"step\", \"loss\" and \"seconds\" as numbers",
        ),
        (whole.lines().skip(1).collect::<Vec<_>>().join("\n"), "row 1 does not say which run this is of"),
        ("no row at all".into(), "reference.jsonl, line 1: "),
        (String::new(), "reference.jsonl"),
    ];
    for (content, expected) in cases {
        work.write("reference.jsonl", &content);
        let message = work.fail(&format!("{VERIFY} --reference reference.jsonl"));
        assert!(message.contains(expected), "{expected}: {message}");
    }
    assert!(!work.path("run/losses.jsonl").exists(), "nothing was trained");
}

#[cfg(unix)]
#[test]
fn pythons_that_do_not_do_their_part() {
    use std::os::unix::fs::PermissionsExt;
    let work = Workplace::new();
    let python = |name: &str, script: &str| {
        work.write(name, format!("#!/bin/sh\n{script}\n"));
        std::fs::set_permissions(work.path(name), std::fs::Permissions::from_mode(0o755)).unwrap();
        work.fail(&format!("{VERIFY} --python ./{name}"))
    };
    let message = python("empty", "exit 1");
    assert!(message.contains("the Python ./empty has no PyTorch: install it"), "{message}");
    let message = python("failing", "[ \"$1\" = -c ] && exit 0; echo 'Error: out of memory' >&2; exit 3");
    assert!(message.contains("PyTorch's side failed (exit status: 3): Error: out of memory"), "{message}");
    let message = python("silent", "exit 0");
    assert!(message.contains("reference.jsonl"), "{message}");
}

#[test]
fn experiments_that_cannot_be_done() {
    let work = Workplace::new();
    let cases = [
        ("experiment", "requires a subcommand"),
        ("experiment verification --preset llama-tiny", "PyTorch's side of a verification is a GPT-2"),
        ("experiment verification --bound 0", "it must be a number above 0"),
        (
            "experiment verification --preset tiny --steps 1000000000",
            "windows are too many to be handed over",
        ),
        ("experiment verification --resume none", "there is no checkpoint at none/checkpoint.safetensors"),
        ("experiment verification --resume none --seed 2", "cannot be used with"),
        ("experiment pretraining --resume none --out other", "cannot be used with"),
        ("experiment pretraining --config small.json --prompt naïve", "unknown character 'ï' at position 2"),
        ("experiment pretraining --preset huge", "there is no preset \"huge\""),
    ];
    for (flags, expected) in cases {
        let message = work.fail(flags);
        assert!(message.contains(expected), "{flags}: {message}");
    }
}

#[test]
fn a_pre_training_that_was_interrupted_has_the_report_of_one_that_was_not() {
    let work = Workplace::new();
    let flags = "experiment pretraining --config small.json --batch-size 2";
    work.succeed(&format!("{flags} --steps 9 --out whole"));
    work.succeed(&format!("{flags} --steps 4 --out parts"));
    work.succeed("experiment pretraining --resume parts --steps 9");
    let figures = |run: &str| {
        let text = std::fs::read_to_string(work.path(run).join("figures.json")).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["kernfusion"].clone()
    };
    let [whole, parts] = ["whole", "parts"].map(figures);
    assert_eq!(whole["losses"], parts["losses"]);
    assert_eq!(whole["losses"].as_array().map(Vec::len), Some(9));
    // Five prompts at the end of each part, continued by 100 characters.
    let samples = |side: &Value| side["samples"].as_array().unwrap().clone();
    assert_eq!(samples(&parts)[5..], samples(&whole)[..]);
    let all = samples(&whole);
    assert_eq!(all.len(), 5);
    assert!(all.iter().all(|sample| sample["text"].as_str().unwrap().chars().count() == 100));
    let page = std::fs::read_to_string(work.path("whole/report.html")).unwrap();
    assert!(page.contains("dropout 0.3") && page.contains("after 9 steps") && page.contains("<svg"));
    // A run whose beginning is nowhere has no report.
    std::fs::remove_file(work.path("parts/losses.jsonl")).unwrap();
    let message = work.fail("experiment pretraining --resume parts --steps 10");
    assert!(
        message.contains("parts/losses.jsonl is not the log of a whole run: step 1 is missing"),
        "{message}"
    );
    let out = work.succeed(&format!("{flags} --steps 2 --out two --prompt The --prompt A"));
    assert!(out.contains("sample:\n    The"), "{out}");
}

#[test]
fn a_device_repeats_both_experiments() {
    let work = Workplace::new();
    let run = handed_over(&work);
    work.write("reference.jsonl", reference(&run, &losses(&work)));
    let Some(out) = succeed(&work, &format!("{VERIFY} --reference reference.jsonl"), &[]) else { return };
    assert!(out.contains("within 1e-3"), "{out}");
    let figures = |run: &str| {
        let text = std::fs::read_to_string(work.path(run).join("figures.json")).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()
    };
    assert!(figures("run")["kernfusion"]["peak_mib"].as_f64() > Some(0.0), "{}", figures("run"));
    let flags = "experiment pretraining --config small.json --batch-size 2 --steps 4 --prompt The --out";
    work.succeed(&format!("{flags} cpu"));
    succeed(&work, &format!("{flags} cuda"), &[]).unwrap();
    let losses = |run: &str| {
        let losses = figures(run)["kernfusion"]["losses"].as_array().unwrap().clone();
        losses.iter().map(|loss| loss.as_f64().unwrap()).collect::<Vec<_>>()
    };
    let [expected, found] = ["cpu", "cuda"].map(losses);
    assert!(
        expected.len() == 4 && expected.iter().zip(&found).all(|(a, b)| (a - b).abs() < 1e-3),
        "{expected:?} {found:?}"
    );
    let page = std::fs::read_to_string(work.path("cuda/report.html")).unwrap();
    assert!(page.contains("simulated device"), "the report says where it ran");
}

/// The real thing, where `KERNFUSION_PYTHON` names a Python that has PyTorch.
#[test]
fn a_verification_against_pytorch_itself() {
    let Some(python) = std::env::var_os("KERNFUSION_PYTHON") else {
        eprintln!("skipped: KERNFUSION_PYTHON names no Python with PyTorch");
        return;
    };
    let work = Workplace::new();
    let mut command =
        work.command("experiment verification --preset tiny --steps 10 --bound 1e-5 --out run --python");
    let ended = end(command.arg(python).spawn().unwrap());
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.out.contains("PyTorch's loss") && ended.out.contains("within 1e-5"), "{}", ended.out);
}
