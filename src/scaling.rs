//! How long a step of several ranks takes, on paper: kernels at a share of their floors' rates, and messages over a link.
//!
//! ```text
//! compute        Σ floors of a rank's kernels / efficiency
//! communication  Σ over exchanges: messages · latency + bytes sent / bandwidth
//! step           when the last kernel has run: each after the one before, a collective after its exchange
//! ```
//!
//! It is the order of what runs. Sums are exchanged in [buckets](kernfusion_ir::kernel::Bucket), each as soon as the last microbatch has computed
//! its sums, one after another, while backward goes on; everything else when its kernel comes. An `all_reduce` of B bytes among N ranks is 2·(N − 1)
//! messages of B / N bytes, one after another. In memory a collective reads what it gives and writes what it gets, which its floor counts.
//!
//! Nothing here is measured but, perhaps, the [`Peaks`]. Links are alike, have their full bandwidth in both directions while all of them are in use,
//! an exchange takes nothing from what computes beside it, and no rank waits for a slower one.

use crate::roofline::floor;
use kernfusion_codegen::Peaks;
use kernfusion_ir::kernel::{Bucket, BufferRole, CollectiveCall, Plan};
use kernfusion_ir::{Collective, TensorType};
use kernfusion_passes::microbatch::RESERVED;
use std::collections::BTreeMap;

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
    /// The whole step.
    pub step: f64,
    /// How many collectives there are.
    pub collectives: usize,
    /// In how many exchanges.
    pub exchanges: usize,
    /// Messages that the rank sends.
    pub messages: usize,
    /// Bytes that it sends.
    pub bytes_sent: usize,
}

impl StepTime {
    /// The time of a rank whose step runs each plan so many times: one plan, or a body and a tail.
    pub fn new(plans: &[(&Plan, usize)], machine: &Machine, link: &Link) -> StepTime {
        let mut clock = Clock { machine, link, time: StepTime::default(), free: 0.0 };
        match plans {
            [(body, times), (tail, _)] => {
                let buckets = Bucket::all(body, tail, &sums(body));
                clock.repeat(body, times - 1);
                let mut done = BTreeMap::new();
                clock.run(body, &BTreeMap::new(), |clock, at| {
                    for bucket in buckets.iter().filter(|bucket| bucket.after == at) {
                        let end = clock.exchange(bucket.kernels.iter().map(|&kernel| (*tail, kernel)));
                        done.extend(bucket.kernels.iter().map(|&kernel| (kernel, end)));
                    }
                });
                clock.run(tail, &done, |_, _| {});
            }
            plans => {
                for (plan, times) in plans {
                    (0..*times).for_each(|_| clock.run(plan, &BTreeMap::new(), |_, _| {}));
                }
            }
        }
        clock.time
    }

    /// The whole step.
    pub fn seconds(&self) -> f64 {
        self.step
    }

    /// The share of communication that computing hides.
    pub fn hidden_share(&self) -> f64 {
        if self.communication == 0.0 { 0.0 } else { 1.0 - (self.step - self.compute) / self.communication }
    }
}

/// The states in which a body adds up.
fn sums(body: &Plan) -> Vec<String> {
    let states = body.graph.buffers.iter().filter(|buffer| buffer.role == BufferRole::State);
    states.map(|state| state.name.clone()).filter(|name| name.starts_with(RESERVED)).collect()
}

/// A step as it goes on.
struct Clock<'a> {
    machine: &'a Machine,
    link: &'a Link,
    time: StepTime,
    /// When the link has nothing to do any more.
    free: f64,
}

