//! Programs on a device, where the device is a simulation of the driver: memory, states, order of operations, errors.
#![cfg(feature = "driver")]

#[path = "../driver/mod.rs"]
mod driver;
mod library;
#[allow(dead_code, reason = "programs by hand need less of it than the tests of kernels")]
#[path = "../../../cpu/tests/kernels/support.rs"]
mod support;

use kernfusion_codegen::{CodegenError, Communicator, Executable, States, Temporaries, threads};
use kernfusion_cuda::{Cache, CudaError, CudaExecutable, Device, Options};
use kernfusion_ir::kernel::{BufferRole, Domain, Form, InstrKind, Plan, ProgramPlan, StoreMode};
use kernfusion_ir::{
    Binary, Builder, Collective, DType, Exchange, Graph, InputRole, Origin, Tensor, TensorType,
};
use kernfusion_passes::fuse::{Fusion, any_kernel, fuse};
use kernfusion_passes::plan::plan;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use support::{Bench, Program, at};
use tempfile::TempDir;

/// Numbers in a buffer of these tests.
const COUNT: usize = 300;

/// The simulated device. Its libraries are loaded first, so that later lookups by name find these.
fn device() -> Option<Device> {
    static LOADED: OnceLock<bool> = OnceLock::new();
    let load = || {
        let Some(folder) = driver::folder() else { return false };
        for name in ["libcuda.so", "libcublasLt.so"] {
            // SAFETY: they were built here, and do nothing when they are loaded.
            let library = unsafe { libloading::Library::new(folder.join(name)) };
            std::mem::forget(library.expect("the simulated driver"));
        }
        // SAFETY: no other thread of these tests has read the environment yet; they all wait here.
        unsafe {
            std::env::set_var("KERNFUSION_NVRTC", folder);
            std::env::set_var("KERNFUSION_NCCL", "libnone.so.7");
        }
        true
    };
    LOADED.get_or_init(load).then(|| Device::open(0).expect("a simulated device"))
}

fn numbers(factor: f32) -> Tensor {
    Tensor::new([COUNT], (0..COUNT).map(|at| factor * at as f32).collect::<Vec<_>>())
}

/// `sum += x`, whose new value is computed in the arena; `first` and `second` change places; the output is `x + sum`.
fn program() -> Plan {
    let mut bench = Bench::default();
    let ty = TensorType::new(DType::F32, [COUNT]);
    let x = bench.input("x", numbers(1.0));
    let [sum, first, second] =
        ["sum", "first", "second"].map(|name| bench.buffer(name, ty.clone(), BufferRole::State));
    let y = bench.output("y", DType::F32, &[COUNT]);
    let mut p = Program::default();
    let operands = [x, sum].map(|buffer| p.load(buffer, DType::F32, at(&[1])));
    let value = p.push(InstrKind::Binary(Binary::Add, operands[0], operands[1]), DType::F32);
    p.store(value, y, at(&[1]));
    bench.kernel(Form::Map, Domain::flat([COUNT]), p.region, p.stores);
    bench.graph.updates = vec![(sum, y), (first, second), (second, first)];
    bench.plan()
}

fn compiled(device: &Device, states: &States, folder: &TempDir) -> CudaExecutable {
    let cache = Cache::at(folder.path());
    CudaExecutable::compile(
        ProgramPlan::whole(program()),
        states,
        device,
        Options::default(),
        Temporaries::Arena,
        &cache,
    )
    .expect("compiles")
}

#[test]
fn states_stay_on_the_device_from_run_to_run_and_are_shared() {
    let Some(device) = device() else { return };
    let (states, folder) = (device.states(), TempDir::new().unwrap());
    states.set("first", &numbers(3.0)).unwrap();
    let mut programs = [(); 2].map(|()| compiled(&device, &states, &folder));
    for run in 1..=5u8 {
        let x = numbers(f32::from(run));
        let outputs = programs[usize::from(run) % 2].run(&[("x", &x)]).unwrap();
        let sum = numbers((1..=run).map(f32::from).sum());
        assert_eq!(outputs.get("y"), Ok(&sum));
        assert_eq!(states.get("sum"), Some(sum));
        let (there, gone) = if run % 2 == 0 { ("first", "second") } else { ("second", "first") };
        assert_eq!((states.get(there), states.get(gone)), (Some(numbers(3.0)), Some(numbers(0.0))));
    }
}

