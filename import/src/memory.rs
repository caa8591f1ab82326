//! Which tensors of an archive share memory, and what they are after one of them has changed.

use crate::operators::find;
use crate::operators::views::{Change, View, is_shared};
use crate::schema::{Argument, Name, Node, TensorMeta, operator_name};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Tensors, which values are views of which, and the nodes so far.
pub(crate) struct Memory {
    pub(crate) nodes: Vec<Node>,
    tensors: Vec<Tensor>,
    /// The tensor that has a name. What is not there has its own value, and shares nothing.
    names: HashMap<String, usize>,
    last_reads: HashMap<String, usize>,
}

/// A tensor, whose value may change.
struct Tensor {
    /// The names that it has in the archive: its own, and those of the results of changes.
    names: Vec<String>,
    /// What it is at present.
    value: String,
    /// The tensor with which it shares memory, the node that it is a result of, and which one.
    base: Option<(usize, Node, usize)>,
}

impl Memory {
    /// Nothing yet. `last_reads`: for each value of the archive the last node that reads it.
    pub(crate) fn new(last_reads: HashMap<String, usize>) -> Self {
        Memory { nodes: vec![], tensors: vec![], names: HashMap::new(), last_reads }
    }

    /// The values that names stand for at present, but for those that stand for their own.
    pub(crate) fn values(&self) -> HashMap<String, String> {
        self.names.iter().map(|(name, &at)| (name.clone(), self.tensors[at].value.clone())).collect()
    }

    /// The value that a name stands for at present.
    pub(crate) fn current<'n>(&'n self, name: &'n str) -> &'n str {
        self.names.get(name).map_or(name, |&at| &self.tensors[at].value)
    }

    fn tensor(&mut self, name: &str) -> usize {
        let (names, tensors) = (&mut self.names, &mut self.tensors);
        *names.entry(name.into()).or_insert_with(|| {
            tensors.push(Tensor { names: vec![name.into()], value: name.into(), base: None });
            tensors.len() - 1
        })
    }

    /// Notes of which tensors the results of a node are views. `own` are its operands as the archive names them.
    pub(crate) fn view(&mut self, metas: &BTreeMap<String, TensorMeta>, node: &Node, own: &[String]) {
        let Some(view) = find(operator_name(&node.target)).and_then(|operator| operator.view) else { return };
        for (at, result) in node.results().into_iter().enumerate() {
            let Some(operand) = own.get(viewed(own.len(), at)) else { continue };
            let copied = match (view, metas.get(operand), metas.get(result)) {
                (View::Whole, Some(operand), Some(result)) => is_shared(node, operand, result) == Some(false),
                _ => false,
            };
            // In an archive as it should be, nothing else has the name.
            if !copied && !self.names.contains_key(result) && result != operand {
                let base = self.tensor(operand);
                let result = self.tensor(result);
                self.tensors[result].base = Some((base, node.clone(), at));
            }
        }
    }

    /// Whether a node after this one reads a tensor.
    fn is_read_after(&self, tensor: usize, at: usize) -> bool {
        let mut names = self.tensors[tensor].names.iter();
        names.any(|name| self.last_reads.get(name).is_some_and(|&last| last > at))
    }

    /// The tensors that share memory with one, without it, bases before their views.
    fn sharing(&self, tensor: usize) -> Vec<usize> {
        let root = |mut at: usize| {
            while let Some((base, ..)) = self.tensors[at].base {
                at = base;
            }
            at
        };
        let own = root(tensor);
        (0..self.tensors.len()).filter(|&other| other != tensor && root(other) == own).collect()
    }