impl Clock<'_> {
    /// Runs the kernels of a plan, of which some wait for exchanges that have begun before. `after` is told of each kernel that has run, and, by
    /// their number, of the end.
    fn run(&mut self, plan: &Plan, begun: &BTreeMap<usize, f64>, mut after: impl FnMut(&mut Self, usize)) {
        for (at, kernel) in plan.graph.kernels.iter().enumerate() {
            if kernel.collective().is_some() {
                let end = begun.get(&at).copied().unwrap_or_else(|| self.exchange([(plan, at)].into_iter()));
                self.time.step = self.time.step.max(end);
            }
            let seconds = floor(&plan.graph, kernel, &self.machine.peaks, "f32").seconds;
            self.time.floors += seconds;
            self.time.compute += seconds / self.machine.efficiency;
            self.time.step += seconds / self.machine.efficiency;
            after(self, at);
        }
        after(self, plan.graph.kernels.len());
    }

    /// Runs a body, which exchanges nothing, so many times.
    fn repeat(&mut self, body: &Plan, times: usize) {
        let kernels = body.graph.kernels.iter();
        let once: f64 =
            kernels.map(|kernel| floor(&body.graph, kernel, &self.machine.peaks, "f32").seconds).sum();
        let floors = times as f64 * once;
        self.time.floors += floors;
        self.time.compute += floors / self.machine.efficiency;
        self.time.step += floors / self.machine.efficiency;
    }

    /// Begins an exchange of these collectives together, now or when the link is free: when it ends.
    fn exchange<'p>(&mut self, collectives: impl Iterator<Item = (&'p Plan, usize)>) -> f64 {
        let (mut messages, mut bytes) = (0, 0);
        for (plan, at) in collectives {
            let Some(&CollectiveCall { op, from, .. }) = plan.graph.kernels[at].collective() else {
                continue;
            };
            // One message has the parts of all.
            messages = messages.max(op.messages());
            bytes += op.bytes_sent(&plan.graph.buffer(from).ty);
            self.time.collectives += 1;
        }
        let seconds = messages as f64 * self.link.latency + bytes as f64 / self.link.bandwidth;
        self.time.exchanges += 1;
        self.time.messages += messages;
        self.time.bytes_sent += bytes;
        self.time.communication += seconds;
        self.free = self.free.max(self.time.step) + seconds;
        self.free
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
        let seconds = |exchange| LINK.seconds(Collective::new(exchange, 4), &ty);
        let close =
            |found: f64, expected: f64| assert!((found - expected).abs() < 1e-12, "{found} {expected}");
        close(seconds(Exchange::AllReduce), 6.0 * (1e-3 + 1e-6));
        close(seconds(Exchange::ReduceScatter), 3.0 * (1e-3 + 1e-6));
        // Each rank gives a part.
        close(seconds(Exchange::AllGather), 3.0 * (1e-3 + 4e-6));
        close(LINK.seconds(Collective::new(Exchange::AllReduce, 1), &ty), 0.0);
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
            StepTime::new(&lowered.program.plans().collect::<Vec<_>>(), &machine, &LINK)
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
        // The sum is there with the last kernel of the last microbatch, so nothing is hidden.
        close(two.seconds(), two.compute + two.communication);
        assert!(two.hidden_share().abs() < 1e-9);
    }

    /// Two sums, of which one is there before the other is computed.
    #[test]
    fn a_sum_is_exchanged_while_others_are_computed() {
        let text = r#"graph "step" {
            %0 = input {name = "x", dtype = f32, shape = [4, 3000, 2000]} : f32[4,3000,2000]
            %1 = input {name = "y", dtype = f32, shape = [4, 3000, 2000]} : f32[4,3000,2000]
            %2 = reduce %0 {op = sum, axes = [0]} : f32[3000,2000]
            %3 = reduce %1 {op = sum, axes = [0]} : f32[3000,2000]
            output "sx" = %2
            output "sy" = %3
        }"#;
        let graph = Graph::parse_verified(text).expect("a graph");
        let machine = Machine { peaks: NOMINAL, efficiency: 1.0 };
        let target = Target::cpu().ranks(planned_ranks(2));
        let lowered = lower(&graph, &target, MemoryStrategy::NONE).expect("lowers");
        let plans: Vec<_> = lowered.program.plans().collect();
        // A sum has 24 MB, of which a rank sends half, and half of that of all. To move 24 MB in memory takes 1.2 ms.
        let (bytes, move_once) = (24e6, 24e6 / 20e9);
        let hidden = |bandwidth: f64| {
            let time = StepTime::new(&plans, &machine, &Link { bandwidth, latency: 0.0 });
            assert_eq!((time.collectives, time.exchanges, time.messages), (2, 2, 4));
            assert!((time.communication / (2.0 * bytes / bandwidth) - 1.0).abs() < 1e-9);
            time.hidden_share() * time.communication
        };
        // When the first sum is there, the second one is added to its accumulator: two are read and one is written. And when the first exchange is
        // over, its collective reads and writes, beside the second one.
        let close =
            |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-3, "{found} {expected}");
        close(hidden(1e9), 5.0 * move_once);
        // What is quicker than that is hidden altogether.
        close(hidden(20e9), 2.0 * bytes / 20e9);
    }

    #[test]
    fn small_sums_share_their_messages_and_a_large_one_has_its_own() {
        let text = r#"graph "step" {
            %0 = input {name = "x", dtype = f32, shape = [4, 1000]} : f32[4,1000]
            %1 = input {name = "y", dtype = f32, shape = [4, 3000, 2000]} : f32[4,3000,2000]
            %2 = input {name = "z", dtype = f32, shape = [4, 500]} : f32[4,500]
            %3 = reduce %0 {op = sum, axes = [0]} : f32[1000]
            %4 = reduce %1 {op = sum, axes = [0]} : f32[3000,2000]
            %5 = reduce %2 {op = sum, axes = [0]} : f32[500]
            output "sx" = %3
            output "sy" = %4
            output "sz" = %5
        }"#;
        let graph = Graph::parse_verified(text).expect("a graph");
        let target = Target::cpu().ranks(planned_ranks(4));
        let program = lower(&graph, &target, MemoryStrategy::NONE).expect("lowers").program;
        let mut kernels: Vec<_> = program.buckets().into_iter().map(|bucket| bucket.kernels.len()).collect();
        kernels.sort_unstable();
        assert_eq!(kernels, [1, 2]);
        let machine = Machine { peaks: NOMINAL, efficiency: 1.0 };
        let time = StepTime::new(&program.plans().collect::<Vec<_>>(), &machine, &LINK);
        assert_eq!((time.collectives, time.exchanges, time.messages), (3, 2, 2 * 6));
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
