//! Memory and threads that the system does not give, and clocks that jump.

use crate::files::{TRAIN, whole};
use crate::shim::{Fault, NO_SPACE, Tried, library, run};
use crate::workplace::{Workplace, end, message};
use kernfusion_lm::checkpoint::CHECKPOINT_FILE;

/// What commands of each kind take.
fn commands() -> [String; 4] {
    [
        format!("{TRAIN} --overwrite"),
        format!(
            "{} --overwrite",
            TRAIN
                .replace("--mode eager", "")
                .replace("--out run", "--out compiled")
                .replace("copy", "compiled")
        ),
        "generate --checkpoint trained --tokens 3 --threads 2".into(),
        "bench --config small.json --batch-size 1 --steps 1 --warmup 0 --threads 2".into(),
    ]
}

fn workplace() -> Workplace {
    let work = Workplace::new();
    work.succeed(&TRAIN.replace("--out run", "--out trained").replace("--log copy.jsonl", ""));
    work
}

/// Lets one reservation after another fail, and says how many there were.
fn each(calls: &str, judge: &mut dyn FnMut(&str, Tried)) -> usize {
    let Some(library) = library() else { return usize::MAX };
    let (work, mut faults) = (workplace(), 0);
    for flags in commands() {
        for number in 1.. {
            let fault = Fault { text: "", ..NO_SPACE };
            let tried = run(&work, library, &flags, calls, &number.to_string(), fault);
            if tried.failed.is_none() {
                break;
            }
            faults += 1;
            judge(&flags, tried);
        }
    }
    eprintln!("{faults} faults of {calls}");
    faults
}

#[test]
fn memory_that_is_refused_is_an_error_with_its_size() {
    let faults = each("mmap,posix_memalign", &mut |flags, Tried { ended, failed }| {
        let (call, _) = failed.unwrap();
        if ended.code == Some(0) {
            return;
        }
        let message = message(ended, flags);
        assert!(message.contains("memory"), "{flags}: {call}: {message}");
    });
    assert!(faults > 8, "{faults}");
}

#[test]
fn threads_that_do_not_start_are_an_error_or_fewer_threads() {
    let whole = whole();
    let mut fewer = 0;
    let faults = each("pthread_create", &mut |flags, Tried { ended, .. }| match ended.code {
        Some(0) => fewer += 1,
        _ => assert!(message(ended, flags).contains("temporarily unavailable")),
    });
    assert!(faults > 2, "{faults}");
    let Some(library) = library() else { return };
    // A run with one thread less has the same numbers.
    let work = Workplace::new();
    let flags = TRAIN.replace("--threads 1", "--threads 3");
    let fault = Fault { text: "", ..NO_SPACE };
    let ends: Vec<_> = (1..=3)
        .map(|number| {
            run(&work, library, &format!("{flags} --overwrite"), "pthread_create", &number.to_string(), fault)
        })
        .filter(|tried| tried.ended.code == Some(0))
        .map(|_| std::fs::read(work.path("run").join(CHECKPOINT_FILE)).unwrap())
        .collect();
    assert!(ends.len() >= 2 && ends.iter().all(|bytes| *bytes == whole), "{} {fewer}", ends.len());
}

#[test]
fn clocks_that_jump_change_nothing() {
    let Some(library) = library() else { return };
    let work = Workplace::new();
    let mut command = work.command(TRAIN);
    let ended = end(command.env("LD_PRELOAD", library).env("FAULT_CLOCK", "jump").spawn().unwrap());
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    assert!(std::fs::read(work.path("run").join(CHECKPOINT_FILE)).unwrap() == whole());
    work.succeed("report run");
}
