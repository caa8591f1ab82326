//! Training steps of several ranks, each a thread with rows of its own, against one process that computes in as many microbatches.

use crate::steps::{Ran, STEPS, Steps, recurrent, small, with_experts};
use kernfusion::HostTensor;
use kernfusion::compile::{
    Collectives, CommunicationError, Communicator, LibraryCollectives, Precision, Target, compile,
    thread_ranks,
};
use kernfusion::models::{GptConfig, ModelConfig, RecurrentLmConfig};
use kernfusion::nn::Cell;
use kernfusion_ir::evaluate::{Array, Precision as Evaluation, evaluate_ranks};
use kernfusion_ir::samples::Draws;
use kernfusion_ir::{Builder, Collective, DType, Exchange, Graph, InputRole, Origin, ReduceOp, TensorType};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Steps of a batch that two, three and four ranks can share.
fn steps(config: impl Into<ModelConfig>) -> Steps {
    Steps::new(config, 12)
}

/// What each of some ranks has in the end.
fn run_ranks(steps: &Steps, target: &Target, ranks: usize) -> Vec<Ran> {
    std::thread::scope(|scope| {
        let rank = |communicator: Arc<dyn Communicator>| {
            let target = target.clone().threads(1).ranks(communicator);
            scope.spawn(move || steps.run(&target))
        };
        let handles: Vec<_> = thread_ranks(ranks).into_iter().map(rank).collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    })
}

/// Ranks leave what one process leaves, bit for bit.
fn assert_equal(steps: &Steps, target: &Target) {
    // Of three, few matrices have equal parts.
    for ranks in [2, 3, 4] {
        let alone = steps.run(&target.clone().microbatches(ranks));
        let is_sharded = target.clone().ranks(thread_ranks(ranks).remove(0)).shards_optimizer();
        let parts = if is_sharded { ranks } else { 1 };
        let all = run_ranks(steps, &target.clone().microbatches(1), ranks);
        for (rank, ran) in all.iter().enumerate() {
            assert!(
                ran.equals(&alone),
                "rank {rank} of {ranks}: {:?}, alone {:?}",
                ran.numbers,
                alone.numbers
            );
            let share = ran.optimizer_bytes as f64 / alone.optimizer_bytes as f64;
            let expected = 1.0 / parts as f64;
            assert!((share - expected).abs() < 0.02, "rank {rank} of {ranks} keeps {share} of all moments");
        }
    }
}

#[test]
fn ranks_have_the_bits_of_as_many_microbatches() {
    assert_equal(&steps(small()), &Target::cpu());
}

#[test]
fn ranks_that_share_the_optimizers_state_have_them_too() {
    for (precision, clip) in [(Precision::F32, Some(0.5)), (Precision::F32, None), (Precision::Bf16, None)] {
        let steps = Steps { clip, ..steps(small()) };
        assert_equal(&steps, &Target::cpu().precision(precision).shard_optimizer(true));
    }
}

#[test]
fn recurrent_layers_have_them_too() {
    let config = recurrent();
    for cell in [Cell::Rnn, Cell::Lstm, Cell::Gru] {
        let steps = steps(RecurrentLmConfig { cell, ..config.clone() });
        assert_equal(&steps, &Target::cpu());
    }
    let steps = Steps { clip: None, ..steps(config) };
    assert_equal(&steps, &Target::cpu().shard_optimizer(true));
}

#[test]
fn experts_have_them_too() {
    // Of 12 rows in 12 groups, each rank has some.
    let steps = Steps { groups: 12, ..steps(with_experts()) };
    assert_equal(&steps, &Target::cpu());
    assert_equal(&steps, &Target::cpu().shard_optimizer(true));
}

#[test]
fn products_of_bf16_have_them_too() {
    assert_equal(&steps(small()), &Target::cpu().precision(Precision::Bf16));
}

#[test]
fn what_is_computed_again_has_them_too() {
    assert_equal(&steps(GptConfig { dropout: 0.0, ..small() }), &Target::cpu().recompute(true));
}

/// A rank's way to the others, which counts the sums that are exchanged by another thread than that which runs the program.
#[derive(Debug)]
struct Watched {
    communicator: Arc<dyn Communicator>,
    runs: std::thread::ThreadId,
    beside: AtomicUsize,
    in_turn: AtomicUsize,
}

