//! Executables: states, updates, memory, errors, sharing of code.

use crate::support::{Bench, Program, Random, at};
use kernfusion_codegen::{CodegenError, States, Temporaries};
use kernfusion_cpu::isa::Isa;
use kernfusion_cpu::pool::Pool;
use kernfusion_cpu::{Options, PlanExecutable};
use kernfusion_ir::kernel::{BufferId, BufferRole, Direction, Domain, Form, InstrKind, Place, any_kernel};
use kernfusion_ir::{Binary, DType, Graph, ReduceOp, Tensor, TensorType, Unary};
use kernfusion_passes::fuse::{Fusion, fuse};
use kernfusion_passes::plan::plan;
use std::sync::Arc;

const N: usize = 100;

fn ty() -> TensorType {
    TensorType::new(DType::F32, [N])
}

/// `y = op(x)` as a kernel.
fn unary(bench: &mut Bench, op: Unary, x: BufferId, y: BufferId) {
    let mut p = Program::default();
    let x = p.load(x, DType::F32, at(&[1]));
    let value = p.push(InstrKind::Unary(op, x), DType::F32);
    p.store(value, y, at(&[1]));
    bench.kernel(Form::Map, Domain::flat([N]), p.region, p.stores);
}

/// A chain x → neg → abs → neg → y.
fn chain() -> Bench {
    let mut bench = Bench::default();
    let x = bench.input("x", Random(1).tensor(&ty(), -1.0, 1.0));
    let a = bench.buffer("a", ty(), BufferRole::Temporary);
    let b = bench.buffer("b", ty(), BufferRole::Temporary);
    let y = bench.output("y", DType::F32, &[N]);
    unary(&mut bench, Unary::Neg, x, a);
    unary(&mut bench, Unary::Abs, a, b);
    unary(&mut bench, Unary::Neg, b, y);
    bench
}

#[test]
fn equal_kernels_share_code_and_both_memories_agree() {
    let bench = chain();
    bench.check(0.0);
    for isa in Isa::available() {
        let options = Options { threads: 1, keep_code: true, isa: Some(isa), ..Options::default() };
        let executable = PlanExecutable::compile(bench.plan(), &States::new(), &options).unwrap();
        assert_eq!(executable.programs(), 2);
        // The listing goes down to loops over whole vectors.
        let (clif, assembly) = (executable.clif("kernel1").unwrap(), executable.assembly("kernel1").unwrap());
        match isa {
            Isa::Avx512 { .. } => assert!(assembly.contains("vpandd zmm"), "{assembly}"),
            Isa::Avx2 => assert!(assembly.contains("vpand ymm"), "{assembly}"),
            Isa::Portable => assert!(clif.contains("fabs"), "{clif}"),
        }
        assert_eq!(executable.clif("none"), None);
    }
}

#[test]
fn buffers_may_share_a_place_of_the_arena() {
    let bench = chain();
    let mut plan = bench.plan();
    // a, b and y in place of each other.
    for buffer in 1..4 {
        plan.places[buffer] = Place::Arena { offset: 128 };
    }
    plan.arena_bytes = 128 + 4 * N;
    let mut executable = PlanExecutable::compile(plan, &States::new(), &Options::default()).unwrap();
    let x = &bench.inputs["x"];
    let outputs = executable.run(&[("x", x)]).unwrap();
    let expected: Vec<f64> = x.to_f64().into_iter().map(|x| -x.abs()).collect();
    assert_eq!(outputs.get("y").unwrap().to_f64(), expected);
}

