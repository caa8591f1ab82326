//! Programs of several ranks, each a thread with a device of its own, where driver and NCCL are simulations: what they exchange against the
//! CPU, bit for bit, and what is said when something fails.
#![cfg(feature = "driver")]

#[path = "../driver/mod.rs"]
mod driver;

use kernfusion_codegen::{
    CodegenError, Collectives, CommunicationError, Communicator, Executable, Outputs, Temporaries, threads,
};
use kernfusion_cpu::CpuExecutable;
use kernfusion_cuda::{Cache, CudaError, CudaExecutable, Device, Options};
use kernfusion_ir::kernel::{Plan, ProgramPlan};
use kernfusion_ir::samples::Draws;
use kernfusion_ir::{Builder, Collective, DType, Exchange, Graph, InputRole, Origin, Tensor, TensorType};
use kernfusion_passes::fuse::{Fusion, any_kernel, fuse};
use kernfusion_passes::plan::plan;
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, OnceLock};
use tempfile::TempDir;

/// Devices of the simulated machine.
const DEVICES: usize = 4;

/// The simulated NCCL; `None` where it cannot be built. The libraries are loaded first, so that later lookups by name find these.
fn nccl() -> Option<&'static libloading::Library> {
    static LOADED: OnceLock<Option<libloading::Library>> = OnceLock::new();
    let load = || {
        let folder = driver::folder()?;
        // SAFETY: they were built here, and do nothing when they are loaded.
        let open = |name| unsafe { libloading::Library::new(folder.join(name)) }.expect("a library");
        std::mem::forget(open("libcuda.so"));
        // SAFETY: no other thread of these tests has read the environment yet; they all wait here.
        unsafe {
            std::env::set_var("KERNFUSION_NVRTC", folder);
            std::env::set_var("SIMULATED_DEVICES", DEVICES.to_string());
            std::env::set_var("KERNFUSION_NCCL", folder.join("libnccl.so.2"));
        }
        Some(open("libnccl.so.2"))
    };
    LOADED.get_or_init(load).as_ref()
}

/// Lets a function of the simulated NCCL fail in this thread, after so many calls of it.
fn fail(function: &CStr, after: c_int) {
    let nccl = nccl().expect("it is there");
    // SAFETY: the function has this type.
    unsafe {
        let function_there = nccl.get::<unsafe extern "C" fn(*const c_char, c_int)>(b"simulatedFailure");
        function_there.expect("the simulation has it")(function.as_ptr(), after);
    }
}

/// What each rank gives, on a thread and a device of its own. A rank that ends takes its device with it.
fn on_devices<T: Send>(ranks: usize, run: impl Fn(&Device, &Arc<dyn Communicator>) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let run = &run;
        let rank = |communicator: Arc<dyn Communicator>| {
            scope.spawn(move || run(&Device::open(communicator.rank()).expect("a device"), &communicator))
        };
        let handles: Vec<_> = threads(ranks).into_iter().map(rank).collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    })
}

fn compiled(
    plan: &Plan,
    device: &Device,
    communicator: &Arc<dyn Communicator>,
    temporaries: Temporaries,
) -> Result<CudaExecutable, CodegenError> {
    compiled_for(plan, device, communicator, temporaries, Collectives::Ordered)
}

fn compiled_for(
    plan: &Plan,
    device: &Device,
    communicator: &Arc<dyn Communicator>,
    temporaries: Temporaries,
    collectives: Collectives,
) -> Result<CudaExecutable, CodegenError> {
    let folder = TempDir::new().unwrap();
    let options = Options { communicator: Some(Arc::clone(communicator)), collectives, ..Options::default() };
    let cache = Cache::at(folder.path());
    let program = ProgramPlan::whole(plan.clone());
    CudaExecutable::compile(program, &device.states(), device, options, temporaries, &cache)
}

/// A program that exchanges twice what it is given, once in each way, for each of these shapes in `f32`, in `bf16`, and in `f32` as `bf16`.
fn program(ranks: usize, shapes: &[&[usize]]) -> Plan {
    let mut graph = Graph::new("exchanges");
    for exchange in Exchange::ALL {
        for (number, shape) in shapes.iter().enumerate() {
            if exchange == Exchange::ReduceScatter && !shape[0].is_multiple_of(ranks) {
                continue;
            }
            for (dtype, in_bf16) in [(DType::F32, false), (DType::BF16, false), (DType::F32, true)] {
                if exchange == Exchange::AllGather && in_bf16 {
                    continue;
                }
                let mut b = Builder::new(&mut graph, Origin::default());
                let name = format!("{}{number}{dtype}{in_bf16}", exchange.name());
                let x = b.input(&name, InputRole::Data, TensorType::new(dtype, *shape)).unwrap();
                // So that an operand is computed.
                let doubled = b.add(x, x).unwrap();
                let y = b.op(Collective { exchange, ranks, in_bf16 }, &[doubled]).unwrap();
                graph.output(format!("{name}y"), y);
            }
        }
    }
    plan(fuse(&graph, Fusion::Full, any_kernel).expect("fuses"))
}

