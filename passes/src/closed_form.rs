//! Values that no input reaches, as what they are: one number, positions, a causal mask.
//!
//! Models from elsewhere compute such values in many steps: positions by joining, subtracting and summing up, masks by gathering from
//! those. Here they are evaluated, and where the result is an expression of coordinates, that takes the place of all steps. So the
//! compiler knows which columns a row needs, and no kernel computes a mask.
//!
//! ```text
//! %0 = iota {axis = 0} : i32[4]                  %0 = iota {axis = 1} : i32[4,4]
//! …                                              %1 = iota {axis = 0} : i32[4,4]
//! %9 = gather %8, %7 : bool[4,4]            →    %2 = le %0, %1 : bool[4,4]
//! ```
//!
//! Only whole numbers and truth values are recognised, and only if all numbers on the way are whole and small enough for every number type,
//! so that each back end computes the same.

use kernfusion_ir::evaluate::Array;
use kernfusion_ir::{
    Binary, Builder, Compare, DType, Graph, Iota, KernelEntry, Op, Result, TensorType, ValueId,
};
use std::collections::{BTreeMap, BTreeSet};

/// The most elements of all values that are evaluated, and the most products of theirs.
const MOST: usize = 1 << 24;

/// How a tensor of whole numbers or truth values follows from coordinates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ClosedForm {
    /// One number everywhere.
    Full(f64),
    /// `first + step · coordinate` along an axis, of `i32`.
    Progression {
        /// The axis.
        axis: usize,
        /// At coordinate 0.
        first: f64,
        /// From one coordinate to the next.
        step: f64,
    },
    /// Whether `column ≤ row + diagonal`, in the last two axes.
    LowerTriangle {
        /// How far above the main diagonal it holds.
        diagonal: i32,
    },
}

impl ClosedForm {
    /// The form of a value of that type with these elements, row-major, if it has one.
    pub fn recognise(ty: &TensorType, elements: &[f64]) -> Option<Self> {
        let first = elements.first().copied().unwrap_or(0.0);
        if elements.iter().all(|&element| element == first) {
            return Some(ClosedForm::Full(first));
        }
        match ty.dtype {
            DType::Bool => lower_triangle(&ty.shape, elements),
            DType::I32 => progression(&ty.shape, elements),
            _ => None,
        }
    }

    /// Appends nodes with this value, of that type.
    ///
    /// # Errors
    /// The type has not the axes that the form needs.
    pub fn build(self, b: &mut Builder<'_>, ty: &TensorType) -> Result<ValueId> {
        let coordinates = TensorType::new(DType::I32, ty.shape.clone());
        let place = |b: &mut Builder<'_>, axis| b.op(Iota { ty: coordinates.clone(), axis }, &[]);
        match self {
            ClosedForm::Full(number) => b.full(number, ty),
            ClosedForm::Progression { axis, first, step } => {
                let mut steps = place(b, axis)?;
                for (op, number, neutral) in [(Binary::Mul, step, 1.0), (Binary::Add, first, 0.0)] {
                    if number != neutral {
                        let number = b.full(number, ty)?;
                        steps = b.binary(op, steps, number)?;
                    }
                }
                Ok(steps)
            }
            ClosedForm::LowerTriangle { diagonal } => {
                let (row, column) = (place(b, ty.rank() - 2)?, place(b, ty.rank() - 1)?);
                let distance = b.binary(Binary::Sub, column, row)?;
                let diagonal = b.full(f64::from(diagonal), &coordinates)?;
                b.compare(Compare::Le, distance, diagonal)
            }
        }
    }
}

fn progression(shape: &[usize], elements: &[f64]) -> Option<ClosedForm> {
    let first = elements[0];
    // The innermost axis along which elements differ, and how far its neighbours are from each other.
    let mut inner = 1;
    let (axis, stride) = shape.iter().enumerate().rev().find_map(|(axis, &extent)| {
        let stride = inner;
        inner *= extent;
        (extent > 1 && elements[stride] != first).then_some((axis, stride))
    })?;
    let step = elements[stride] - first;
    let expected = |at: usize| first + step * (at / stride % shape[axis]) as f64;
    let holds = elements.iter().enumerate().all(|(at, &element)| element == expected(at));
    holds.then_some(ClosedForm::Progression { axis, first, step })
}

