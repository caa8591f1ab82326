//! Samples of constants, coordinates, random bits, and of states that take a new value.

use super::{Operand, Table, Values};
use crate::{Builder, Constant, DType, Graph, InputRole, Iota, Literal, Origin, RandomBits, TensorType};

pub(super) fn add(table: &mut Table) {
    for dtype in DType::ALL {
        let value = Literal::new(if dtype == DType::Bool { 1.0 } else { 3.0 });
        table.op(&format!("{dtype}"), Constant { value, dtype }, &[]).tolerance = 0.0;
        if dtype.is_number() {
            for (shape, axis) in [(vec![7], 0), (vec![3, 1, 5], 1), (vec![3, 4, 5], 1), (vec![2, 3, 4, 5], 3)]
            {
                let case = format!("{shape:?}.{axis}.{dtype}");
                let iota = Iota { ty: TensorType::new(dtype, shape), axis };
                table.op(&case, iota, &[]).tolerance = 0.0;
            }
        }
    }
    for value in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -0.5] {
        table.op(&format!("{value}"), Constant { value: Literal::new(value), dtype: DType::F32 }, &[]);
    }
    let word = Operand::new(DType::U32, &[], Values::Bits);
    for shape in [vec![], vec![1], vec![7, 13], vec![2, 3, 4, 5]] {
        let bits = RandomBits { node: 0x9E37_79B9, shape, parts: 1 };
        table.op(&format!("{:?}", bits.shape), bits, &[word.clone(), word.clone()]);
    }
    for shape in [vec![13], vec![2, 7, 13]] {
        let bits = RandomBits { node: 0x9E37_79B9, shape, parts: 5 };
        // Mostly beyond the last part, which is then drawn.
        let operands = [word.clone(), word.clone(), word.clone()];
        table.op(&format!("{:?}.part", bits.shape), bits.clone(), &operands);
        table.graph(&format!("random_bits.{:?}.third_part", bits.shape), &operands[..2], |b, keys| {
            let part = b.constant(2.0, DType::U32)?;
            b.op(bits, &[keys[0], keys[1], part])
        });
    }
    for role in [InputRole::Data, InputRole::State] {
        passed_on(table, role);
    }
    updated_state(table);
}

/// An input that is itself the result: nothing computes it, yet it must be there.
fn passed_on(table: &mut Table, role: InputRole) {
    let name = match role {
        InputRole::Data => "input.passed_on",
        InputRole::State => "state.passed_on",
    };
    let ty = TensorType::new(DType::F32, [3, 5]);
    let mut graph = Graph::new(name);
    let mut b = Builder::new(&mut graph, Origin::default());
    let x = b.input("x", role, ty.clone()).expect("the name is new");
    graph.output("y", x);
    let inputs = [("x".to_string(), table.draws.tensor(&ty, Values::OffWhole))].into();
    table.samples.push(super::Sample { name: name.into(), graph, inputs, tolerance: 0.0, gradient: true });
}

/// `w ← w − g·w`, whose old value is a result as well: an update in place must not come too early.
fn updated_state(table: &mut Table) {
    let ty = TensorType::new(DType::F32, [7, 13]);
    let mut graph = Graph::new("state.updated");
    let mut b = Builder::new(&mut graph, Origin::default());
    let build = |b: &mut Builder<'_>| {
        let w = b.input("w", InputRole::State, ty.clone())?;
        let g = b.input("g", InputRole::Data, ty.clone())?;
        let step = b.mul(g, w)?;
        Ok::<_, crate::IrError>((b.sub(w, step)?, b.add(w, w)?))
    };
    let (new, twice) = build(&mut b).expect("all operands have one type");
    graph.update("w", new);
    graph.output("y", twice);
    let mut draw = || table.draws.tensor(&ty, Values::Between(-2.0, 2.0));
    let inputs = [("w".to_string(), draw()), ("g".to_string(), draw())].into();
    let name = "state.updated".into();
    table.samples.push(super::Sample { name, graph, inputs, tolerance: 2e-6, gradient: true });
}
