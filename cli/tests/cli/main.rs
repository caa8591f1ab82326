//! The command line as users meet it: the built program in a process of its own.
//!
//! Every run has a model of one small layer, so that each takes a fraction of a second.

mod ahead_of_time;
mod bad_input;
mod bisecting;
#[cfg(feature = "cuda")]
mod card;
mod destinations;
#[cfg(feature = "cuda")]
mod device;
mod experiments;
mod fixture;
mod imported;
mod memory;
#[cfg(feature = "cuda")]
mod modelled;
mod models;
mod profile;
mod programs;
mod published;
mod ranks;
mod scaling;
mod tokens;
mod training;
mod tuning;
mod watching;
mod workplace;

use std::io::Read;
use workplace::{TRAIN, Workplace, end};

#[test]
fn every_command_has_help_with_an_example() {
    let work = Workplace::new();
    let help = work.succeed("--help");
    for command in [
        "train",
        "report",
        "experiment",
        "generate",
        "score",
        "import",
        "export",
        "bench",
        "compile",
        "dump",
        "bisect",
        "opt",
        "run",
        "explain",
        "profile",
        "selftest",
        "data",
        "presets",
    ] {
        assert!(help.contains(&format!("  {command}")), "{help}");
        let help = work.succeed(&format!("{command} --help"));
        assert!(help.contains("Example"), "{help}");
    }
    assert!(work.succeed("--version").starts_with("kernfusion "));
}

/// `kernfusion … | head -c 1`: the reader goes away, and that is no error.
#[test]
fn a_reader_that_goes_away_is_no_error() {
    let work = Workplace::new();
    let cases = ["dump --stage grad", "explain --refusals 0", "presets --json", "--help", "opt --list"];
    let training = format!("{TRAIN} --steps 30");
    for flags in cases.iter().copied().chain([training.as_str()]) {
        let mut child = work.command(flags).spawn().unwrap();
        child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let ended = end(child);
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{flags}");
    }
}