fn lower_triangle(shape: &[usize], elements: &[f64]) -> Option<ClosedForm> {
    let [.., rows, columns] = *shape else { return None };
    let diagonal = elements[..columns].iter().position(|&element| element == 0.0)? as i64 - 1;
    let place = |at: usize| ((at / columns % rows) as i64, (at % columns) as i64);
    let expected = |(row, column)| f64::from(u8::from(column <= row + diagonal));
    let holds = elements.iter().enumerate().all(|(at, &element)| element == expected(place(at)));
    let diagonal = i32::try_from(diagonal).ok()?;
    holds.then_some(ClosedForm::LowerTriangle { diagonal })
}

/// The forms of values that no input reaches and that take more than arithmetic to compute, where others read them.
pub(crate) fn closed_forms(graph: &Graph) -> BTreeMap<ValueId, ClosedForm> {
    let known = Known::new(graph);
    let mut evaluated = Evaluated { graph, arrays: BTreeMap::new(), left: MOST };
    let mut forms = BTreeMap::new();
    for id in graph.ids().filter(|id| known.is_result(graph, *id)) {
        if let Some(array) = evaluated.value(id) {
            forms.extend(ClosedForm::recognise(&array.ty, &array.values).map(|form| (id, form)));
        }
    }
    forms
}

/// Which values no input reaches.
struct Known {
    /// Those, and whether more than arithmetic of coordinates is needed.
    values: BTreeMap<ValueId, bool>,
    /// What is read by another value than those, or through a view, or is an output.
    read: BTreeSet<ValueId>,
}

impl Known {
    fn new(graph: &Graph) -> Self {
        let mut known = Known { values: BTreeMap::new(), read: BTreeSet::new() };
        known.read.extend(graph.outputs().iter().map(|output| output.value));
        for id in graph.ids() {
            let node = &graph[id];
            let takes_work = match node.op.entry() {
                KernelEntry::Generated if matches!(node.op, Op::RandomBits(_)) => None,
                KernelEntry::Generated | KernelEntry::View | KernelEntry::Scalar => Some(false),
                KernelEntry::Movement | KernelEntry::Reduction | KernelEntry::Contraction => Some(true),
                KernelEntry::Input | KernelEntry::Scatter | KernelEntry::Loop | KernelEntry::Collective => {
                    None
                }
            };
            let operands: Option<Vec<bool>> =
                node.operands.iter().map(|operand| known.values.get(operand).copied()).collect();
            let value = takes_work.zip(operands).map(|(own, operands)| own || operands.contains(&true));
            if value.is_none() || node.op.entry() == KernelEntry::View {
                known.read.extend(&node.operands);
            }
            known.values.extend(value.map(|value| (id, value)));
        }
        known
    }

    /// Whether it is worth a look.
    fn is_result(&self, graph: &Graph, id: ValueId) -> bool {
        let ty = &graph[id].ty;
        let is_whole = ty.dtype == DType::I32 || ty.dtype == DType::Bool;
        let is_view = graph[id].op.entry() == KernelEntry::View;
        is_whole && !is_view && self.values.get(&id) == Some(&true) && self.read.contains(&id)
    }
}

/// Values as they are computed, each once.
struct Evaluated<'g> {
    graph: &'g Graph,
    /// None for what is not whole, or would take too long.
    arrays: BTreeMap<ValueId, Option<Array>>,
    /// Elements and products that may still be computed.
    left: usize,
}

