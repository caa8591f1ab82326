//! Kernels print as their documentation shows, count their cost, and are refused when they break an invariant.

use kernfusion_ir::kernel::{
    Bound, Buffer, BufferId, BufferRole, Contraction, Direction, Domain, Form, Index, Indirect, Instr,
    InstrKind, Kernel, KernelGraph, Operand, Product, Region, Scalar, Store, StoreMode, verify,
};
use kernfusion_ir::{Binary, Compare, DType, Literal, ReduceOp, TensorType, Unary, ValueId};

fn buffer(name: &str, role: BufferRole, dtype: DType, shape: &[usize]) -> Buffer {
    Buffer { name: name.into(), ty: TensorType::new(dtype, shape), role, continues: None }
}

fn index(strides: &[i64], offset: i64) -> Index {
    Index { offset, strides: strides.to_vec(), indirect: vec![] }
}

fn load(buffer: u32, index: Index) -> InstrKind {
    InstrKind::Load { buffer: BufferId(buffer), index, guard: vec![] }
}

fn region(instrs: Vec<(InstrKind, DType)>) -> Region {
    Region { instrs: instrs.into_iter().map(|(kind, dtype)| Instr { kind, dtype }).collect() }
}

fn set(value: u32, buffer: u32, index: Index) -> Store {
    Store { value: Scalar(value), buffer: BufferId(buffer), index, mode: StoreMode::Set }
}

/// The example at the head of the kernel module.
fn softmax() -> KernelGraph {
    let f32s = |kinds: Vec<InstrKind>| region(kinds.into_iter().map(|kind| (kind, DType::F32)).collect());
    let at = || index(&[256, 1], 0);
    let reduce = |op, x| InstrKind::Reduce(op, Direction::Columns, Scalar(x));
    let binary = |op, x, y| InstrKind::Binary(op, Scalar(x), Scalar(y));
    let kernel = Kernel {
        name: "softmax".into(),
        form: Form::Reduce,
        domain: Domain { axes: vec![98304, 256], outer: 0, rows: 1 },
        region: f32s(vec![
            load(0, at()),
            reduce(ReduceOp::Max, 0),
            binary(Binary::Sub, 0, 1),
            InstrKind::Unary(Unary::Exp, Scalar(2)),
            reduce(ReduceOp::Sum, 3),
            binary(Binary::Div, 3, 4),
        ]),
        stores: vec![set(5, 1, at())],
        covers: [3, 4, 7].map(ValueId::from_index).to_vec(),
    };
    KernelGraph {
        name: "attention".into(),
        buffers: vec![
            buffer("scores", BufferRole::Input, DType::F32, &[98304, 256]),
            buffer("weights", BufferRole::Temporary, DType::F32, &[98304, 256]),
        ],
        kernels: vec![kernel],
        outputs: vec![("y".into(), BufferId(1), TensorType::new(DType::F32, [384, 256, 256]))],
        ..KernelGraph::default()
    }
}

/// Rows of a table times a matrix, padded, plus a guarded bias: `y[m, n] = Σ_k table[ids[m], k]·w[k, n] + bias[n − 3]`.
fn product() -> KernelGraph {
    let row = Indirect { value: Scalar(0), limit: 65, stride: 512 };
    let a = region(vec![
        (load(0, index(&[1, 0, 0], 0)), DType::I32),
        (load(1, Index { indirect: vec![row], ..index(&[0, 0, 1], 0) }), DType::F32),
    ]);
    let b = region(vec![(load(2, index(&[0, 1, 10], 0)), DType::F32)]);
    let guard = vec![Bound { coordinate: index(&[0, 1], -3), extent: 7 }];
    let body = region(vec![
        (InstrKind::Producer(0), DType::F32),
        (
            InstrKind::Load { buffer: BufferId(3), index: index(&[0, 1], -3), guard: guard.clone() },
            DType::F32,
        ),
        (InstrKind::Binary(Binary::Add, Scalar(0), Scalar(1)), DType::F32),
        (InstrKind::InRange(guard), DType::Bool),
        (InstrKind::Constant(Literal::new(-0.5)), DType::F32),
        (InstrKind::Select(Scalar(3), Scalar(2), Scalar(4)), DType::F32),
        (InstrKind::Reduce(ReduceOp::Sum, Direction::Rows, Scalar(5)), DType::F32),
    ]);
    let kernel = Kernel {
        name: "head".into(),
        form: Form::Contraction(Contraction::from(vec![Product {
            k: vec![512],
            a: Operand { region: a, value: Scalar(1) },
            b: Operand { region: b, value: Scalar(0) },
            dtype: DType::F32,
        }])),
        domain: Domain { axes: vec![12, 10], outer: 0, rows: 1 },
        region: body,
        stores: vec![set(5, 4, index(&[-10, 1], 110)), set(6, 5, index(&[0, 1], 0))],
        covers: vec![],
    };
    KernelGraph {
        name: "head".into(),
        buffers: vec![
            buffer("ids", BufferRole::Input, DType::I32, &[12]),
            buffer("table", BufferRole::State, DType::F32, &[65, 512]),
            buffer("w", BufferRole::State, DType::F32, &[512, 10]),
            buffer("bias", BufferRole::State, DType::F32, &[7]),
            buffer("y", BufferRole::Temporary, DType::F32, &[12, 10]),
            buffer("sums", BufferRole::Temporary, DType::F32, &[10]),
        ],
        kernels: vec![kernel],
        ..KernelGraph::default()
    }
}