    /// A tensor takes the value `result`, and those that share its memory change with it.
    ///
    /// # Errors
    /// The name of one that is read after the node, and whose value cannot be told.
    pub(crate) fn change(
        &mut self,
        metas: &mut BTreeMap<String, TensorMeta>,
        changed: &str,
        result: &str,
        at: usize,
    ) -> Result<(), String> {
        let tensor = self.tensor(changed);
        self.tensors[tensor].value = result.into();
        self.tensors[tensor].names.push(result.into());
        self.names.insert(result.into(), tensor);
        let sharing = self.sharing(tensor);
        let is_needed: Vec<_> = sharing.iter().map(|&other| self.is_read_after(other, at)).collect();
        let Some(stale) =
            sharing.iter().zip(&is_needed).find(|(_, needed)| **needed).map(|(other, _)| *other)
        else {
            return Ok(());
        };
        let stale = self.tensors[stale].names[0].clone();
        // Such as `t_`: the others keep their elements.
        let layout =
            |name| metas.get(name).map(|meta: &TensorMeta| (meta.sizes.clone(), meta.strides.clone()));
        if layout(changed) != layout(result) {
            return Err(stale);
        }
        let mut known = vec![tensor];
        let mut last = tensor;
        while let Some((base, node, result)) = self.tensors[last].base.clone() {
            let value = self.written(metas, last, base, &node, result).ok_or_else(|| stale.clone())?;
            self.tensors[base].value = value;
            known.push(base);
            last = base;
        }
        // What is read, and what that is a view of.
        let mut is_needed: HashSet<_> =
            sharing.iter().zip(is_needed).filter(|(_, needed)| *needed).map(|(other, _)| *other).collect();
        for &other in sharing.iter().rev() {
            if let Some((base, ..)) = self.tensors[other].base
                && is_needed.contains(&other)
            {
                is_needed.insert(base);
            }
        }
        for other in sharing.into_iter().filter(|other| is_needed.contains(other) && !known.contains(other)) {
            self.take_again(metas, other);
        }
        Ok(())
    }

    /// Adds the node that gives a base with the value of a view of it. Its value.
    fn written(
        &mut self,
        metas: &mut BTreeMap<String, TensorMeta>,
        view: usize,
        base: usize,
        node: &Node,
        result: usize,
    ) -> Option<String> {
        let base_meta = metas.get(&self.tensors[base].names[0])?.clone();
        let change = Change {
            node,
            result,
            base: &self.tensors[base].value,
            value: &self.tensors[view].value,
            base_meta: &base_meta,
            metas: node.results().into_iter().map(|name| metas.get(name)).collect::<Option<_>>()?,
        };
        let (target, inputs) = find(operator_name(&node.target))?.view?.written(&change)?;
        let name = self.fresh(&self.tensors[base].names[0]);
        let outputs = vec![Argument::Tensor(Name { name: name.clone() })];
        metas.insert(name.clone(), base_meta);
        let target = format!("torch.ops.{target}");
        self.nodes.push(Node { target, inputs, outputs, metadata: node.metadata.clone() });
        Some(name)
    }

    /// Adds the node that a view is a result of, of what its base is at present.
    fn take_again(&mut self, metas: &mut BTreeMap<String, TensorMeta>, view: usize) {
        let Some((base, mut node, result)) = self.tensors[view].base.clone() else { return };
        let mut operands: Vec<_> = node.tensors_mut().collect();
        let place = viewed(operands.len(), result);
        if let Some(operand) = operands.get_mut(place) {
            operand.name.clone_from(&self.tensors[base].value);
        }
        let own: Vec<String> = node.results().into_iter().map(Into::into).collect();
        for (at, name) in node.results_mut().into_iter().enumerate() {
            let fresh = self.fresh(&own[at]);
            if let Some(meta) = metas.get(&own[at]).cloned() {
                metas.insert(fresh.clone(), meta);
            }
            name.name = fresh;
        }
        self.tensors[view].value = node.results()[result].into();
        self.nodes.push(node);
    }

    /// A name that no value of the archive has.
    fn fresh(&self, name: &str) -> String {
        format!("{name}.{}", self.nodes.len())
    }
}

/// The place of the operand that a result is a view of: of several the one in its own.
fn viewed(operands: usize, result: usize) -> usize {
    if result < operands { result } else { 0 }
}
