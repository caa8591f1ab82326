//! How long a step of several ranks takes, on paper: kernels at a share of their floors' rates, and messages over a link.
//!
//! ```text
//! compute        Σ floors of a rank's kernels / efficiency
//! communication  Σ over collectives: messages · latency + bytes sent / bandwidth
//! step           compute + communication
//! ```
//!
//! It is the order of what runs: a rank exchanges when its last microbatch is computed, one collective after another, and each by messages to one
//! rank after another; nothing is hidden. An `all_reduce` of B bytes among N ranks is 2·(N − 1) messages of B / N bytes. In memory a collective
//! reads what it gives and writes what it gets, which its floor counts.
//!
//! Nothing here is measured but, perhaps, the [`Peaks`]. Links are alike, have their full bandwidth in both directions while all of them are in use,
//! and no rank waits for a slower one.

use crate::roofline::floor;
use kernfusion_codegen::Peaks;
use kernfusion_ir::kernel::Plan;
use kernfusion_ir::{Collective, TensorType};

/// What connects a rank to all others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Bytes a second that a rank sends, while it receives as many.
    pub bandwidth: f64,
    /// Seconds that a message takes beside those of its bytes.
    pub latency: f64,
}

impl Link {
    /// Seconds of a collective whose operand has this type.
    pub fn seconds(&self, op: Collective, operand: &TensorType) -> f64 {
        op.messages() as f64 * self.latency + op.bytes_sent(operand) as f64 / self.bandwidth
    }
}

/// How fast a rank computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Machine {
    /// What it can do at most.
    pub peaks: Peaks,
    /// The share of a step's time that its floors are, above 0 and at most 1.
    pub efficiency: f64,
}

/// What a step of a rank takes, all times in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepTime {
    /// The sum of all kernels' floors.
    pub floors: f64,
    /// What kernels take.
    pub compute: f64,
    /// What messages take.
    pub communication: f64,
    /// How many collectives there are.
    pub collectives: usize,
    /// Messages that the rank sends.
    pub messages: usize,
    /// Bytes that it sends.
    pub bytes_sent: usize,
}

impl StepTime {
    /// The time of a rank whose step runs each plan so many times.
    pub fn new<'a>(
        plans: impl IntoIterator<Item = (&'a Plan, usize)>,
        machine: &Machine,
        link: &Link,
    ) -> StepTime {
        let mut time = StepTime::default();
        for (Plan { graph, .. }, times) in plans {
            for kernel in &graph.kernels {
                time.floors += times as f64 * floor(graph, kernel, &machine.peaks, "f32").seconds;
                if let Some(call) = kernel.collective() {
                    let operand = &graph.buffer(call.from).ty;
                    time.communication += times as f64 * link.seconds(call.op, operand);
                    time.collectives += times;
                    time.messages += times * call.op.messages();
                    time.bytes_sent += times * call.op.bytes_sent(operand);
                }
            }
        }
        StepTime { compute: time.floors / machine.efficiency, ..time }
    }

    /// The whole step.
    pub fn seconds(&self) -> f64 {
        self.compute + self.communication
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::{MemoryStrategy, Target, lower, planned_ranks};
    use crate::roofline::NOMINAL;
    use kernfusion_ir::{DType, Exchange, Graph};

    const LINK: Link = Link { bandwidth: 1e9, latency: 1e-3 };

    #[test]
    fn a_collective_is_a_message_to_each_other_rank_and_one_more_where_sums_are_gathered() {
        // 4,000 bytes among 4 ranks: parts of 1,000, which take 1 µs.
        let ty = TensorType::new(DType::F32, [1000]);
        let seconds = |exchange| LINK.seconds(Collective { exchange, ranks: 4 }, &ty);
        let close =
            |found: f64, expected: f64| assert!((found - expected).abs() < 1e-12, "{found} {expected}");
        close(seconds(Exchange::AllReduce), 6.0 * (1e-3 + 1e-6));
        close(seconds(Exchange::ReduceScatter), 3.0 * (1e-3 + 1e-6));
        // Each rank gives a part.
        close(seconds(Exchange::AllGather), 3.0 * (1e-3 + 4e-6));
        close(LINK.seconds(Collective { exchange: Exchange::AllReduce, ranks: 1 }, &ty), 0.0);
    }

    /// A step over 8 rows whose gradient has 1,024 × 256 numbers, on two ranks: every number below is counted by hand.
    #[test]
    fn a_step_is_its_floors_and_its_messages() {
        let text = r#"graph "step" {
            %0 = input {name = "x", dtype = f32, shape = [8, 1024, 256]} : f32[8,1024,256]
            %1 = state {name = "w", dtype = f32, shape = [1024, 256]} : f32[1024,256]
            %2 = reduce %0 {op = sum, axes = [0]} : f32[1024,256]
            %3 = sub %1, %2 : f32[1024,256]
            update "w" = %3
        }"#;
        let graph = Graph::parse_verified(text).expect("a graph");
        let machine = Machine { peaks: NOMINAL, efficiency: 0.5 };
        let time = |target: &Target, microbatches| {
            let memory = MemoryStrategy { microbatches, recompute: false };
            let lowered = lower(&graph, target, memory).expect("lowers");
            StepTime::new(lowered.program.plans(), &machine, &LINK)
        };
        let mib = f64::from(1 << 20);
        let close =
            |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
        // Alone, at 20 GB/s: x is read and its sum written; the sum and w are read and w is written.
        let alone = time(&Target::cpu(), 1);
        close(alone.floors, (8.0 + 1.0 + 3.0) * mib / 20e9);
        close(alone.compute, 2.0 * alone.floors);
        assert_eq!((alone.communication, alone.messages, alone.bytes_sent), (0.0, 0, 0));
        // On two ranks, for each of two microbatches: two of eight rows are read and their sum written; it, the accumulator and the four bytes
        // of the microbatch's number are read, and the accumulator written. Then the collective reads and writes a sum; it and w are read and
        // w is written.
        let target = Target::cpu().ranks(planned_ranks(2));
        let two = time(&target, 2);
        let microbatch = (2.0 + 1.0) * mib + 3.0 * mib + 4.0;
        close(two.floors, (2.0 * microbatch + 2.0 * mib + 3.0 * mib) / 20e9);
        assert_eq!((two.collectives, two.messages, two.bytes_sent), (1, 2, 1 << 20));
        close(two.communication, 2.0 * (1e-3 + mib / 2.0 / 1e9));
        close(two.seconds(), two.compute + two.communication);
    }

    #[test]
    fn a_planned_rank_runs_as_far_as_its_first_exchange() {
        let text = r#"graph "sum" {
            %0 = input {name = "x", dtype = f32, shape = [4]} : f32[4]
            %1 = reduce %0 {op = sum, axes = [0]} : f32[]
            output "y" = %1
        }"#;
        let graph = Graph::parse_verified(text).expect("a graph");
        let target = Target::cpu().ranks(planned_ranks(4));
        let states = target.states();
        let mut compiled = crate::compile::compile(&graph, &states, &target).expect("compiles");
        let x = crate::HostTensor::new([4], [1.0f32; 4]);
        let error = compiled.run(&[("x", &x)]).expect_err("the others are not there");
        assert!(error.to_string().contains("planned for 4 ranks exchanges nothing"), "{error}");
    }
}