#[test]
fn softmax_prints_as_documented() {
    let expected = r#"kernels "attention"
input scores : f32[98304,256]
temporary weights : f32[98304,256]

reduce softmax over rows [98304] columns [256]
  # covers %3 %4 %7
  # 192.0 MiB moved, 125829120 operations
  %0 = load scores[256·r0 + c0] : f32
  %1 = reduce.columns max %0 : f32
  %2 = sub %0 %1 : f32
  %3 = exp %2 : f32
  %4 = reduce.columns sum %3 : f32
  %5 = div %3 %4 : f32
  store %5 → weights[256·r0 + c0]

output "y" = weights : f32[384,256,256]
"#;
    assert_eq!(softmax().to_string(), expected);
}

#[test]
fn products_guards_and_indirection_print() {
    let graph = product();
    let text = graph.show(&graph.kernels[0]).to_string();
    let expected = r#"contraction head over rows [12] columns [10]
  # 44.6 KiB moved, 123240 operations
  product 0 over k [512] : f32
    a = %1 of
      %0 = load ids[r0] : i32
      %1 = load table[k0 + 512·clamp(%0, 65)] : f32
    b = %0 of
      %0 = load w[c0 + 10·k0] : f32
  %0 = product 0 : f32
  %1 = load bias[c0 − 3] if 0 ≤ c0 − 3 < 7 : f32
  %2 = add %0 %1 : f32
  %3 = in_range 0 ≤ c0 − 3 < 7 : bool
  %4 = constant -0.5 : f32
  %5 = select %3 %2 %4 : f32
  %6 = reduce.rows sum %5 : f32
  store %5 → y[−10·r0 + c0 + 110]
  store %6 → sums[c0]
"#;
    assert_eq!(text, expected);
    assert!(graph.kernels[0].to_string().contains("load b1[k0 + 512·clamp(%0, 65)]"));
}

#[test]
fn costs_count_what_is_touched() {
    let graph = product();
    let kernel = &graph.kernels[0];
    // Three computing instructions a point, and the product.
    assert_eq!(kernel.operations(), 3 * 120 + 2 * 120 * 512);
    // ids, twelve rows of the table, w, bias, y, sums: of the table not the whole.
    let elements = 12 + 12 * 512 + 5120 + 7 + 120 + 10;
    assert_eq!(graph.bytes_moved(kernel), 4 * elements);
    let softmax = softmax();
    assert_eq!(softmax.bytes_moved(&softmax.kernels[0]), 2 * 98304 * 256 * 4);
}

#[test]
fn sound_kernels_pass() {
    assert_eq!(verify(&softmax()), Ok(()));
    assert_eq!(verify(&product()), Ok(()));
}

/// What the verifier says of a graph after a change.
fn broken(mut graph: KernelGraph, change: impl FnOnce(&mut KernelGraph)) -> String {
    change(&mut graph);
    verify(&graph).expect_err("a broken graph")
}

/// The same for a change of an instruction of the only kernel.
fn broken_instr(graph: KernelGraph, number: usize, kind: InstrKind) -> String {
    broken(graph, |graph| graph.kernels[0].region.instrs[number].kind = kind)
}

#[test]
fn operands_and_types_are_checked() {
    let binary = |x, y| InstrKind::Binary(Binary::Sub, Scalar(x), Scalar(y));
    let late = broken_instr(softmax(), 2, binary(0, 2));
    assert_eq!(late, "kernel `softmax`: %2: %2 does not come before its user");
    let compare = InstrKind::Compare(Compare::Lt, Scalar(0), Scalar(1));
    assert_eq!(broken_instr(softmax(), 2, compare), "kernel `softmax`: %2: a comparison is bool, not f32");
    let select = InstrKind::Select(Scalar(0), Scalar(2), Scalar(4));
    let wrong = broken_instr(product(), 5, select);
    assert_eq!(wrong, "kernel `head`: %5: takes bool, but %0 is f32");
    let store = broken(softmax(), |graph| graph.kernels[0].stores[0].value = Scalar(6));
    assert_eq!(store, "kernel `softmax`: store of %6: %6 does not come before its user");
}

