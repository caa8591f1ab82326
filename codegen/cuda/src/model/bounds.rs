//! From what a launch asks of a card to a time: the longest of what each part of the card needs, and of the time that warps take which queue for
//! the parts of a multiprocessor.
//!
//! ```text
//! memory    bytes / (bandwidth · share)
//! l2        bytes between second cache and multiprocessors / rate
//! issue     instructions of a scheduler / 1 a cycle      ┐ of the multiprocessor with the most blocks,
//! pipe      cycles of a quarter's pipe                   │ ⌈blocks / multiprocessors⌉
//! shared    cycles of shared memory and first cache      ┘
//! latency   ⌈blocks / (multiprocessors · resident)⌉ · a block alone
//! ```
//!
//! Few warps keep no part of a multiprocessor busy all of the time: while one computes, another waits for what a third has. Mean value analysis of
//! a closed network of queues (Reiser and Lavenberg, 1980) says how long they take. On an H100, attention took 1.5 and 1.9 times
//! what the longest parts of its kernels do, and 1.09 and 0.96 times this (f32 and bf16, docs/benchmarks/gpu.md). Products of warpgroups whose operands all lie in shared memory go on by
//! themselves, and no warp queues for them.

use super::access::SECTOR;
use super::card::{Card, LAUNCH_GAP, MEMORY_SHARE, SCHEDULERS};
use super::occupancy::WARP;
use super::pipe::PIPES;

/// What a launch's time comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bound {
    /// The bandwidth of the card's memory.
    Memory,
    /// The bandwidth of the second cache.
    L2,
    /// Schedulers, which issue an instruction a cycle.
    Issue,
    /// Arithmetic of `f32`.
    F32,
    /// Whole numbers and logic.
    Integer,
    /// Special functions and conversions.
    Special,
    /// Arithmetic of `f64`.
    F64,
    /// Tensor cores.
    Tensor,
    /// Shared memory and the first cache.
    Shared,
    /// Waits that resident warps do not hide.
    Latency,
    /// Warps that wait for parts of a multiprocessor which others have.
    Queues,
    /// Too few blocks: more than half of the multiprocessors' time is idle.
    Blocks,
}

impl Bound {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Bound::Memory => "memory",
            Bound::L2 => "L2",
            Bound::Issue => "issue",
            Bound::F32 => "f32",
            Bound::Integer => "integer",
            Bound::Special => "special",
            Bound::F64 => "f64",
            Bound::Tensor => "tensor",
            Bound::Shared => "shared",
            Bound::Latency => "latency",
            Bound::Queues => "queues",
            Bound::Blocks => "blocks",
        }
    }
}

/// What a launch asks of a card, for an average block.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Work {
    /// Blocks.
    pub blocks: usize,
    /// Threads of each.
    pub threads: usize,
    /// Blocks that a multiprocessor holds at a time.
    pub resident: usize,
    /// Bytes of memory, each read once and written once.
    pub bytes: f64,
    /// Pieces of 32 bytes that a warp moves from and to the second cache.
    pub sectors: f64,
    /// Instructions of a warp.
    pub instructions: f64,
    /// Cycles that a warp keeps each pipe of its quarter busy.
    pub busy: [f64; PIPES],
    /// Cycles that a warp keeps shared memory and the first cache busy.
    pub l1: f64,
    /// Cycles of a block alone on a multiprocessor.
    pub alone: f64,
    /// Whether its products go on by themselves, while its warps do something else.
    pub goes_on: bool,
}

/// A launch is said to come from its busiest part where queues make it take no longer than this many times as long.
const NEARLY_ALL: f64 = 1.1;

/// Of each pipe, in its order.
const OF_PIPES: [Bound; PIPES] =
    [Bound::F32, Bound::Integer, Bound::Integer, Bound::Special, Bound::F64, Bound::Tensor];

impl Work {
    /// How often all multiprocessors are filled with blocks.
    pub fn waves(&self, card: &Card) -> f64 {
        self.blocks as f64 / (card.multiprocessors * self.resident.max(1)) as f64
    }

    /// Seconds that each part of the card needs, and those with queues.
    pub fn bounds(&self, card: &Card) -> Vec<(Bound, f64)> {
        let mut bounds = self.parts(card);
        bounds.push((Bound::Queues, self.queueing(card)));
        bounds
    }

    /// Seconds that each part of the card needs.
    fn parts(&self, card: &Card) -> Vec<(Bound, f64)> {
        let warps = self.threads.div_ceil(WARP);
        let busiest = self.blocks.div_ceil(card.multiprocessors) * warps;
        let of_scheduler = busiest.div_ceil(SCHEDULERS) as f64;
        let all = (self.blocks * warps) as f64;
        let cycles = [
            (Bound::L2, self.sectors * SECTOR as f64 * all / card.l2_bytes),
            (Bound::Issue, self.instructions * of_scheduler),
            (Bound::Shared, self.l1 * busiest as f64),
            (Bound::Latency, self.waves(card).ceil() * self.alone),
        ];
        let pipes = OF_PIPES.into_iter().zip(self.busy).map(|(bound, cycles)| (bound, cycles * of_scheduler));
        let timed = cycles.into_iter().chain(pipes).map(|(bound, cycles)| (bound, cycles / card.clock));
        std::iter::once((Bound::Memory, self.bytes / (card.bandwidth * MEMORY_SHARE))).chain(timed).collect()
    }