impl Communicator for Watched {
    fn rank(&self) -> usize {
        self.communicator.rank()
    }
    fn ranks(&self) -> usize {
        self.communicator.ranks()
    }
    fn exchange(
        &self,
        sent: &[u8],
        part: usize,
        received: &mut [u8],
        stride: usize,
    ) -> Result<(), CommunicationError> {
        let is_beside = std::thread::current().id() != self.runs;
        let count = if is_beside { &self.beside } else { &self.in_turn };
        count.fetch_add(1, Ordering::Relaxed);
        self.communicator.exchange(sent, part, received, stride)
    }
    fn gather(&self, all: &mut [u8], part: usize) -> Result<(), CommunicationError> {
        self.communicator.gather(all, part)
    }
}

/// Gradients are exchanged by a thread of their own, which begins while backward goes on.
#[test]
fn sums_are_exchanged_beside_the_steps() {
    for (shard, in_bf16) in [(false, false), (true, false), (false, true), (true, true)] {
        let steps = Steps { clip: None, ..steps(small()) };
        let run = |communicator: Arc<dyn Communicator>| {
            let runs = std::thread::current().id();
            let watched = Arc::new(Watched {
                communicator,
                runs,
                beside: AtomicUsize::new(0),
                in_turn: AtomicUsize::new(0),
            });
            let target =
                Target::cpu().threads(1).microbatches(2).shard_optimizer(shard).bf16_exchange(in_bf16);
            let ran = steps.run(&target.ranks(watched.clone()));
            let count = |count: &AtomicUsize| count.load(Ordering::Relaxed);
            (count(&watched.beside), count(&watched.in_turn), ran.states.len())
        };
        std::thread::scope(|scope| {
            let run = &run;
            let ranks: Vec<_> =
                thread_ranks(2).into_iter().map(|rank| scope.spawn(move || run(rank))).collect();
            for rank in ranks {
                let (beside, in_turn, states) = rank.join().unwrap();
                // So small ones share their messages; those of two matrices with odd rows are copied first.
                let exchanges = if shard { 3 } else { 1 };
                assert_eq!((beside, in_turn), (exchanges * STEPS as usize, 0), "for {states} states");
            }
        });
    }
}

/// Gradients that are exchanged as bf16 are other numbers, and the same on all ranks, whoever updates what, and whatever travels together.
#[test]
fn gradients_can_be_exchanged_as_bf16() {
    for clip in [Some(0.5), None] {
        let steps = Steps { clip, ..steps(small()) };
        let target = Target::cpu().microbatches(1);
        for ranks in [2, 3] {
            let exact = run_ranks(&steps, &target, ranks);
            let rounded = run_ranks(&steps, &target.clone().bf16_exchange(true), ranks);
            let sharded = run_ranks(&steps, &target.clone().bf16_exchange(true).shard_optimizer(true), ranks);
            assert!(rounded.iter().chain(&sharded).all(|ran| ran.equals(&rounded[0])));
            assert!(!rounded[0].equals(&exact[0]));
            // The first loss is one before any exchange, and a single number is not rounded.
            assert_eq!(rounded[0].numbers[0], exact[0].numbers[0]);
            for (expected, found) in exact[0].numbers.iter().zip(&rounded[0].numbers) {
                assert!((expected - found).abs() < 5e-2 * expected.abs(), "{found} instead of {expected}");
            }
        }
    }
}

/// A rank's way to the others, whose library adds up from the last rank to the first.
#[derive(Debug)]
struct Backwards(Arc<dyn Communicator>);

impl Backwards {
    /// What each rank gives.
    fn all(&self, given: &[f32]) -> Result<Vec<f32>, CommunicationError> {
        let own: Vec<u8> = given.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut all = vec![0; own.len() * self.0.ranks()];
        self.all_gather(&own, &mut all)?;
        Ok(all.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect())
    }
}

impl LibraryCollectives for Backwards {
    fn all_reduce(&self, given: &[f32], sum: &mut [f32]) -> Result<(), CommunicationError> {
        let all = self.all(given)?;
        let of = |i| all.chunks(given.len()).rev().fold(0.0, |sum, part| sum + part[i]);
        sum.iter_mut().enumerate().for_each(|(i, sum)| *sum = of(i));
        Ok(())
    }
    fn reduce_scatter(&self, given: &[f32], sum: &mut [f32]) -> Result<(), CommunicationError> {
        let mut all = vec![0.0; given.len()];
        self.all_reduce(given, &mut all)?;
        sum.copy_from_slice(&all[self.0.rank() * sum.len()..][..sum.len()]);
        Ok(())
    }
    fn all_gather(&self, own: &[u8], all: &mut [u8]) -> Result<(), CommunicationError> {
        all[self.0.rank() * own.len()..][..own.len()].copy_from_slice(own);
        self.0.gather(all, own.len())
    }
}