#[test]
fn runs_are_started_without_waiting_and_happen_in_order() {
    let Some(device) = device() else { return };
    let (states, folder) = (device.states(), TempDir::new().unwrap());
    let mut programs = [(); 2].map(|()| compiled(&device, &states, &folder));
    let batch = |run: u8| numbers(f32::from(run * run));
    let mut start = |run: u8| programs[usize::from(run) % 2].enqueue(&[("x", &batch(run))]).unwrap();
    let pending: Vec<_> = (1..=6).map(&mut start).collect();
    // Nobody waits for these, and what they took with them is used again.
    (7..=12).for_each(|run| drop(start(run)));
    let last = start(13);
    drop(programs);
    let sum = |last: u8| numbers((1..=last).map(|run| f32::from(run * run)).sum());
    for (run, pending) in (1..).zip(pending) {
        assert_eq!(pending.wait().unwrap().get("y"), Ok(&sum(run)), "run {run}");
    }
    assert_eq!(states.get("sum"), Some(sum(13)));
    assert_eq!(last.wait().unwrap().get("y"), Ok(&sum(13)));
}

#[test]
fn a_run_is_ready_when_it_is_over() {
    let Some(device) = device() else { return };
    let (states, folder) = (device.states(), TempDir::new().unwrap());
    let mut program = compiled(&device, &states, &folder);
    // A simulated device does nothing before it must, but other tests may make it.
    let mut sum = 0.0;
    let is_seen_before_its_end = (0..20).any(|_| {
        sum += 1.0;
        let pending = program.enqueue(&[("x", &numbers(1.0))]).unwrap();
        let is_early = !pending.is_ready().unwrap();
        while !pending.is_ready().unwrap() {}
        assert_eq!(pending.wait().unwrap().get("y"), Ok(&numbers(sum)));
        is_early
    });
    assert!(is_seen_before_its_end, "no run was under way when it was asked for");
}

#[test]
fn timed_runs_give_the_same_results_and_a_time_for_each_kernel() {
    let Some(device) = device() else { return };
    let (states, folder) = (device.states(), TempDir::new().unwrap());
    let mut program = compiled(&device, &states, &folder);
    let (outputs, times) = program.run_timed(&[("x", &numbers(2.0))]).unwrap();
    assert_eq!(outputs.get("y"), Ok(&numbers(2.0)));
    assert!(times.len() == 1 && times[0].as_secs_f64() > 0.0, "{times:?}");
    assert_eq!(program.run(&[("x", &numbers(2.0))]).unwrap().get("y"), Ok(&numbers(4.0)));
}

/// In memory of their own, too, temporaries are there while they are looked at.
#[test]
fn a_run_is_seen_after_each_kernel() {
    let Some(device) = device() else { return };
    for temporaries in [Temporaries::Arena, Temporaries::Fresh] {
        let (states, folder) = (device.states(), TempDir::new().unwrap());
        let mut bench = Bench::default();
        let ty = TensorType::new(DType::F32, [COUNT]);
        let x = bench.input("x", numbers(1.0));
        let between = bench.buffer("between", ty, BufferRole::Temporary);
        let y = bench.output("y", DType::F32, &[COUNT]);
        for (from, to) in [(x, between), (between, y)] {
            let mut p = Program::default();
            let value = p.load(from, DType::F32, at(&[1]));
            let twice = p.push(InstrKind::Binary(Binary::Add, value, value), DType::F32);
            p.store(twice, to, at(&[1]));
            bench.kernel(Form::Map, Domain::flat([COUNT]), p.region, p.stores);
        }
        let program = ProgramPlan::whole(bench.plan());
        let cache = Cache::at(folder.path());
        let options = Options { groups: false, ..Options::default() };
        let program = CudaExecutable::compile(program, &states, &device, options, temporaries, &cache);
        let (mut program, mut seen) = (program.expect("compiles"), vec![]);
        let outputs = program.run_seen(&[("x", &numbers(1.0))], &mut |moment| {
            let written = [between, y][moment.kernel];
            seen.push((moment.plan, moment.kernel, (moment.look)(written)?));
            Ok(())
        });
        assert_eq!(outputs.unwrap().get("y"), Ok(&numbers(4.0)));
        assert_eq!(seen, [(0, 0, numbers(2.0)), (0, 1, numbers(4.0))], "{temporaries:?}");
        let stopped = program.run_seen(&[("x", &numbers(1.0))], &mut |_| Err(CudaError::NoDriver.into()));
        assert_eq!(stopped.unwrap_err(), CudaError::NoDriver.into());
    }
}