/// What a rank is given: numbers whose sum depends on their order.
fn given(plan: &Plan, rank: usize, run: usize) -> Vec<(String, Tensor)> {
    let mut draws = Draws::new((10 * rank + run) as u64);
    let mut number = || draws.between(-2.0, 2.0) * [1.0, 4096.0][draws.between(0.0, 2.0) as usize];
    let mut input = |name: &str, ty: &TensorType| {
        let values: Vec<_> = (0..ty.elements()).map(|_| number()).collect();
        (name.to_string(), Tensor::from_f64(ty, &values))
    };
    plan.inputs().map(|buffer| (buffer.name.as_str(), &buffer.ty)).map(|(name, ty)| input(name, ty)).collect()
}

fn run(program: &mut dyn Executable, given: &[(String, Tensor)]) -> Result<Outputs, CodegenError> {
    let inputs: Vec<_> = given.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    program.run(&inputs)
}

/// The bytes of all outputs.
fn bytes(plan: &Plan, outputs: &Outputs) -> Vec<Vec<u8>> {
    let names = plan.graph.outputs.iter().map(|(name, ..)| name);
    names.map(|name| outputs.get(name).unwrap().bytes().to_vec()).collect()
}

/// What each rank has on the CPU.
fn on_cpus(plan: &Plan, ranks: usize, number: usize) -> Vec<Vec<Vec<u8>>> {
    std::thread::scope(|scope| {
        let rank = |communicator: Arc<dyn Communicator>| {
            scope.spawn(move || {
                let rank = communicator.rank();
                let options = kernfusion_cpu::Options {
                    threads: 1,
                    communicator: Some(communicator),
                    ..kernfusion_cpu::Options::default()
                };
                let states = kernfusion_codegen::States::new();
                let mut program =
                    CpuExecutable::compile(ProgramPlan::whole(plan.clone()), &states, &options).unwrap();
                bytes(plan, &run(&mut program, &given(plan, rank, number)).unwrap())
            })
        };
        let handles: Vec<_> = threads(ranks).into_iter().map(rank).collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    })
}

/// Of 5 and 45 elements four ranks have parts that are not equal, of 2 the last ones have none; 1,500 are several blocks of threads.
const SHAPES: [&[usize]; 6] = [&[12], &[12, 125], &[5], &[9, 5], &[2], &[0]];

#[test]
fn all_exchanges_have_the_bits_of_the_cpu() {
    if nccl().is_none() {
        return;
    }
    for ranks in 1..=DEVICES {
        let plan = program(ranks, &SHAPES);
        let expected = [0, 1].map(|number| on_cpus(&plan, ranks, number));
        // Memory of eager mode comes and goes; twice, since a second run finds what the first one left.
        for temporaries in [Temporaries::Arena, Temporaries::Fresh] {
            let found = on_devices(ranks, |device, communicator| {
                let mut program = compiled(&plan, device, communicator, temporaries).unwrap();
                let rank = communicator.rank();
                [0, 1].map(|number| bytes(&plan, &run(&mut program, &given(&plan, rank, number)).unwrap()))
            });
            for (rank, found) in found.iter().enumerate() {
                for number in [0, 1] {
                    assert!(
                        found[number] == expected[number][rank],
                        "rank {rank} of {ranks}, run {number}, {temporaries:?}"
                    );
                }
            }
        }
    }
}