#[test]
fn memory_is_checked() {
    let unknown = broken_instr(softmax(), 0, load(2, index(&[256, 1], 0)));
    assert_eq!(unknown, "kernel `softmax`: %0: there is no buffer 2");
    let axes = broken_instr(softmax(), 0, load(0, index(&[1], 0)));
    assert_eq!(axes, "kernel `softmax`: %0: an index map has 1 strides for 2 axes");
    let outside = broken_instr(softmax(), 0, load(0, index(&[256, 1], 1)));
    assert_eq!(outside, "kernel `softmax`: %0: reaches 1..=25165824 of `scores`, which is f32[98304,256]");
    let store = broken(product(), |graph| graph.kernels[0].stores[0].index.offset = 109);
    assert_eq!(store, "kernel `head`: store of %5: reaches -1..=118 of `y`, which is f32[12,10]");
    let unguarded = broken_instr(product(), 1, load(3, index(&[0, 1], -3)));
    assert_eq!(unguarded, "kernel `head`: %1: reaches -3..=6 of `bias`, which is f32[7]");
    let dtype = broken(softmax(), |graph| graph.buffers[1].ty.dtype = DType::BF16);
    assert_eq!(dtype, "kernel `softmax`: store of %5: f32 in `weights`, which is bf16[98304,256]");
}

fn contraction(graph: &mut KernelGraph) -> &mut Product {
    match &mut graph.kernels[0].form {
        Form::Contraction(contraction) => &mut contraction.products[0],
        Form::Map | Form::Reduce | Form::Loop(_) | Form::Collective(_) => {
            panic!("the kernel is a contraction")
        }
    }
}

#[test]
fn products_are_checked() {
    let limit = broken(product(), |graph| match &mut contraction(graph).a.region.instrs[1].kind {
        InstrKind::Load { index, .. } => index.indirect[0].limit = 66,
        _ => panic!("the instruction is a load"),
    });
    assert_eq!(
        limit,
        "kernel `head`: product 0: operand a: %1: reaches 0..=33791 of `table`, which is f32[65,512]"
    );
    let side = broken(product(), |graph| {
        contraction(graph).b.region.instrs[0].kind = load(2, index(&[1, 1, 10], 0));
    });
    assert_eq!(side, "kernel `head`: product 0: operand b: %0: operand b depends on rows");
    let missing = broken(product(), |graph| contraction(graph).b.value = Scalar(1));
    assert_eq!(missing, "kernel `head`: product 0: operand b: %1 does not come before its user");
    let none = broken_instr(product(), 0, InstrKind::Producer(1));
    assert_eq!(none, "kernel `head`: %0: there is no product 1 here");
}

#[test]
fn reductions_and_forms_are_checked() {
    let map = broken(softmax(), |graph| graph.kernels[0].form = Form::Map);
    assert_eq!(map, "kernel `softmax`: %1: there are no reductions here");
    let rows = InstrKind::Reduce(ReduceOp::Max, Direction::Rows, Scalar(0));
    let used = broken_instr(softmax(), 1, rows);
    assert_eq!(used, "kernel `softmax`: %2: uses %1, a reduction over rows");
    let spread = broken(product(), |graph| graph.kernels[0].stores[1] = set(6, 4, index(&[10, 1], 0)));
    assert_eq!(spread, "kernel `head`: store of %6: a reduction over rows is written along the rows");
    let added = broken(softmax(), |graph| {
        let add = Store { mode: StoreMode::Add, ..set(4, 1, index(&[256, 0], 0)) };
        graph.kernels[0].stores.push(add);
    });
    assert_eq!(added, "kernel `softmax`: store of %4: a reduced value is added, once for each point");
    let domain = broken(softmax(), |graph| graph.kernels[0].domain.rows = 3);
    assert_eq!(domain, "kernel `softmax`: has 0 outer axes and 3 row axes of 2");
}

#[test]
fn order_names_and_results_are_checked() {
    let early = broken(softmax(), |graph| graph.buffers[0].role = BufferRole::Temporary);
    assert_eq!(early, "kernel `softmax`: reads `scores` before a kernel has written it");
    let part = broken(softmax(), |graph| graph.buffers[1].ty.shape = vec![98304, 257]);
    assert_eq!(part, "kernel `softmax`: writes only a part of `weights`");
    let twice = broken(softmax(), |graph| graph.kernels.push(graph.kernels[0].clone()));
    assert_eq!(twice, "kernel `softmax`: its name is taken");
    let shape = broken(softmax(), |graph| graph.outputs[0].2.shape = vec![7]);
    assert_eq!(shape, "output \"y\": shows `weights`, f32[98304,256], as f32[7]");
    let state = broken(softmax(), |graph| graph.updates.push((BufferId(0), BufferId(1))));
    assert_eq!(state, "update of `scores`: it is no state");
    let nothing = broken(softmax(), |graph| graph.kernels.clear());
    assert_eq!(nothing, "output \"y\": no kernel writes `weights`");
}
