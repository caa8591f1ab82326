//! Training steps of several ranks, each a thread with rows of its own, against one process that computes in as many microbatches.

use crate::steps::{Ran, STEPS, Steps, recurrent, small, with_experts};
use kernfusion::HostTensor;
use kernfusion::compile::{CommunicationError, Communicator, Precision, Target, compile, thread_ranks};
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
    for shard in [false, true] {
        let steps = Steps { clip: None, ..steps(small()) };
        let run = |communicator: Arc<dyn Communicator>| {
            let runs = std::thread::current().id();
            let watched = Arc::new(Watched {
                communicator,
                runs,
                beside: AtomicUsize::new(0),
                in_turn: AtomicUsize::new(0),
            });
            let target = Target::cpu().threads(1).microbatches(2).shard_optimizer(shard);
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
fn exchanged(exchange: Exchange, ranks: usize, dtype: DType, shape: &[usize]) -> [Vec<Vec<f64>>; 2] {
    let mut graph = Graph::new("exchange");
    let ty = TensorType::new(dtype, shape);
    let mut b = Builder::new(&mut graph, Origin::default());
    let x = b.input("x", InputRole::Data, ty.clone()).unwrap();
    // Twice what is given, so that an operand is computed.
    let doubled = b.add(x, x).unwrap();
    let y = b.op(Collective { exchange, ranks }, &[doubled]).unwrap();
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
            if exchange == Exchange::ReduceScatter && !shape[0].is_multiple_of(ranks) {
                continue;
            }
            let [expected, found] = exchanged(exchange, ranks, dtype, shape);
            let unit = if dtype == DType::F32 { 1e-6 } else { 1e-2 };
            for (rank, (expected, found)) in expected.iter().zip(&found).enumerate() {
                assert_eq!(expected.len(), found.len());
                let far = expected.iter().zip(found).find(|(a, b)| (**a - **b).abs() > unit * 8.0);
                assert_eq!(far, None, "{} of {dtype} {shape:?}, rank {rank} of {ranks}", exchange.name());
            }
        }
    }
}

#[test]
fn a_program_of_ranks_needs_them() {
    let mut graph = Graph::new("exchange");
    let mut b = Builder::new(&mut graph, Origin::default());
    let x = b.input("x", InputRole::Data, TensorType::new(DType::F32, [4])).unwrap();
    let y = b.op(Collective { exchange: Exchange::AllReduce, ranks: 2 }, &[x]).unwrap();
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