/// Panels are shared memory that a block may not have, beside its function's arrays, unless the function asks for it.
#[test]
fn functions_ask_for_their_shared_memory() {
    let Some(device) = device() else { return };
    let bench = library::Case::new(DType::F32, DType::F32, [1, 130, 70, 40], [false; 3]).bench(|_, _, _| {});
    let inputs: Vec<_> = bench.inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let results = [[64, 64], [128, 128]].map(|tile| {
        let folder = TempDir::new().unwrap();
        let options = Options { tile: Some(tile), ..Options::default() };
        let program = ProgramPlan::whole(bench.plan());
        let (states, cache) = (device.states(), Cache::at(folder.path()));
        let program = CudaExecutable::compile(program, &states, &device, options, Temporaries::Arena, &cache);
        program.expect("compiles").run(&inputs).expect("runs").get("d").expect("an output").clone()
    });
    assert_eq!(results[0], results[1]);
}

#[test]
fn programs_may_go_while_others_stay() {
    let Some(device) = device() else { return };
    let (states, folder) = (device.states(), TempDir::new().unwrap());
    let mut kept = compiled(&device, &states, &folder);
    for run in 1..=3u8 {
        let mut other = compiled(&device, &states, &folder);
        other.run(&[("x", &numbers(1.0))]).unwrap();
        drop(other);
        let outputs = kept.run(&[("x", &numbers(1.0))]).unwrap();
        assert_eq!(outputs.get("y"), Ok(&numbers(f32::from(2 * run))));
    }
}

/// Programs of one device are recorded while another thread uses its stream, which is no part of them.
#[test]
fn graphs_record_one_program_alone() {
    const KERNELS: usize = 2000;
    let Some(device) = device() else { return };
    let mut bench = Bench::default();
    let mut from = bench.input("x", numbers(1.0));
    for number in 1..=KERNELS {
        let ty = TensorType::new(DType::F32, [COUNT]);
        let to = match number {
            KERNELS => bench.output("y", DType::F32, &[COUNT]),
            _ => bench.buffer(&format!("between{number}"), ty, BufferRole::Temporary),
        };
        let mut p = Program::default();
        let value = p.load(from, DType::F32, at(&[1]));
        let one = p.constant(1.0, DType::F32);
        let more = p.push(InstrKind::Binary(Binary::Add, value, one), DType::F32);
        p.store(more, to, at(&[1]));
        bench.kernel(Form::Map, Domain::flat([COUNT]), p.region, p.stores);
        from = to;
    }
    let plan = bench.plan();
    let (folder, is_over) = (TempDir::new().unwrap(), AtomicBool::new(false));
    let first_run = || {
        let (program, options) =
            (ProgramPlan::whole(plan.clone()), Options { groups: false, ..Options::default() });
        let (states, cache) = (device.states(), Cache::at(folder.path()));
        let mut program =
            CudaExecutable::compile(program, &states, &device, options, Temporaries::Arena, &cache)?;
        Ok::<_, CodegenError>(program.run(&[("x", &numbers(1.0))])?.get("y").cloned())
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let (device, is_over) = (device.clone(), &is_over);
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                drop(device.memory(1000));
            }
        });
        let results = (0..4).map(|_| first_run()).collect();
        is_over.store(true, Ordering::Relaxed);
        results
    });
    let expected: Vec<_> = (0..COUNT + KERNELS).skip(KERNELS).map(|number| number as f32).collect();
    let expected = Tensor::new([COUNT], expected);
    assert_eq!(results, vec![Ok(Ok(expected)); 4]);
}

#[test]
fn memory_that_was_given_back_is_there_again() {
    let Some(device) = device() else { return };
    for _ in 0..4 {
        // Most of what the simulated device has.
        drop(device.memory(600 << 20).unwrap());
    }
}

