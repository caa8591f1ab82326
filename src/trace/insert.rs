//! Programs that are there already, as functions over traced tensors.

use super::{Program, Tensor, Trace};
use kernfusion_ir::{DType, Graph, Input, InputRole, Op, TensorType, ValueId};
use std::collections::BTreeSet;

impl Trace {
    /// A program as a function: its nodes with `inputs` in place of its own inputs, which are found by name. Its results, by name, are as the
    /// program has them.
    ///
    /// Its parameters and other states are declared under the open module path and their names, and take the values that the program gives
    /// them. Where the program draws random numbers from `seed` and `step`, those of this trace are read. Nodes keep their lines; their
    /// modules are under the open one.
    ///
    /// ```
    /// use kernfusion::prelude::*;
    ///
    /// let trace = Trace::new();
    /// let x = trace.input("x", [4], DType::F32);
    /// let program = trace.finish(&[("y", &x.square())])?;
    ///
    /// let trace = Trace::new();
    /// let a = trace.input("a", [4], DType::F32);
    /// let (_, y) = trace.insert(&program, &[("x", &(&a + 1.0))]).remove(0);
    /// trace.finish(&[("loss", &y.sum_all())])?;
    /// # Ok::<(), kernfusion::Error>(())
    /// ```
    #[track_caller]
    pub fn insert(&self, program: &Program, inputs: &[(&str, &Tensor)]) -> Vec<(String, Tensor)> {
        let graph = &program.graph;
        let unknown = inputs.iter().find(|(name, _)| !is_data(graph, name));
        if let Some((name, tensor)) = unknown {
            tensor.expect("insert", |_| Some(format!("the program has no input \"{name}\"")));
        }
        let stopped: BTreeSet<_> = program.stopped.iter().copied().collect();
        let mut values: Vec<Tensor> = vec![];
        for id in graph.ids() {
            let node = &graph[id];
            let value = match &node.op {
                Op::Input(input) => self.inserted_input(program, input, inputs),
                op => {
                    let _line = node.origin.location.clone().map(|line| self.at_line(line));
                    let _scope = (!node.origin.scope.is_empty()).then(|| self.scope(&node.origin.scope));
                    let operands: Vec<_> = node.operands.iter().map(|at| &values[at.index()]).collect();
                    let built = self.attempt_all(op.name(), &operands, |b, ids| Ok(b.op(op.clone(), ids)?));
                    built.unwrap_or_else(|| self.placeholder(&node.ty))
                }
            };
            values.push(if stopped.contains(&id) { value.stopped() } else { value });
        }
        let value = |id: ValueId| values[id.index()].clone();
        for update in graph.outputs().iter().filter(|output| output.updates_state) {
            let state = graph.input(&update.name).map(value);
            state.into_iter().for_each(|state| self.update(&state, &value(update.value)));
        }
        let results = graph.outputs().iter().filter(|output| !output.updates_state);
        results.map(|output| (output.name.clone(), value(output.value))).collect()
    }

    /// Whether an input of a program is what random numbers are drawn from: `seed` or `step`.
    pub fn is_random_key(name: &str, ty: &TensorType) -> bool {
        ["seed", "step"].contains(&name) && *ty == TensorType::scalar(DType::U32)
    }

    /// What stands for an input of an inserted program.
    #[track_caller]
    fn inserted_input(&self, program: &Program, input: &Input, given: &[(&str, &Tensor)]) -> Tensor {
        let Input { name, role, ty } = input;
        if *role == InputRole::State {
            let mut parameters = program.parameters.iter().chain(&program.buffers);
            let shape = ty.shape.clone();
            return match parameters.find(|parameter| parameter.name == *name) {
                Some(parameter) if parameter.trained => {
                    self.adapted(name, &self.parameter(name, shape, parameter.init))
                }
                Some(parameter) if ty.dtype == DType::F32 => self.buffer(name, shape, parameter.init),
                _ => self.state(name, shape, ty.dtype),
            };
        }
        match given.iter().find(|(other, _)| other == name) {
            Some((_, tensor)) => {
                let fits = tensor.ty() == *ty;
                tensor.expect("insert", |got| {
                    (!fits).then(|| format!("the input \"{name}\" is {got}, and the program takes {ty}"))
                });
                if fits { (*tensor).clone() } else { self.placeholder(ty) }
            }
            None if Trace::is_random_key(name, ty) => self.random_key(name),
            None => {
                self.attempt_all("insert", &[], |_, _| {
                    Err(format!("the input \"{name}\" of the program, {ty}, is missing").into())
                });
                self.placeholder(ty)
            }
        }
    }
}

fn is_data(graph: &Graph, name: &str) -> bool {
    graph.inputs().any(|(_, other, role)| other == name && role == InputRole::Data)
}