impl Communicator for Backwards {
    fn rank(&self) -> usize {
        self.0.rank()
    }
    fn ranks(&self) -> usize {
        self.0.ranks()
    }
    fn exchange(&self, _: &[u8], _: usize, _: &mut [u8], _: usize) -> Result<(), CommunicationError> {
        panic!("the library sums")
    }
    fn gather(&self, all: &mut [u8], part: usize) -> Result<(), CommunicationError> {
        self.0.gather(all, part)
    }
    fn library(&self) -> Option<&dyn LibraryCollectives> {
        Some(self)
    }
}

#[test]
fn a_library_can_sum() {
    for (clip, is_sharded) in [(Some(0.5), false), (None, true)] {
        let steps = Steps { clip, ..steps(small()) };
        let target = Target::cpu().microbatches(2).threads(1).shard_optimizer(is_sharded);
        let ordered = run_ranks(&steps, &target, 3);
        let target = target.collectives(Collectives::Library);
        let found: Vec<Ran> = std::thread::scope(|scope| {
            let run = |rank| {
                let target = target.clone().ranks(Arc::new(Backwards(rank)));
                let steps = &steps;
                scope.spawn(move || steps.run(&target))
            };
            let ranks: Vec<_> = thread_ranks(3).into_iter().map(run).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert!(found.iter().all(|ran| ran.equals(&found[0])) && !found[0].equals(&ordered[0]));
        for (expected, found) in ordered[0].numbers.iter().zip(&found[0].numbers) {
            assert!((expected - found).abs() < 1e-5 * expected.abs(), "{found} instead of {expected}");
        }
    }
}

#[test]
fn what_no_library_sums_is_refused() {
    let refused = |target: Target| {
        let mut graph = Graph::new("sum");
        let mut b = Builder::new(&mut graph, Origin::default());
        let x = b.input("x", InputRole::Data, TensorType::new(DType::F32, [4])).unwrap();
        let y = b.reduce(ReduceOp::Sum, &[0], x).unwrap();
        graph.output("y", y);
        let target = target.collectives(Collectives::Library);
        compile(&graph, &target.states(), &target).err().unwrap().to_string()
    };
    let threads = refused(Target::cpu().ranks(thread_ranks(2).remove(0)));
    assert!(threads.contains("these ranks have no library that sums"), "{threads}");
    let ranks = Arc::new(Backwards(thread_ranks(2).remove(0)));
    let rounded = refused(Target::cpu().ranks(ranks).bf16_exchange(true));
    assert!(rounded.contains("needs ordered sums"), "{rounded}");
}

#[test]
fn several_microbatches_of_each_rank_change_rounding_only() {
    let steps = steps(small());
    let alone = steps.run(&Target::cpu().microbatches(1));
    let target = Target::cpu().microbatches(2);
    let ranks = run_ranks(&steps, &target, 2);
    let sharded = run_ranks(&steps, &target.shard_optimizer(true), 2);
    assert!(ranks[0].equals(&ranks[1]) && sharded.iter().all(|ran| ran.equals(&ranks[0])));
    for (expected, found) in alone.numbers.iter().zip(&ranks[0].numbers) {
        assert!((expected - found).abs() < 1e-5 * expected.abs(), "{found} instead of {expected}");
    }
}

/// The results of each rank of a program that exchanges, compiled, and those of the reference.
fn exchanged(op: Collective, dtype: DType, shape: &[usize]) -> [Vec<Vec<f64>>; 2] {
    let ranks = op.ranks;
    let mut graph = Graph::new("exchange");
    let ty = TensorType::new(dtype, shape);
    let mut b = Builder::new(&mut graph, Origin::default());
    let x = b.input("x", InputRole::Data, ty.clone()).unwrap();
    // Twice what is given, so that an operand is computed.
    let doubled = b.add(x, x).unwrap();
    let y = b.op(op, &[doubled]).unwrap();
    graph.output("y", y);
    let mut draws = Draws::new(ranks as u64);
    let given: Vec<_> = (0..ranks)
        .map(|_| {
            HostTensor::from_f64(
                &ty,
                &(0..ty.elements()).map(|_| draws.between(-2.0, 2.0)).collect::<Vec<_>>(),
            )
        })
        .collect();
    let arrays =
        given.iter().map(|x| [("x".to_string(), Array { ty: ty.clone(), values: x.to_f64() })].into());
    let reference = evaluate_ranks(&graph, arrays.collect(), Evaluation::Double).unwrap();
    let reference = reference.into_iter().map(|mut values| values.swap_remove(y.index()).values).collect();
    let run = |(x, communicator): (&HostTensor, Arc<dyn Communicator>)| {
        let target = Target::cpu().threads(1).ranks(communicator);
        let mut program = compile(&graph, &target.states(), &target).unwrap();
        program.run(&[("x", x)]).unwrap().get("y").unwrap().to_f64()
    };
    let found = std::thread::scope(|scope| {
        let handles: Vec<_> =
            given.iter().zip(thread_ranks(ranks)).map(|rank| scope.spawn(move || run(rank))).collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    });
    [reference, found]
}

#[test]
fn all_exchanges_give_what_the_reference_gives() {
    // Of 5 and 45 elements four ranks have parts that are not equal; 1,500 are more than are summed at a time.
    let shapes: [&[usize]; 5] = [&[12], &[12, 5], &[12, 125], &[5], &[9, 5]];
    for exchange in Exchange::ALL {
        for (ranks, dtype, shape) in [1, 2, 3, 4].into_iter().flat_map(|ranks| {
            shapes
                .into_iter()
                .flat_map(move |shape| [DType::F32, DType::BF16].map(|dtype| (ranks, dtype, shape)))
        }) {
            let as_they_are =
                (Collective::new(exchange, ranks), if dtype == DType::F32 { 1e-6 } else { 1e-2 });
            let rounded = (Collective { in_bf16: true, ..as_they_are.0 }, 1e-2);
            let rounds = dtype == DType::F32 && exchange != Exchange::AllGather;

            if exchange == Exchange::ReduceScatter && !shape[0].is_multiple_of(ranks) {
                continue;
            }
            for (op, unit) in [Some(as_they_are), rounds.then_some(rounded)].into_iter().flatten() {
                let [expected, found] = exchanged(op, dtype, shape);
                for (rank, (expected, found)) in expected.iter().zip(&found).enumerate() {
                    assert_eq!(expected.len(), found.len());
                    let far = expected.iter().zip(found).find(|(a, b)| (**a - **b).abs() > unit * 8.0);
                    assert_eq!(far, None, "{op:?} of {dtype} {shape:?}, rank {rank}");
                    // What was exchanged as bf16 is a number of bf16.
                    let is_rounded = |x: &&f64| DType::BF16.round(**x) == **x;
                    assert!(!op.in_bf16 || found.iter().all(|x| is_rounded(&x)), "{found:?}");
                }
            }
        }
    }
}

#[test]
fn a_program_of_ranks_needs_them() {
    let mut graph = Graph::new("exchange");
    let mut b = Builder::new(&mut graph, Origin::default());
    let x = b.input("x", InputRole::Data, TensorType::new(DType::F32, [4])).unwrap();
    let y = b.op(Collective::new(Exchange::AllReduce, 2), &[x]).unwrap();
    graph.output("y", y);
    let target = Target::cpu();
    let error = compile(&graph, &target.states(), &target).err().unwrap().to_string();
    assert!(error.contains("an exchange among 2 ranks where there are 1 is not supported"), "{error}");
}

#[test]
fn what_is_no_sum_is_refused_with_its_line() {
    let mut graph = Graph::new("largest");
    let mut b = Builder::new(&mut graph, Origin::default());
    let x = b.input("x", InputRole::Data, TensorType::new(DType::F32, [4])).unwrap();
    let y = b.reduce(ReduceOp::Max, &[0], x).unwrap();
    graph.output("y", y);
    let target = Target::cpu().ranks(thread_ranks(2).remove(0));
    let error = compile(&graph, &target.states(), &target).err().unwrap().to_string();
    assert!(error.contains("ranks add up sums of f32, and this is a max of f32 over the batch"), "{error}");
    let odd = Target::cpu().ranks(thread_ranks(3).remove(0));
    let error = compile(&graph, &odd.states(), &odd).err().unwrap().to_string();
    assert!(error.contains("the batch of 4 is not divisible by that"), "{error}");
}
