//! A process that is killed at any instant.

use crate::files::{RESUME, TRAIN, check_goes_on, whole};
use crate::workplace::Workplace;
use kernfusion_ir::samples::Draws;
use kernfusion_lm::checkpoint::{CHECKPOINT_FILE, Checkpoint};
use std::time::{Duration, Instant};

/// How often a run is killed.
fn kills() -> usize {
    std::env::var("KERNFUSION_KILLS").map_or(20, |count| count.parse().expect("KERNFUSION_KILLS is a count"))
}

/// Instants are drawn over the time of a whole run, so kills fall into its beginning, its checkpoints and its logs alike; each is
/// followed by another run, which may be killed as well or goes on to the end.
#[test]
fn a_run_killed_at_any_instant_goes_on_as_if_it_had_not_been() {
    let whole = whole();
    let mut draws = Draws::new(1);
    let (mut loaded, mut work) = (0, Workplace::new());
    let start = Instant::now();
    work.succeed(TRAIN);
    let duration = start.elapsed().as_micros() as usize;
    work = Workplace::new();
    for kill in 0..kills() {
        let file = work.path("run").join(CHECKPOINT_FILE);
        let flags = if file.exists() { RESUME.into() } else { format!("{TRAIN} --overwrite") };
        let mut child = work.command(&flags).spawn().unwrap();
        let rows = || std::fs::read_to_string(work.path("copy.jsonl")).map_or(0, |text| text.lines().count());
        // Every second kill falls among the steps, the others anywhere.
        let enough = draws.below(8);
        while kill % 2 == 1 && rows() < enough && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_micros(100));
        }
        let most = if kill % 2 == 1 { 3000 } else { duration };
        std::thread::sleep(Duration::from_micros(draws.below(most) as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        if file.exists() {
            Checkpoint::load(&work.path("run")).unwrap_or_else(|error| panic!("kill {kill}: {error}"));
            loaded += 1;
        }
        if kill % 4 == 3 {
            check_goes_on(&work, &whole);
            work = Workplace::new();
        }
    }
    check_goes_on(&work, &whole);
    eprintln!("{} kills, {loaded} checkpoints loaded", kills());
}