impl Evaluated<'_> {
    fn value(&mut self, id: ValueId) -> Option<&Array> {
        let mut needed = BTreeSet::from([id]);
        let mut open = vec![id];
        while let Some(id) = open.pop() {
            let operands =
                self.graph[id].operands.iter().filter(|operand| !self.arrays.contains_key(operand));
            open.extend(operands.filter(|operand| needed.insert(**operand)));
        }
        for id in needed {
            if !self.arrays.contains_key(&id) {
                let array = self.computed(id);
                self.arrays.insert(id, array);
            }
        }
        self.arrays[&id].as_ref()
    }

    fn computed(&mut self, id: ValueId) -> Option<Array> {
        let node = &self.graph[id];
        let operands: Vec<_> =
            node.operands.iter().map(|operand| self.arrays[operand].as_ref()).collect::<Option<_>>()?;
        let terms = match &node.op {
            Op::DotGeneral(dot) => dot.lhs_contract.iter().map(|&axis| operands[0].ty.shape[axis]).product(),
            _ => 1usize,
        };
        let read = operands.iter().map(|array| array.values.len()).sum::<usize>();
        let work = node.ty.elements().checked_mul(terms)?.checked_add(read)?;
        self.left = self.left.checked_sub(work)?;
        let values: Vec<f64> =
            node.op.eval(&operands, &node.ty).into_iter().map(|x| node.ty.dtype.round(x)).collect();
        let is_whole = |x: &f64| x.fract() == 0.0 && x.abs() <= DType::F32.largest_whole();
        values.iter().all(is_whole).then(|| Array { ty: node.ty.clone(), values })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernfusion_ir::evaluate::{Precision, evaluate};

    /// What is built in place of a value, if anything is.
    fn built(ty: &TensorType, elements: &[f64]) -> Option<Vec<f64>> {
        let mut graph = Graph::new("form");
        let form = ClosedForm::recognise(ty, elements)?;
        let value = form.build(&mut Builder::new(&mut graph, Default::default()), ty).unwrap();
        graph.output("y", value);
        graph.verify().unwrap();
        let result = evaluate(&graph, &Default::default(), Precision::Declared).unwrap();
        assert_eq!(result["y"].ty, *ty);
        Some(result["y"].values.clone())
    }

    fn whole(shape: &[usize], elements: &[i32]) -> (TensorType, Vec<f64>) {
        (TensorType::new(DType::I32, shape), elements.iter().map(|&x| f64::from(x)).collect())
    }

    fn truths(shape: &[usize], f: fn(i32, i32) -> bool) -> (TensorType, Vec<f64>) {
        let [.., rows, columns] = *shape else { unreachable!("matrices") };
        let element = |at: usize| f((at / columns % rows) as i32, (at % columns) as i32);
        let count: usize = shape.iter().product();
        let elements = (0..count).map(|at| f64::from(u8::from(element(at)))).collect();
        (TensorType::new(DType::Bool, shape), elements)
    }

    #[test]
    fn forms_have_the_values_that_they_stand_for() {
        for (ty, elements) in [
            whole(&[1, 5], &[0, 1, 2, 3, 4]),
            whole(&[2, 3], &[7, 7, 7, 5, 5, 5]),
            whole(&[2, 3], &[-1, 3, 7, -1, 3, 7]),
            whole(&[3], &[4, 4, 4]),
            whole(&[0, 2], &[]),
            truths(&[1, 1, 4, 4], |row, column| column <= row),
            truths(&[3, 5], |row, column| column <= row + 2),
            truths(&[2, 2], |_, _| true),
        ] {
            assert_eq!(built(&ty, &elements), Some(elements), "{ty}");
        }
    }

    #[test]
    fn what_is_almost_a_form_is_none() {
        for (ty, elements) in [
            whole(&[2, 3], &[0, 1, 2, 0, 1, 3]),
            whole(&[4], &[0, 1, 3, 4]),
            (TensorType::new(DType::F32, [2]), vec![0.0, 1.0]),
            truths(&[3, 3], |row, column| column >= row),
            truths(&[3, 3], |row, column| column <= row && row < 2),
        ] {
            assert_eq!(built(&ty, &elements), None, "{ty} {elements:?}");
        }
    }
}