/// NCCL adds up in an order of its own: of what is no sum, bits are the same, of sums they are not all.
#[test]
fn the_librarys_sums_are_ours_within_rounding() {
    if nccl().is_none() {
        return;
    }
    let mut graph = Graph::new("sums");
    for exchange in Exchange::ALL {
        let mut b = Builder::new(&mut graph, Origin::default());
        let ty = TensorType::new(DType::F32, [12, 5]);
        let x = b.input(exchange.name(), InputRole::Data, ty).unwrap();
        let doubled = b.add(x, x).unwrap();
        let y = b.op(Collective::new(exchange, 3), &[doubled]).unwrap();
        graph.output(format!("{}y", exchange.name()), y);
    }
    let plan = plan(fuse(&graph, Fusion::Full, any_kernel).expect("fuses"));
    let expected = on_cpus(&plan, 3, 0);
    let found = on_devices(3, |device, communicator| {
        let given = given(&plan, communicator.rank(), 0);
        [Temporaries::Arena, Temporaries::Fresh].map(|temporaries| {
            let program = compiled_for(&plan, device, communicator, temporaries, Collectives::Library);
            bytes(&plan, &run(&mut program.unwrap(), &given).unwrap())
        })
    });
    let mut differ = 0;
    for (rank, found) in found.iter().enumerate() {
        assert!(found[0] == found[1]);
        for (number, (found, expected)) in found[0].iter().zip(&expected[rank]).enumerate() {
            if Exchange::ALL[number] == Exchange::AllGather {
                assert!(found == expected, "rank {rank}");
                continue;
            }
            for (found, expected) in found.chunks(4).zip(expected.chunks(4)) {
                let [found, expected] = [found, expected].map(|x| f32::from_le_bytes(x.try_into().unwrap()));
                differ += u32::from(found != expected);
                // Three numbers below 2 · 2 · 4096, each addition rounded.
                assert!((found - expected).abs() <= 2.0 * 3.0 * 16384.0 * f32::EPSILON, "{found} {expected}");
            }
        }
    }
    assert!(differ > 0, "the simulation adds up in another order");
}

#[test]
fn runs_are_started_without_waiting_and_every_exchange_has_its_time() {
    if nccl().is_none() {
        return;
    }
    let plan = program(2, &[&[12]]);
    let expected = [0, 1, 2].map(|number| on_cpus(&plan, 2, number));
    let found = on_devices(2, |device, communicator| {
        let mut program = compiled(&plan, device, communicator, Temporaries::Arena).unwrap();
        let batches = [0, 1, 2].map(|number| given(&plan, communicator.rank(), number));
        let pending = batches.iter().map(|given| {
            let inputs: Vec<_> = given.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
            program.enqueue(&inputs).unwrap()
        });
        let pending: Vec<_> = pending.collect();
        let found: Vec<_> = pending.into_iter().map(|run| bytes(&plan, &run.wait().unwrap())).collect();
        let inputs: Vec<_> = batches[0].iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let (outputs, times) = program.run_timed(&inputs).unwrap();
        assert!(times.iter().all(|time| !time.is_zero()), "{times:?}");
        assert_eq!(bytes(&plan, &outputs), found[0]);
        found
    });
    for (rank, found) in found.iter().enumerate() {
        (0..3).for_each(|number| assert_eq!(found[number], expected[number][rank]));
    }
}

/// A program that was compiled finds its way again; each pair of ranks is connected once.
#[test]
fn programs_share_a_connection() {
    if nccl().is_none() {
        return;
    }
    let plan = program(2, &[&[12]]);
    let expected = on_cpus(&plan, 2, 0);
    let found = on_devices(2, |device, communicator| {
        // A second id would fail.
        fail(c"ncclGetUniqueId", 1);
        let mut programs =
            [(); 2].map(|()| compiled(&plan, device, communicator, Temporaries::Arena).unwrap());
        let given = given(&plan, communicator.rank(), 0);
        programs.each_mut().map(|program| bytes(&plan, &run(program, &given).unwrap()))
    });
    for (found, expected) in found.iter().zip(&expected) {
        assert!(found.iter().all(|found| found == expected));
    }
}

/// What each of two ranks says when `function` fails on rank 1: when it compiles, or when it runs.
fn said(function: &CStr, after: c_int) -> Vec<String> {
    let plan = program(2, &[&[12]]);
    on_devices(2, |device, communicator| {
        if communicator.rank() == 1 {
            fail(function, after);
        }
        let given = given(&plan, communicator.rank(), 0);
        let program = compiled(&plan, device, communicator, Temporaries::Arena);
        let error = program.and_then(|mut program| {
            let first = run(&mut program, &given);
            // What has failed once stays so.
            assert_eq!(run(&mut program, &given).err(), first.clone().err());
            first
        });
        error.err().map_or_else(|| "nothing".into(), |error| error.to_string())
    })
}