/// Rows of a softmax written over what it reads.
#[test]
fn rows_are_normalised_in_place() {
    let (rows, columns) = (7, 45);
    let ty = TensorType::new(DType::F32, [rows, columns]);
    let mut bench = Bench::default();
    let x = bench.input("x", Random(3).tensor(&ty, -3.0, 3.0));
    let t = bench.buffer("t", ty, BufferRole::Temporary);
    let y = bench.output("y", DType::F32, &[rows, columns]);
    let index = || at(&[columns as i64, 1]);
    let mut p = Program::default();
    let value = p.load(x, DType::F32, index());
    let value = p.push(InstrKind::Unary(Unary::Neg, value), DType::F32);
    p.store(value, t, index());
    bench.kernel(Form::Map, Domain::flat([rows, columns]), p.region, p.stores);
    let mut p = Program::default();
    let value = p.load(t, DType::F32, index());
    let max = p.push(InstrKind::Reduce(ReduceOp::Max, Direction::Columns, value), DType::F32);
    let value = p.push(InstrKind::Binary(Binary::Sub, value, max), DType::F32);
    let value = p.push(InstrKind::Unary(Unary::Exp, value), DType::F32);
    let sum = p.push(InstrKind::Reduce(ReduceOp::Sum, Direction::Columns, value), DType::F32);
    let value = p.push(InstrKind::Binary(Binary::Div, value, sum), DType::F32);
    p.store(value, y, index());
    let domain = Domain { axes: vec![rows, columns], outer: 0, rows: 1 };
    bench.kernel(Form::Reduce, domain, p.region, p.stores);

    let mut plan = bench.plan();
    plan.places[y.0 as usize] = plan.places[t.0 as usize];
    let x = bench.inputs["x"].clone();
    let run = |plan| {
        let mut executable = PlanExecutable::compile(plan, &States::new(), &Options::default()).unwrap();
        executable.run(&[("x", &x)]).unwrap().get("y").unwrap().to_f64()
    };
    let (in_place, apart) = (run(plan), run(bench.plan()));
    assert_eq!(in_place, apart);
    assert!((in_place.iter().sum::<f64>() - rows as f64).abs() < 1e-5);
}

/// `w ← w + x`, in place or by a copy, and a swap of two states.
#[test]
fn states_are_updated_in_place_and_by_copies() {
    for in_place in [false, true] {
        for memory in [Temporaries::Arena, Temporaries::Fresh] {
            let mut bench = Bench::default();
            let mut random = Random(2);
            let x = bench.input("x", random.tensor(&ty(), -1.0, 1.0));
            let names = ["w", "p", "q"];
            let [w, p, q] = names.map(|name| bench.buffer(name, ty(), BufferRole::State));
            let new = bench.buffer("new", ty(), BufferRole::Temporary);
            let mut program = Program::default();
            let a = program.load(x, DType::F32, at(&[1]));
            let b = program.load(w, DType::F32, at(&[1]));
            let sum = program.push(InstrKind::Binary(Binary::Add, a, b), DType::F32);
            // The old value is needed again after the call: it must not be read from memory a second time.
            let e = program.push(InstrKind::Unary(Unary::Neg, a), DType::F32);
            let e = program.push(InstrKind::Unary(Unary::Exp, e), DType::F32);
            let late = program.push(InstrKind::Binary(Binary::Mul, e, b), DType::F32);
            let out = bench.output("late", DType::F32, &[N]);
            program.store(sum, new, at(&[1]));
            program.store(late, out, at(&[1]));
            bench.kernel(Form::Map, Domain::flat([N]), program.region, program.stores);
            bench.graph.updates = vec![(w, new), (p, q), (q, p)];
            let states = States::new();
            let old = names.map(|name| {
                let value = random.tensor(&ty(), -1.0, 1.0);
                states.set(name, &value).unwrap();
                value.to_f64()
            });
            let mut plan = bench.plan();
            if in_place {
                plan.places[new.0 as usize] = Place::Alias(w);
            }
            let options = Options { temporaries: memory, ..Options::default() };
            let mut executable = PlanExecutable::compile(plan, &states, &options).unwrap();
            let x = bench.inputs["x"].clone();
            let outputs = executable.run(&[("x", &x)]).unwrap();
            let [w, p, q] = names.map(|name| states.get(name).unwrap().to_f64());
            assert_eq!((p, q), (old[2].clone(), old[1].clone()));
            let late = outputs.get("late").unwrap().to_f64();
            for i in 0..N {
                let x = x.to_f64()[i] as f32;
                assert_eq!(w[i] as f32, old[0][i] as f32 + x);
                assert!((late[i] - f64::from((-x).exp()) * old[0][i]).abs() < 1e-6);
            }
        }
    }
}

