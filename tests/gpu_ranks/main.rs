//! Training steps of several ranks on GPUs, where driver and NCCL are simulations: each rank is a thread with a device of its own, and has the
//! bits that one device has in as many microbatches.

#[path = "../../codegen/cuda/tests/driver/mod.rs"]
mod driver;
#[allow(dead_code, reason = "tests of the CPU look at more of what steps leave")]
#[path = "../steps.rs"]
mod steps;

use kernfusion::compile::{Collectives, Communicator, Precision, Target, thread_ranks};
use kernfusion_cuda::Device;
use std::sync::{Arc, OnceLock};
use steps::{Ran, Steps, small};

/// Whether the simulation could be built. Its libraries are loaded first, so that later lookups by name find these.
fn is_there() -> bool {
    static LOADED: OnceLock<bool> = OnceLock::new();
    let load = || {
        let Some(folder) = driver::folder() else { return false };
        // SAFETY: it was built here, and does nothing when it is loaded.
        let library = unsafe { libloading::Library::new(folder.join("libcuda.so")) };
        std::mem::forget(library.expect("the simulated driver"));
        // SAFETY: no other thread of these tests has read the environment yet; they all wait here.
        unsafe {
            std::env::set_var("KERNFUSION_NVRTC", folder);
            std::env::set_var("KERNFUSION_NCCL", folder.join("libnccl.so.2"));
            std::env::set_var("KERNFUSION_CACHE", folder.join("cache"));
            std::env::set_var("SIMULATED_DEVICES", "2");
        }
        true
    };
    *LOADED.get_or_init(load)
}

/// What each of two ranks has in the end.
fn run_ranks(steps: &Steps, target: &Target) -> Vec<Ran> {
    std::thread::scope(|scope| {
        let rank = |communicator: Arc<dyn Communicator>| {
            scope.spawn(move || {
                let device = Device::open(communicator.rank()).unwrap();
                steps.run(&target.clone().on(device).ranks(communicator))
            })
        };
        let handles: Vec<_> = thread_ranks(2).into_iter().map(rank).collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    })
}

#[test]
fn ranks_have_the_bits_of_as_many_microbatches() {
    if !is_there() {
        return;
    }
    // Three rows for each rank; of the optimizer's state, a part for each.
    for (precision, clip, is_sharded) in
        [(Precision::F32, Some(0.5), false), (Precision::F32, None, true), (Precision::Bf16, None, true)]
    {
        let steps = Steps { clip, ..Steps::new(small(), 6) };
        let target = Target::cpu().precision(precision);
        let alone = steps.run(&target.clone().on(Device::open(0).unwrap()).microbatches(2));
        let ranks = run_ranks(&steps, &target.microbatches(1).shard_optimizer(is_sharded));
        for (rank, ran) in ranks.iter().enumerate() {
            assert!(ran.equals(&alone), "rank {rank}: {:?}, alone {:?}", ran.numbers, alone.numbers);
            let share = ran.optimizer_bytes as f64 / alone.optimizer_bytes as f64;
            let expected = if is_sharded { 0.5 } else { 1.0 };
            assert!((share - expected).abs() < 0.02, "rank {rank} keeps {share} of all moments");
        }
    }
}

/// Gradients as bf16, and NCCL's own sums, of which those of two ranks have one order only.
#[test]
fn ranks_exchange_as_bf16_and_by_the_librarys_sums() {
    if !is_there() {
        return;
    }
    let steps = Steps { clip: None, ..Steps::new(small(), 6) };
    let target = Target::cpu().microbatches(1);
    let ordered = run_ranks(&steps, &target);
    let cpus = |target: &Target| {
        std::thread::scope(|scope| {
            let run = |rank| {
                let target = target.clone().threads(1).ranks(rank);
                let steps = &steps;
                scope.spawn(move || steps.run(&target))
            };
            let ranks: Vec<_> = thread_ranks(2).into_iter().map(run).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).next().unwrap()
        })
    };
    let rounded = target.clone().bf16_exchange(true);
    let on_cpus = cpus(&rounded);
    for is_sharded in [false, true] {
        let summed = target.clone().collectives(Collectives::Library).shard_optimizer(is_sharded);
        assert!(run_ranks(&steps, &summed).iter().all(|ran| ran.equals(&ordered[0])));
        let found = run_ranks(&steps, &rounded.clone().shard_optimizer(is_sharded));
        assert!(found[0].equals(&found[1]) && !found[0].equals(&ordered[0]));
        for (expected, found) in on_cpus.numbers.iter().zip(&found[0].numbers) {
            assert!((expected - found).abs() < 1e-3 * expected.abs(), "{found} instead of {expected}");
        }
    }
}

#[test]
fn several_microbatches_of_each_rank_change_rounding_only() {
    if !is_there() {
        return;
    }
    let steps = Steps::new(small(), 8);
    let target = Target::cpu().microbatches(2);
    let alone = steps.run(&target.clone().microbatches(1));
    let ranks = run_ranks(&steps, &target);
    assert!(ranks[0].equals(&ranks[1]));
    for (expected, found) in alone.numbers.iter().zip(&ranks[0].numbers) {
        assert!((expected - found).abs() < 1e-4 * expected.abs(), "{found} instead of {expected}");
    }
}
