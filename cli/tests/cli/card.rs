//! `benches/gpu.sh` as a machine with a card would run it, on the simulated driver, also with kernels that hang, crash or do nothing.

use super::device::driver;
use super::workplace::Workplace;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// A call of the script with the small model: exit codes by step, null for what was skipped, and what it printed.
fn call(
    work: &Workplace,
    name: &str,
    settings: &[(&str, &str)],
) -> Option<(BTreeMap<String, Value>, String)> {
    let folder = driver::folder()?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/gpu.sh");
    let mut command = Command::new("bash");
    command.arg(script).args([name, "results"]).current_dir(work.path(""));
    command.env("KERNFUSION", env!("CARGO_BIN_EXE_kernfusion")).env("KERNFUSION_DATA", work.path(""));
    command.env("LD_LIBRARY_PATH", folder).env("KERNFUSION_NVRTC", folder);
    let shape = format!("{}:2", work.path("small.json").display());
    command.env("PRESETS", shape).env("DTYPES", "f32").env("STEPS", "1").env("TRAIN_STEPS", "3");
    // However slow the machine is.
    command.env("BUDGET", "100000").env("STRETCH", "100");
    // Selftest by itself is tested elsewhere.
    command.env("RANDOM_PROGRAMS", "0").env("CASES", "constant").env("PROCESSES", "2");
    command.envs(settings.iter().copied());
    let output = command.output().expect("bash");
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{name}: {out}{}", String::from_utf8_lossy(&output.stderr));
    let results = std::fs::read_to_string(work.path("results/results.jsonl")).unwrap();
    let rows = results.lines().map(|row| serde_json::from_str::<Value>(row).expect(row));
    let last = rows.map(|row| (row["step"].as_str().expect("a name").to_owned(), row["exit"].clone()));
    Some((last.collect(), out))
}

/// What the archive has.
fn archived(work: &Workplace) -> String {
    let output =
        Command::new("tar").arg("-tzf").arg(work.path("results/results.tar.gz")).output().expect("tar");
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_first_run_on_a_card_is_rehearsed() {
    let work = Workplace::new();
    let steps = (
        "ONLY",
        "^(train-|equal-bits|losses|text|ladder-(constant|map|gather)$|bench-small-2-f32$|profile-)",
    );
    let Some((_, prepared)) = call(&work, "prepare", &[]) else { return };
    assert!(prepared.contains(" cubins and the losses of the CPU: "), "{prepared}");
    // The code of a first call: cubins of the simulated NVRTC, as those of the real one would be.
    let (first, out) = call(&work, "correct", &[steps]).unwrap();
    let expected = [
        "environment",
        "equal-bits",
        "ladder-constant",
        "ladder-gather",
        "ladder-map",
        "losses-beside-the-cpu",
        "text",
        "train-cpu",
        "train-cuda",
        "train-cuda-again",
    ];
    assert_eq!(first.keys().map(String::as_str).collect::<Vec<_>>(), expected, "{out}");
    assert!(first.values().all(|exit| exit == 0), "{first:?} {out}");
    let (second, out) = call(&work, "speed", &[steps]).unwrap();
    assert!(second["bench-small-2-f32"] == 0 && second["profile-small-2-f32"] == 0, "{second:?} {out}");
    assert!(second["table"] == 0 && out.contains("ceilings of simulated device"), "{second:?} {out}");
    let names = archived(&work);
    assert!(names.contains("./results.jsonl") && names.contains("./logs/train-cuda.log"), "{names}");
    assert!(!names.contains("prepared") && !names.contains("run-"), "{names}");
}

#[test]
fn a_call_goes_on_after_kernels_that_hang_crash_or_are_wrong() {
    let work = Workplace::new();
    let steps = ("ONLY", "^ladder-(constant|map|gather)$");
    let hanging = [("ONLY", "^ladder-map$"), ("SIMULATED_HANG", "add"), ("STEP_LIMIT", "6")];
    let Some(_) = call(&work, "correct", &hanging) else { return };
    let faults = [
        ("ONLY", "^ladder-(constant|gather)$"),
        ("SIMULATED_CRASH", "gather"),
        ("SIMULATED_WRONG", "constant"),
    ];
    let (found, out) = call(&work, "correct", &faults).unwrap();
    let exits: Vec<_> = found.iter().map(|(name, exit)| (name.as_str(), exit.as_i64())).collect();
    let expected = [
        ("environment", Some(0)),
        ("ladder-constant", Some(1)),
        ("ladder-constant.waiting", Some(1)),
        ("ladder-gather", Some(134)),
        ("ladder-gather.waiting", Some(134)),
        ("ladder-map", Some(124)),
        ("ladder-map.waiting", Some(124)),
    ];
    assert_eq!(exits, expected, "{out}");
    assert!(out.contains("2 steps ended well, 6 did not"), "{out}");
    assert!(archived(&work).contains("./logs/ladder-map.waiting.log"));
    // The next call repeats what has failed, and what there is no time for is said to be skipped.
    let (again, out) = call(&work, "again", &[steps]).unwrap();
    assert!(again["ladder-map"] == 0 && again["ladder-gather"] == 0, "{again:?} {out}");
    let (late, _) = call(&work, "correct", &[steps, ("BUDGET", "4")]).unwrap();
    assert_eq!(late["ladder-map"], "skipped");
}