/// A graph of the driver's has no copies and no fills of nothing.
#[test]
fn states_and_sums_may_be_empty() {
    let Some(device) = device() else { return };
    let (states, folder) = (device.states(), TempDir::new().unwrap());
    let mut bench = Bench::default();
    let none = TensorType::new(DType::F32, [0]);
    let x = bench.input("x", numbers(1.0));
    let [first, second] = ["first", "second"].map(|name| bench.buffer(name, none.clone(), BufferRole::State));
    let y = bench.output("y", DType::F32, &[COUNT]);
    let mut p = Program::default();
    let value = p.load(x, DType::F32, at(&[1]));
    p.store(value, y, at(&[1]));
    bench.kernel(Form::Map, Domain::flat([COUNT]), p.region, p.stores);
    let table = bench.output("table", DType::F32, &[0]);
    let mut p = Program::default();
    let one = p.constant(1.0, DType::F32);
    p.store(one, table, at(&[1]));
    p.stores[0].mode = StoreMode::Add;
    bench.kernel(Form::Map, Domain::flat([0]), p.region, p.stores);
    bench.graph.updates = vec![(first, second), (second, first)];
    let cache = Cache::at(folder.path());
    let mut program = CudaExecutable::compile(
        ProgramPlan::whole(bench.plan()),
        &states,
        &device,
        Options::default(),
        Temporaries::Arena,
        &cache,
    )
    .expect("compiles");
    let outputs = program.run(&[("x", &numbers(2.0))]).unwrap();
    assert_eq!(outputs.get("y"), Ok(&numbers(2.0)));
}

/// A rank alone needs no NCCL; several do.
#[test]
fn ranks_need_nccl_and_say_so() {
    let Some(device) = device() else { return };
    let run = |communicator: Arc<dyn Communicator>| {
        let ranks = communicator.ranks();
        let mut graph = Graph::new("sum");
        let mut b = Builder::new(&mut graph, Origin::default());
        let x = b.input("x", InputRole::Data, TensorType::new(DType::F32, [COUNT])).unwrap();
        let y = b.op(Collective::new(Exchange::AllReduce, ranks), &[x]).unwrap();
        graph.output("y", y);
        let plan = plan(fuse(&graph, Fusion::Full, any_kernel).expect("fuses"));
        let folder = TempDir::new().unwrap();
        let mut program = CudaExecutable::compile(
            ProgramPlan::whole(plan),
            &device.states(),
            &device,
            Options { communicator: Some(communicator), ..Options::default() },
            Temporaries::Arena,
            &Cache::at(folder.path()),
        )?;
        program.run(&[("x", &numbers(1.0))])
    };
    let [alone] = &threads(1)[..] else { panic!("one rank") };
    assert_eq!(run(alone.clone()).unwrap().get("y"), Ok(&numbers(1.0)));
    let errors: Vec<_> = std::thread::scope(|scope| {
        let run = &run;
        let ranks: Vec<_> =
            threads(2).into_iter().map(|rank| scope.spawn(move || run(rank).unwrap_err())).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap().to_string()).collect()
    });
    for error in errors {
        assert!(error.contains("NCCL, through which ranks on GPUs exchange, cannot be loaded"), "{error}");
        assert!(error.contains("libnone.so.7"), "{error}");
    }
}

#[test]
fn what_is_wrong_is_said() {
    let Some(device) = device() else { return };
    let too_much = device.memory(1 << 40).unwrap_err();
    assert!(matches!(too_much, CudaError::Memory { needed, .. } if needed == 1 << 40), "{too_much}");
    let error = Device::open(7).unwrap_err();
    assert_eq!(error, CudaError::NoDevice { ordinal: 7, count: 1 });
    let (folder, states) = (TempDir::new().unwrap(), States::new());
    let cache = Cache::at(folder.path());
    let error = CudaExecutable::compile(
        ProgramPlan::whole(program()),
        &states,
        &device,
        Options::default(),
        Temporaries::Arena,
        &cache,
    )
    .unwrap_err();
    assert!(matches!(error, CodegenError::Elsewhere { .. }), "{error}");
    let mut program = compiled(&device, &device.states(), &folder);
    assert!(program.run(&[]).is_err());
    let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    std::fs::write(file, "no code").unwrap();
    let error = CudaExecutable::compile(
        ProgramPlan::whole(self::program()),
        &device.states(),
        &device,
        Options::default(),
        Temporaries::Arena,
        &cache,
    )
    .unwrap_err();
    assert!(error.to_string().contains("loading code: device kernel image is invalid"), "{error}");
}