    /// Seconds of the multiprocessor with the most blocks, where a scheduler's warps queue for its parts; none where products go on by themselves.
    fn queueing(&self, card: &Card) -> f64 {
        if self.goes_on {
            return 0.0;
        }
        let warps = self.threads.div_ceil(WARP);
        let of_multiprocessor = self.blocks.div_ceil(card.multiprocessors);
        let per_scheduler = |blocks: usize| (blocks * warps).div_ceil(SCHEDULERS);
        let at_once = per_scheduler(self.resident.clamp(1, of_multiprocessor.max(1)));
        let parts: Vec<f64> =
            self.busy.into_iter().chain([self.instructions, self.l1 * SCHEDULERS as f64]).collect();
        // The time of a block alone in which it keeps no part busy.
        let waiting = (self.alone - parts.iter().sum::<f64>()).max(0.0);
        let mut others_at_parts = vec![0.0; parts.len()];
        let mut round = 0.0;
        for warps in 1..=at_once {
            // A warp that comes to a part finds as many others there as there are on average with one warp less.
            let at_parts: Vec<f64> =
                parts.iter().zip(&others_at_parts).map(|(part, others)| part * (1.0 + others)).collect();
            round = waiting + at_parts.iter().sum::<f64>();
            others_at_parts = at_parts.iter().map(|time| warps as f64 * time / round).collect();
        }
        per_scheduler(of_multiprocessor) as f64 / at_once.max(1) as f64 * round / card.clock
    }

    /// Seconds from this launch to the next one, and what they come from.
    pub fn time(&self, card: &Card) -> (Bound, f64) {
        let longest = self.parts(card).into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let (busiest, longest) = longest.expect("there are parts");
        let queues = self.queueing(card);
        let bound = if queues > NEARLY_ALL * longest { Bound::Queues } else { busiest };
        let seconds = longest.max(queues);
        let is_idle = 2 * self.blocks < self.blocks.div_ceil(card.multiprocessors) * card.multiprocessors;
        let is_everywhere = matches!(bound, Bound::Memory | Bound::L2);
        let bound = if is_idle && !is_everywhere { Bound::Blocks } else { bound };
        (bound, seconds + LAUNCH_GAP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::pipe::Pipe;

    fn h100() -> &'static Card {
        Card::named("h100").expect("a card")
    }

    /// Eight waves of blocks with nothing to do.
    fn idle() -> Work {
        Work { blocks: 132 * 16, threads: 256, resident: 2, ..Work::default() }
    }

    #[track_caller]
    fn check(work: Work, bound: Bound, cycles: f64) {
        let (found, seconds) = work.time(h100());
        assert_eq!(found, bound, "{:?}", work.bounds(h100()));
        let expected = cycles / 1.83e9 + LAUNCH_GAP;
        assert!((seconds / expected - 1.0).abs() < 1e-9, "{seconds} {expected}");
    }

    /// Sixteen blocks of eight warps on each multiprocessor: 128 warps, 32 of each scheduler.
    #[test]
    fn each_part_of_a_card_can_be_what_takes_longest() {
        let of_pipe = |pipe: Pipe, cycles| {
            let mut work = idle();
            work.busy[pipe as usize] = cycles;
            work
        };
        check(Work { instructions: 100.0, ..idle() }, Bound::Issue, 3200.0);
        check(of_pipe(Pipe::F32, 100.0), Bound::F32, 3200.0);
        check(of_pipe(Pipe::Multiply, 100.0), Bound::Integer, 3200.0);
        check(of_pipe(Pipe::Integer, 100.0), Bound::Integer, 3200.0);
        check(of_pipe(Pipe::Special, 100.0), Bound::Special, 3200.0);
        check(of_pipe(Pipe::F64, 100.0), Bound::F64, 3200.0);
        check(of_pipe(Pipe::Tensor, 100.0), Bound::Tensor, 3200.0);
        check(Work { l1: 100.0, ..idle() }, Bound::Shared, 12_800.0);
        check(Work { alone: 1000.0, ..idle() }, Bound::Latency, 8000.0);
        check(Work { sectors: 100.0, ..idle() }, Bound::L2, 100.0 * 32.0 * 132.0 * 128.0 / 4472.0);
        let bytes = 1e9;
        check(Work { bytes, ..idle() }, Bound::Memory, bytes / (3.35e12 * 0.92) * 1.83e9);
    }

    /// With equal work at each of two parts, one warp of n finds (n − 1) / 2 others at either: a round takes n + 1 times the work at one.
    #[test]
    fn warps_queue_for_parts_that_are_equally_busy() {
        let mut work = Work { instructions: 100.0, ..idle() };
        work.busy[Pipe::Integer as usize] = 100.0;
        // 32 warps of each scheduler, four at a time.
        check(work, Bound::Queues, 32.0 / 4.0 * 100.0 * 5.0);
        check(Work { goes_on: true, ..work }, Bound::Integer, 3200.0);
        // A block alone waits for most of its time, and keeps nobody waiting.
        let alone = Work { resident: 1, threads: 128, alone: 1000.0, ..work };
        check(alone, Bound::Latency, 16_000.0);
    }

    #[test]
    fn blocks_for_less_than_half_of_the_multiprocessors_are_too_few() {
        let few = Work { blocks: 36, instructions: 1000.0, ..idle() };
        check(few, Bound::Blocks, 2000.0);
        // One more than all: half of the time a single one works.
        check(Work { blocks: 133, ..few }, Bound::Issue, 4000.0);
        check(Work { blocks: 66, ..few }, Bound::Issue, 2000.0);
        assert_eq!(Work { blocks: 132, ..few }.waves(h100()), 0.5);
    }
}