#[test]
fn a_call_that_fails_is_an_error_on_every_rank() {
    if nccl().is_none() {
        return;
    }
    let told = |what: &str| format!("NCCL: {what}: unhandled system error (told to fail)");
    let closed = |what: &str| {
        format!("NCCL: {what}: remote process exited or there was a network error (a connection is closed)")
    };
    let connecting = "connecting the ranks";
    assert_eq!(said(c"ncclCommInitRank", 0), [closed(connecting), told(connecting)]);
    for (function, after, what) in [
        (c"ncclSend", 0, "exchanging parts"),
        (c"ncclRecv", 1, "exchanging parts"),
        (c"ncclGroupEnd", 1, "exchanging parts"),
        (c"ncclAllGather", 0, "gathering parts"),
    ] {
        let [first, second] = &said(function, after)[..] else { panic!("two ranks") };
        assert_eq!(second, &told(what), "{function:?}");
        // The other one notices where it is by then.
        let places = ["exchanging parts", "gathering parts", "exchanging with other ranks"].map(closed);
        assert!(places.contains(first), "{function:?}: {first}");
    }
}

#[test]
fn a_rank_that_panics_is_noticed() {
    if nccl().is_none() {
        return;
    }
    let plan = program(2, &[&[12]]);
    let errors = on_devices(2, |_, communicator| {
        let program = || {
            let device = Device::open(communicator.rank()).unwrap();
            let mut program = compiled(&plan, &device, communicator, Temporaries::Arena).unwrap();
            match communicator.rank() {
                0 => run(&mut program, &given(&plan, 0, 0)).unwrap_err().to_string(),
                // Without a message.
                _ => resume_unwind(Box::new(())),
            }
        };
        catch_unwind(AssertUnwindSafe(program)).ok()
    });
    assert_eq!(errors[1], None);
    assert!(errors[0].as_ref().is_some_and(|error| error.contains("a connection is closed")), "{errors:?}");
}

/// Rank 0 of two, the other of which tells this number.
#[derive(Debug)]
struct Beside(u64);

impl Communicator for Beside {
    fn rank(&self) -> usize {
        0
    }

    fn ranks(&self) -> usize {
        2
    }

    fn exchange(&self, _: &[u8], _: usize, _: &mut [u8], _: usize) -> Result<(), CommunicationError> {
        unreachable!("NCCL exchanges")
    }

    fn gather(&self, all: &mut [u8], part: usize) -> Result<(), CommunicationError> {
        all[part..].copy_from_slice(&self.0.to_le_bytes());
        Ok(())
    }
}

#[test]
fn a_rank_with_another_library_is_named() {
    if nccl().is_none() {
        return;
    }
    let plan = program(2, &[&[12]]);
    let device = Device::open(0).unwrap();
    for (number, expected) in [
        (0, CudaError::NoNcclThere { rank: 1 }),
        (1, CudaError::NoNcclThere { rank: 1 }),
        (
            0x6e63_636c_0000_0000 + 22_602,
            CudaError::OtherNccl { rank: 1, own: "2.26.2".into(), first: "2.27.3".into() },
        ),
    ] {
        let communicator: Arc<dyn Communicator> = Arc::new(Beside(number));
        let error = compiled(&plan, &device, &communicator, Temporaries::Arena).unwrap_err();
        assert_eq!(error.to_string(), expected.to_string());
    }
}

#[test]
fn ranks_that_cannot_find_each_other_say_why() {
    if nccl().is_none() {
        return;
    }
    let plan = program(2, &[&[12]]);
    // Rank 0 has no id to give.
    let errors = on_devices(2, |device, communicator| {
        if communicator.rank() == 0 {
            fail(c"ncclGetUniqueId", 0);
        }
        compiled(&plan, device, communicator, Temporaries::Arena).unwrap_err().to_string()
    });
    assert_eq!(errors[0], "NCCL: making an id: unhandled system error (told to fail)");
    assert_eq!(errors[1], CudaError::NoNcclThere { rank: 0 }.to_string());
    // Two ranks have one device.
    let errors = on_devices(2, |_, communicator| {
        let device = Device::open(0).unwrap();
        compiled(&plan, &device, communicator, Temporaries::Arena).unwrap_err().to_string()
    });
    assert!(errors.iter().any(|error| error.contains("Duplicate GPU detected")), "{errors:?}");
    // Rank 1 goes before it has given its version.
    let errors = on_devices(2, |device, communicator| {
        (communicator.rank() == 0)
            .then(|| compiled(&plan, device, communicator, Temporaries::Arena).unwrap_err().to_string())
    });
    let gone = CudaError::Ranks { cause: CommunicationError::Gone { rank: 1 } };
    assert_eq!(errors[0], Some(gone.to_string()));
    // The program is one of other ranks.
    let errors = on_devices(3, |device, communicator| {
        compiled(&plan, device, communicator, Temporaries::Arena).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("an exchange among 2 ranks where there are 3")));
}