#[test]
fn inputs_are_checked_before_anything_happens() {
    let bench = chain();
    let mut executable = PlanExecutable::compile(bench.plan(), &States::new(), &Options::default()).unwrap();
    let x = bench.inputs["x"].clone();
    let short = Tensor::new([3], vec![1.0f32; 3]);
    let reasons = [
        (vec![], "input \"x\": is missing; it is f32[100]"),
        (
            vec![("x", &short)],
            "input \"x\": expects f32[100], got f32[3]; extents are fixed when a program is traced: trace it again for others",
        ),
        (vec![("x", &x), ("z", &x)], "input \"z\": there is no such input (there are: x)"),
        (vec![("x", &x), ("x", &x)], "input \"x\": is given twice"),
    ];
    for (inputs, expected) in reasons {
        assert_eq!(executable.run(&inputs).unwrap_err().to_string(), expected);
    }
    let (outputs, times) = executable.run_timed(&[("x", &x)]).unwrap();
    assert_eq!((outputs.iter().count(), times.len()), (1, 3));
    assert!(outputs.scalar("y").is_err());
}

#[test]
fn states_keep_their_type_and_missing_ones_are_zero() {
    let mut bench = Bench::default();
    let w = bench.buffer("w", ty(), BufferRole::State);
    let y = bench.output("y", DType::F32, &[N]);
    unary(&mut bench, Unary::Exp, w, y);
    let states = States::new();
    let mut executable = PlanExecutable::compile(bench.plan(), &states, &Options::default()).unwrap();
    let outputs = executable.run(&[]).unwrap();
    assert_eq!(outputs.get("y").unwrap().to_f64(), vec![1.0; N]);
    assert_eq!(states.names(), ["w"]);

    let other = States::new();
    other.set("w", &Tensor::new([1], vec![1i32])).unwrap();
    let error = PlanExecutable::compile(bench.plan(), &other, &Options::default()).unwrap_err();
    assert!(matches!(error, CodegenError::State { .. }), "{error}");
}

#[test]
fn executables_move_between_threads_and_share_a_pool() {
    let bench = chain();
    let pool = Arc::new(Pool::new(2));
    let options = Options { pool: Some(pool), ..Options::default() };
    let x = bench.inputs["x"].clone();
    let handles: Vec<_> = (0..3)
        .map(|_| {
            let mut executable = PlanExecutable::compile(bench.plan(), &States::new(), &options).unwrap();
            let x = x.clone();
            std::thread::spawn(move || executable.run(&[("x", &x)]).unwrap().get("y").unwrap().clone())
        })
        .collect();
    let results: Vec<_> = handles.into_iter().map(|handle| handle.join().unwrap()).collect();
    assert!(results.iter().all(|result| *result == results[0]));
}

/// Of a row of a concatenation, the loop reads the part that the row lies in.
#[test]
fn a_loop_reads_one_part_of_a_concatenation() {
    let text = r#"
graph "rows" {
  %a = input {name = "a", dtype = f32, shape = [2, 40]} : f32[2,40]
  %b = input {name = "b", dtype = f32, shape = [3, 40]} : f32[3,40]
  %c = input {name = "c", dtype = f32, shape = [1, 40]} : f32[1,40]
  %1 = concat %a, %b, %c {axis = 0} : f32[6,40]
  %2 = exp %1 : f32[6,40]
  output "y" = %2
}"#;
    let graph = Graph::parse(text).unwrap();
    let plan = plan(fuse(&graph, Fusion::Full, any_kernel).unwrap());
    let kernel = plan.graph.kernels[0].name.clone();
    let options = Options { keep_code: true, ..Options::default() };
    let executable = PlanExecutable::compile(plan, &States::new(), &options).unwrap();
    let schedule = executable.schedule(&kernel).unwrap();
    assert!(schedule.contains("select") && !schedule.contains("load"), "{schedule}");
}

/// Functions of short rows are for a kernel that computes vectors of them.
#[test]
fn functions_of_short_rows_have_a_kernel_of_their_own() {
    let kernels = |columns: usize| {
        let text = format!(
            r#"
graph "rows" {{
  %x = input {{name = "x", dtype = f32, shape = [4096, {columns}]}} : f32[4096,{columns}]
  %s = input {{name = "s", dtype = f32, shape = [4096]}} : f32[4096]
  %1 = exp %s : f32[4096]
  %2 = broadcast %1 {{shape = [4096, {columns}], axes = [0]}} : f32[4096,{columns}]
  %3 = mul %x, %2 : f32[4096,{columns}]
  %4 = reduce %3 {{op = sum, axes = [1]}} : f32[4096]
  output "y" = %4
}}"#
        );
        fuse(&Graph::parse(&text).unwrap(), Fusion::Full, kernfusion_cpu::accepts).unwrap().kernels.len()
    };
    assert_eq!((kernels(16), kernels(512)), (2, 1));
}
