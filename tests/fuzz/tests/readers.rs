//! A short run of all readers; `KERNFUSION_FUZZ_SEED` takes another seed, `cargo run -p kernfusion-fuzz` a longer run.

use kernfusion_fuzz::allocator::Counted;
use kernfusion_fuzz::{Outcome, READERS, run};

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// Inputs of each reader: a share of what is quick, a few of what is not.
const INPUTS: u64 = 8;

// One test, since memory is counted for the whole process.
#[test]
fn bad_input_is_refused_with_one_error() {
    let seed = std::env::var("KERNFUSION_FUZZ_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20);
    let place = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    for reader in READERS {
        let seeds = (reader.seeds)();
        let (mut read, mut refused) = (0, 0);
        for number in 0..INPUTS * reader.share {
            match run(reader, &seeds, seed, number, place.path()) {
                Outcome::Read => read += 1,
                Outcome::Refused(_) => refused += 1,
                Outcome::Wrong(finding) => {
                    wrong.push(format!("{}, input {number}: {}", reader.name, finding.fault))
                }
            }
        }
        assert!(read > 0 || reader.name == "reference", "{}: some changes do no harm", reader.name);
        assert!(refused > 0, "{}: some changes do harm", reader.name);
    }
    assert!(wrong.is_empty(), "seed {seed}:\n{}", wrong.join("\n"));
}
