//! Training by several processes, under each MPI that is installed: losses and checkpoints are those of one process, bit for bit.

use crate::workplace::{Ended, Workplace, end, message};
use std::process::{Command, Stdio};

/// Launchers by name, with what they need to start more processes than there are cores, as root, too.
const LAUNCHERS: [(&str, &[&str]); 2] =
    [("mpirun.openmpi", &["--allow-run-as-root", "--oversubscribe"]), ("mpiexec.hydra", &[])];

/// Those that are here; `.ci/run` installs all of them.
fn launchers() -> Vec<(&'static str, &'static [&'static str])> {
    let is_here = |name: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
    };
    let found: Vec<_> = LAUNCHERS.into_iter().filter(|(name, _)| is_here(name)).collect();
    assert!(found.len() == LAUNCHERS.len() || std::env::var_os("CI").is_none(), "CI has both MPIs");
    found
}

/// The program in several processes, the last of which may have other flags.
fn under(work: &Workplace, launcher: (&str, &[&str]), ranks: [(usize, &str); 2]) -> Ended {
    let mut command = Command::new(launcher.0);
    command.args(launcher.1);
    for (number, (count, flags)) in ranks.into_iter().filter(|(count, _)| *count > 0).enumerate() {
        command.args((number > 0).then_some(":")).args(["-n", &count.to_string()]);
        command.arg(env!("CARGO_BIN_EXE_kernfusion")).args(flags.split_whitespace());
    }
    command.current_dir(work.0.path()).env("KERNFUSION_DATA", work.0.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    end(command.spawn().unwrap())
}

fn succeed(work: &Workplace, launcher: (&str, &[&str]), ranks: usize, flags: &str) -> String {
    let Ended { code, out, err } = under(work, launcher, [(ranks, flags), (0, "")]);
    assert_eq!(code, Some(0), "{} {flags}: {err}", launcher.0);
    out
}

fn flags(out: &str, more: &str) -> String {
    let steps = if more.contains("--steps") { "" } else { "--steps 4" };
    format!(
        "train --config small.json --dropout 0.1 --batch-size 8 {steps} --validate-every 2 --validation-batches 1 --sample-tokens 5 \
         --log {out}.jsonl --out {out} --overwrite {more}"
    )
}

#[test]
fn ranks_train_what_one_process_trains() {
    for (ranks, more) in [(2, "--microbatches 2"), (4, "--microbatches 4 --dtype bf16")] {
        let work = Workplace::new();
        let alone = work.succeed(&flags("alone", more));
        let content = |run: &str| std::fs::read(work.path(run).join("checkpoint.safetensors")).unwrap();
        for launcher in launchers() {
            let out = succeed(&work, launcher, ranks, &flags("ranks", more));
            assert_eq!(work.losses("ranks.jsonl"), work.losses("alone.jsonl"));
            assert!(content("ranks") == content("alone"), "{} has another checkpoint", launcher.0);
            // One process speaks.
            let losses = |out: &str| out.lines().filter(|line| line.contains("validation loss")).count();
            assert_eq!(losses(&out), losses(&alone), "{out}");
        }
    }
}

#[test]
fn a_run_goes_on_with_another_number_of_ranks() {
    let work = Workplace::new();
    work.succeed(&flags("alone", "--microbatches 2"));
    for launcher in launchers() {
        work.succeed(&flags("parts", "--microbatches 2 --steps 2"));
        let out = succeed(&work, launcher, 2, "train --resume parts --steps 4 --log parts.jsonl");
        assert!(out.contains("resumed after step 2"), "{out}");
        let content = |run: &str| std::fs::read(work.path(run).join("checkpoint.safetensors")).unwrap();
        assert!(content("parts") == content("alone"), "{} has another checkpoint", launcher.0);
    }
}

#[test]
fn wrong_use_is_said_once() {
    let work = Workplace::new();
    for launcher in launchers() {
        let said = |ended: Ended, what: &str| {
            assert_ne!(ended.code, Some(0));
            // The launcher has something to say as well.
            let errors: Vec<_> = ended.err.lines().filter(|line| line.contains("error: ")).collect();
            assert!(errors.len() == 1 && errors[0].contains(what), "{}: {}", launcher.0, ended.err);
        };
        let three = under(&work, launcher, [(3, &flags("a", "")), (0, "")]);
        said(three, "a batch of 8 windows cannot be divided among 3 ranks");
        let other = under(&work, launcher, [(1, &flags("b", "")), (1, &flags("b", "--lr 0.5"))]);
        said(other, "rank 1 has other settings than rank 0");
    }
}

#[test]
fn a_missing_library_is_named() {
    let work = Workplace::new();
    let mut command = work.command("train");
    command.env("OMPI_COMM_WORLD_SIZE", "2").env("KERNFUSION_MPI", "libnone.so.7");
    let text = message(end(command.spawn().unwrap()), "train");
    assert!(text.contains("no MPI library can be loaded") && text.contains("libnone.so.7"), "{text}");
}
